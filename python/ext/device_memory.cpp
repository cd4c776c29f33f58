// SPDX-License-Identifier: Apache-2.0
#include "device_memory.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "dlpack.hpp"
#include "errors.hpp"
#include "kvferry/memory.hpp"
#include "tensors.hpp"

namespace kvferry::python {
namespace {

// Of those whose functional form copies: errors of what is read have the operator's name.
Operator operator_of(std::string_view form) {
  for (const Operator op :
       {Operator::kScatterPaKvCache, Operator::kGatherSelectionKvCache, Operator::kSwapBlocks}) {
    if (form.starts_with(to_string(op))) return op;
  }
  return Operator::kCopyBlocks;
}

// To free it waits for the device, which may wait for a function of Python's (a callback of JAX's): whoever
// does it goes without the GIL, if it has it at all.
std::shared_ptr<void> freed_without_gil(std::shared_ptr<void> memory) {
  void* const data = memory.get();
  return {data, [memory = std::move(memory)](void*) mutable {
            std::optional<ReleasedGil> released;
            if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) released.emplace();
            memory.reset();
          }};
}

template <class Managed>
constexpr const char* kCapsule =
    std::is_same_v<Managed, dlpack::ManagedTensor> ? "dltensor" : "dltensor_versioned";

template <class Managed>
struct Exported {
  Managed managed{};
  TensorView view;
  std::shared_ptr<void> memory;
};

template <class Managed>
nb::object export_as(const TensorView& view, const std::shared_ptr<void>& memory) {
  auto exported = std::make_unique<Exported<Managed>>();
  exported->view = view;
  exported->memory = memory;
  Managed& managed = exported->managed;
  managed.manager = exported.get();
  managed.deleter = [](Managed* done) { delete static_cast<Exported<Managed>*>(done->manager); };
  if constexpr (std::is_same_v<Managed, dlpack::VersionedTensor>) managed.version = {dlpack::kMajor, 0};
  managed.tensor.data = view.data;
  managed.tensor.device = {dlpack::kCuda, view.device.index};
  managed.tensor.rank = view.rank;
  managed.tensor.dtype = dlpack_dtype(view.dtype);
  managed.tensor.shape = exported->view.shape.data();
  managed.tensor.strides = exported->view.strides.data();
  PyObject* const capsule = PyCapsule_New(&managed, kCapsule<Managed>, [](PyObject* dying) {
    // Whoever takes the tensor gives the capsule another name.
    if (PyCapsule_IsValid(dying, kCapsule<Managed>) == 0) return;
    auto* const left = static_cast<Managed*>(PyCapsule_GetPointer(dying, kCapsule<Managed>));
    left->deleter(left);
  });
  if (capsule == nullptr) throw nb::python_error();
  static_cast<void>(exported.release());
  return nb::steal(capsule);
}

}  // namespace

DeviceMemory::DeviceMemory(std::string op, std::string name, const PyContext& context, TensorView view,
                           const void* from)
    : op_(std::move(op)), name_(std::move(name)), context_(context.context), view_(view) {
  std::int64_t bytes = size_of(view.dtype);
  bool fits = true;
  for (int axis = 0; axis < view.rank; ++axis)
    fits = fits && view.dim(axis) >= 0 && !__builtin_mul_overflow(bytes, view.dim(axis), &bytes);
  if (!fits)
    raise(PyExc_ValueError, "{}: {}: is to be {}, expected what memory can hold", op_, name_,
          to_string(view));
  // One byte where there is none: to hand over it has an address.
  Result<std::shared_ptr<void>> memory = [&] {
    const ReleasedGil released;
    return device_memory(context_, std::max<std::int64_t>(bytes, 1), bytes == 0 ? nullptr : from);
  }();
  if (!memory.ok())
    raise_unless_ok(
        {memory.status().code(), fmt::format("{}: {}: {}", op_, name_, memory.status().message())});
  memory_ = freed_without_gil(std::move(memory).value());
  view_.data = memory_.get();
  view_.device = context_.options().device;
}

DeviceMemory DeviceMemory::zeros(std::string op, std::string name, const PyContext& context,
                                 const std::vector<std::int64_t>& shape, const std::string& dtype) {
  const std::optional<DType> known = dtype_named(dtype);
  if (!known)
    raise(PyExc_ValueError, "{}: {}: dtype is {}, expected one of {}", op, name, dtype, kDTypeNames);
  if (shape.size() > kMaxRank)
    raise(PyExc_ValueError, "{}: {}: {} dimensions, expected at most {}", op, name, shape.size(), kMaxRank);
  return {std::move(op), std::move(name), context, contiguous(nullptr, *known, shape), nullptr};
}

DeviceMemory DeviceMemory::copy(std::string op, std::string name, const PyContext& context,
                                nb::handle tensor) {
  Intake intake(operator_of(op), &context);
  const TensorView view = intake.tensor({name.c_str()}, tensor, Access::kRead);
  if (!is_contiguous(view))
    raise(PyExc_ValueError, "{}: {}: is {}, expected a dense row-major layout, JAX's default", op, name,
          to_string(view));
  const std::span shape(view.shape.data(), static_cast<std::size_t>(view.rank));
  return {std::move(op), std::move(name), context, contiguous(nullptr, view.dtype, shape), view.data};
}

void DeviceMemory::wait() const {
  Status status;
  {
    const ReleasedGil released;
    status = device_wait(context_);
  }
  if (!status.ok()) raise_unless_ok({status.code(), fmt::format("{}: {}: {}", op_, name_, status.message())});
}

nb::object DeviceMemory::dlpack(nb::handle stream, nb::handle max_version, nb::handle dl_device,
                                nb::handle copy) const {
  if (!dl_device.is_none() && !dl_device.equal(dlpack_device()))
    raise(PyExc_BufferError, "{}: {}: lives on {}, and is not moved", op_, name_, to_string(view_.device));
  if (copy.is(Py_True)) raise(PyExc_BufferError, "{}: {}: is not copied", op_, name_);
  // On the host, not by an event on the consumer's stream: what the operator reads may be dropped when the
  // form returns, and JAX would use that memory for other things, on streams that wait for nothing of ours.
  // None: "the default stream", which JAX means nothing by. -1: nobody is to wait.
  constexpr long long kNoWait = -1;
  const auto own = static_cast<long long>(stream_number(context_.options().cuda_stream));
  const long long consumer = stream.is_none() ? 0 : nb::cast<long long>(stream);
  if (consumer != own && consumer != kNoWait) wait();
  const bool versioned = !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1;
  return versioned ? export_as<dlpack::VersionedTensor>(view_, memory_)
                   : export_as<dlpack::ManagedTensor>(view_, memory_);
}

nb::tuple DeviceMemory::dlpack_device() const {
  return nb::make_tuple(static_cast<int>(dlpack::kCuda), view_.device.index);
}

void define_device_memory(nb::module_& module) {
  nb::class_<DeviceMemory>(module, "DeviceMemory",
                           "Of the functional forms, for results that JAX takes; not for users.")
      .def_static("zeros", &DeviceMemory::zeros, nb::arg("op"), nb::arg("name"), nb::arg("context"),
                  nb::arg("shape"), nb::arg("dtype"))
      .def_static("copy", &DeviceMemory::copy, nb::arg("op"), nb::arg("name"), nb::arg("context"),
                  nb::arg("tensor"),
                  nb::sig("def copy(op: str, name: str, context: Context, tensor: kvferry._types.Tensor) -> "
                          "DeviceMemory"))
      .def("__dlpack__", &DeviceMemory::dlpack, nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
           nb::arg("copy").none() = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = "
                   "None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object"))
      .def("__dlpack_device__", &DeviceMemory::dlpack_device,
           nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));
}

}  // namespace kvferry::python
