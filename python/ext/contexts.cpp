// SPDX-License-Identifier: Apache-2.0
#include "contexts.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "errors.hpp"

namespace kvferry::python {
namespace {

Device read_device(const std::string& text) {
  if (text == "cpu") return {};
  constexpr std::string_view kCuda = "cuda";
  if (text == kCuda) return {DeviceType::kCuda, 0};
  if (text.starts_with(kCuda) && text[kCuda.size()] == ':') {
    const char* end = text.data() + text.size();
    Device device{DeviceType::kCuda, 0};
    const auto [stop, error] = std::from_chars(text.data() + kCuda.size() + 1, end, device.index);
    if (error == std::errc() && stop == end && device.index >= 0) return device;
  }
  raise(PyExc_ValueError, "Context: device is '{}', expected 'cpu', 'cuda' or 'cuda:<index>'", text);
}

// An address: an int, or what has one in the way of CUDA's Python libraries, of torch or of CuPy.
void* read_cuda_stream(nb::handle given) {
  nb::object number = nb::borrow(given);
  if (nb::object pair = nb::getattr(given, "__cuda_stream__", nb::none()); !pair.is_none()) {
    if (PyCallable_Check(pair.ptr())) pair = pair();  // a property in the first versions of the protocol
    if (!PyTuple_Check(pair.ptr()) || PyTuple_GET_SIZE(pair.ptr()) != 2)
      raise(PyExc_TypeError, "Context: stream: __cuda_stream__ gives {}, expected (version, address)",
            nb::repr(pair).c_str());
    number = nb::borrow(PyTuple_GET_ITEM(pair.ptr(), 1));
  } else {
    for (const char* name : {"cuda_stream", "ptr"}) number = nb::getattr(number, name, number);
  }
  if (!PyLong_Check(number.ptr()) || PyBool_Check(number.ptr()))
    raise(
        PyExc_TypeError,
        "Context: stream is {}, expected with a CUDA device the address of a cudaStream_t, or an object with "
        "__cuda_stream__, cuda_stream or ptr",
        nb::inst_name(given).c_str());
  const std::size_t address = PyLong_AsSize_t(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    raise(PyExc_ValueError, "Context: stream is {}, expected the address of a cudaStream_t",
          nb::repr(number).c_str());
  }
  return reinterpret_cast<void*>(address);
}

void make_context(PyContext* self, int threads, std::vector<int> cpus, nb::handle stream,
                  std::string implementation, bool streaming, const std::string& device,
                  std::int64_t staging_bytes) {
  ContextOptions options;
  options.device = read_device(device);
  options.threads = threads;
  options.cpus = std::move(cpus);
  options.implementation = std::move(implementation);
  options.streaming = streaming;
  options.cuda_staging_bytes = staging_bytes;
  PyStream* cpu_stream = nullptr;
  const bool on_cuda = options.device.type == DeviceType::kCuda;
  if (nb::isinstance<PyStream>(stream)) {
    if (on_cuda)
      raise(PyExc_ValueError,
            "Context: stream is a kvferry.Stream, which is of the CPU; expected one of {}, such as "
            "torch.cuda.current_stream()",
            device);
    cpu_stream = nb::cast<PyStream*>(stream);
    options.stream = cpu_stream->get();
  } else if (!stream.is_none()) {
    if (!on_cuda)
      raise(PyExc_TypeError, "Context: stream is {}, expected a kvferry.Stream with device 'cpu'",
            nb::inst_name(stream).c_str());
    options.cuda_stream = read_cuda_stream(stream);
  }
  new (self) PyContext{kvferry::Context(std::move(options)), cpu_stream, nb::borrow(stream)};
}

}  // namespace

ReleasedGil::~ReleasedGil() {
  try {
    PyEval_RestoreThread(state_);
  } catch (...) {
    while (true) pause();
  }
}

PyStream::~PyStream() {
  const ReleasedGil released;
  stream_.reset();
}

void PyStream::wait() {
  // What is enqueued from here on is the next wait's.
  const std::vector<Kept> done = std::exchange(kept_, {});
  Status status;
  {
    const ReleasedGil released;
    status = stream_->wait();
  }
  raise_unless_ok(status);
}

const PyContext& cpu_context() {
  static const auto& context = *new PyContext{kvferry::Context()};
  return context;
}

std::shared_ptr<const PyContext> cuda_context(Device device, void* stream) {
  // Guarded by the GIL; the last used first. One that is dropped lives on in the calls that use it.
  constexpr std::size_t kMost = 64;
  static auto& contexts = *new std::vector<std::shared_ptr<const PyContext>>;
  const auto is_wanted = [&](const auto& made) {
    const ContextOptions& options = made->context.options();
    return options.device == device && options.cuda_stream == stream;
  };
  const auto found = std::find_if(contexts.begin(), contexts.end(), is_wanted);
  if (found != contexts.end()) {
    std::rotate(contexts.begin(), found, found + 1);
    return contexts.front();
  }
  ContextOptions options;
  options.device = device;
  options.cuda_stream = stream;
  std::shared_ptr<const PyContext> made(new PyContext{kvferry::Context(std::move(options))});
  contexts.insert(contexts.begin(), made);
  if (contexts.size() > kMost) contexts.pop_back();
  return made;
}

void define_contexts(nb::module_& module) {
  nb::class_<PyStream>(module, "Stream", R"(A FIFO of work on the CPU: one background thread.

Calls with a context that has this stream return at once. Tensors are read and written when the work runs; they
are kept alive until wait() returned. A refusal at run time does not stop the work behind it.

After os.fork() a stream stays with the parent.)")
      .def(nb::init<>())
      .def("wait", &PyStream::wait, R"(Waits for what was enqueued before.

Raises the first refusal since the last wait, and says how many followed.)");
  nb::class_<PyContext>(module, "Context",
                        R"(Where and how work runs: helper threads, started at the first large call.

threads: how many may work, the caller's included; 0: KVFERRY_NUM_THREADS, else as many as cpus, else as there
    are processors.
cpus: processors that the helper threads may run on; empty: those of the calling thread.
stream: on the CPU a Stream: work is enqueued there instead of done in the call. On a CUDA device the stream that
    work is enqueued on: the address of a cudaStream_t, or an object with __cuda_stream__, cuda_stream (torch) or
    ptr (CuPy); None is CUDA's default stream.
implementation: "avx512", "avx2", "neon", "generic": the one that must be used; empty: the best that can run.
streaming: the result is read next by another device, not by this CPU.
device: "cpu", "cuda" or "cuda:<index>". On a CUDA device calls return when their work is enqueued: tensors must
    stay until it is done.
staging_bytes: of a CUDA device: memory there that swap_blocks may stage copies between host and device in; 0: 16 MiB,
    negative: none.

Calls that run at the same time through one context do not share its helper threads.)")
      .def(
          "__init__", &make_context, nb::kw_only(), nb::arg("threads") = 0,
          nb::arg("cpus") = std::vector<int>(), nb::arg("stream").none() = nb::none(),
          nb::arg("implementation") = "", nb::arg("streaming") = false, nb::arg("device") = "cpu",
          nb::arg("staging_bytes") = 0,
          nb::sig("def __init__(self, *, threads: int = 0, cpus: collections.abc.Sequence[int] = (), stream: "
                  "Stream | kvferry._types.CudaStream | int | None = None, implementation: str = \"\", "
                  "streaming: "
                  "bool = False, device: str = \"cpu\", staging_bytes: int = 0) -> None"))
      .def_prop_ro(
          "threads", [](const PyContext& self) { return self.context.threads(); },
          "How many threads may work, the caller's included.")
      .def_prop_ro(
          "stream", [](const PyContext& self) { return self.stream; },
          nb::sig("def stream(self) -> Stream | None"), "Where work is enqueued on the CPU.")
      .def_prop_ro(
          "cuda_stream",
          [](const PyContext& self) -> nb::object {
            if (!self.on_cuda()) return nb::none();
            return nb::int_(reinterpret_cast<std::uintptr_t>(self.context.options().cuda_stream));
          },
          nb::sig("def cuda_stream(self) -> int | None"),
          "Address of the stream that work is enqueued on; None on the CPU.")
      .def_prop_ro(
          "device", [](const PyContext& self) { return to_string(self.context.options().device); },
          "Where work is done, such as \"cuda:1\".");
}

}  // namespace kvferry::python
