// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <string>

#include "contexts.hpp"
#include "device_memory.hpp"
#include "errors.hpp"
#include "kvferry/backend.hpp"
#include "kvferry/plan.hpp"
#include "ops/operators.hpp"

namespace kvferry::python {
namespace {

// Of anything with the buffer protocol.
ErrorRecord record_from_bytes(nb::handle object) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_CONTIG_RO) != 0) throw nb::python_error();
  const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> released(&buffer, PyBuffer_Release);
  ErrorRecord record;
  if (buffer.len != sizeof record)
    raise(PyExc_ValueError, "ErrorRecord.from_bytes: {} bytes, expected {}", buffer.len, sizeof record);
  std::memcpy(&record, buffer.buf, sizeof record);
  return record;
}

void define_error_record(nb::module_& module) {
  nb::class_<ErrorRecord>(module, "ErrorRecord", R"(What index_policy="report" saw: pass it as error_record.

Calls accumulate into it: bad adds up, the other members describe the entry with the lowest (batch, column) so
far. Each operator says what they are. Not to be shared by calls that run at the same time.

On a CUDA device the record is a tensor of zeros there, uint8 [40] or int64 [5]; from_bytes() reads a copy of it.)")
      .def(nb::init<>())
      .def_static("from_bytes", &record_from_bytes, nb::arg("bytes"),
                  nb::sig("def from_bytes(bytes: typing.Any) -> ErrorRecord"),
                  "The record in 40 bytes of the host: bytes, or a NumPy array such as tensor.cpu().numpy().")
      .def_ro("bad", &ErrorRecord::bad,
              "How many entries were bad; of an operator with K and V (entry, K | V) pairs.")
      .def_ro("batch", &ErrorRecord::batch)
      .def_ro("column", &ErrorRecord::column)
      .def_ro("id", &ErrorRecord::id)
      .def_ro("which", &ErrorRecord::which, "BAD_... bits.")
      .def_prop_ro(
          "op",
          [](const ErrorRecord& self) {
            return self.bad == 0 ? "" : to_string(static_cast<Operator>(self.op));
          },
          "Name of the operator; empty without a bad entry.")
      .def(
          "clear", [](ErrorRecord& self) { self = {}; }, "Forgets what was recorded.")
      .def("__repr__", [](const ErrorRecord& self) {
        if (self.bad == 0) return std::string("ErrorRecord(bad=0)");
        return fmt::format("ErrorRecord(bad={}, batch={}, column={}, id={}, which={}, op='{}')", self.bad,
                           self.batch, self.column, self.id, self.which,
                           to_string(static_cast<Operator>(self.op)));
      });
  module.attr("BAD_KEY") = kBadKey;
  module.attr("BAD_VALUE") = kBadValue;
  module.attr("BAD_COLUMN") = kBadColumn;
  module.attr("BAD_DUPLICATE") = kBadDuplicate;
  module.attr("BAD_SOURCE") = kBadSource;
  module.attr("BAD_DESTINATION") = kBadDestination;
}

void define_backends(nb::module_& module) {
  nb::class_<BackendInfo>(module, "BackendInfo", "What this build can run on, or why it cannot.")
      .def_ro("name", &BackendInfo::name, "Such as \"cuda\".")
      .def_ro("available", &BackendInfo::available)
      .def_ro("detail", &BackendInfo::detail,
              "What it has (\"cuda:0 NVIDIA H200 (sm_90, 132 SMs)\"), or why it is not there. For people.")
      .def("__repr__", [](const BackendInfo& self) {
        return fmt::format("BackendInfo(name='{}', available={}, detail='{}')", self.name,
                           self.available ? "True" : "False", self.detail);
      });
  module.def("backends", &backends, nb::sig("def backends() -> list[BackendInfo]"),
             "Every backend that KVFerry knows, \"cpu\" first.\n\n"
             "It initialises the CUDA driver: a child that is forked afterwards cannot use CUDA.");
}

}  // namespace
}  // namespace kvferry::python

NB_MODULE(_core, module) {
  using namespace kvferry::python;
  module.doc() = "The operators of KVFerry, in place, on tensors of any framework.";
  nb::set_leak_warnings(false);  // a user's global Context that outlives the interpreter is no leak
  module.attr("version") = KVFERRY_VERSION;
  define_contexts(module);
  define_device_memory(module);
  define_error_record(module);
  define_backends(module);
  define_gather_pa_kv_cache(module);
  define_scatter_pa_kv_cache(module);
  define_gather_selection_kv_cache(module);
  define_group_memcpy(module);
  define_copy_blocks(module);
  define_swap_blocks(module);
  define_transfer_layers(module);
  define_gather_dequant(module);
}
