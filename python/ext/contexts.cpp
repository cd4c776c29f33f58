// SPDX-License-Identifier: Apache-2.0
#include "contexts.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <charconv>
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

void make_context(PyContext* self, int threads, std::vector<int> cpus, PyStream* stream,
                  std::string implementation, bool streaming, const std::string& device) {
  ContextOptions options;
  options.device = read_device(device);
  options.threads = threads;
  options.cpus = std::move(cpus);
  options.stream = stream == nullptr ? nullptr : stream->get();
  options.implementation = std::move(implementation);
  options.streaming = streaming;
  new (self) PyContext{kvferry::Context(std::move(options)), stream,
                       stream == nullptr ? nb::object() : nb::find(stream)};
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

const PyContext& context_or_default(const PyContext* given, Device device) {
  static auto& contexts = *new std::vector<std::unique_ptr<PyContext>>;  // guarded by the GIL
  if (given != nullptr) return *given;
  for (const auto& made : contexts) {
    if (made->context.options().device == device) return *made;
  }
  ContextOptions options;
  options.device = device;
  contexts.push_back(std::make_unique<PyContext>(PyContext{kvferry::Context(std::move(options))}));
  return *contexts.back();
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
stream: work is enqueued there instead of done in the call.
implementation: "avx512", "avx2", "neon", "generic": the one that must be used; empty: the best that can run.
streaming: the result is read next by another device, not by this CPU.
device: "cpu", "cuda" or "cuda:<index>".

Calls that run at the same time through one context do not share its helper threads.)")
      .def(
          "__init__", &make_context, nb::kw_only(), nb::arg("threads") = 0,
          nb::arg("cpus") = std::vector<int>(), nb::arg("stream").none() = nb::none(),
          nb::arg("implementation") = "", nb::arg("streaming") = false, nb::arg("device") = "cpu",
          nb::sig("def __init__(self, *, threads: int = 0, cpus: collections.abc.Sequence[int] = (), stream: "
                  "Stream | None = None, implementation: str = \"\", streaming: bool = False, device: str = "
                  "\"cpu\") -> None"))
      .def_prop_ro(
          "threads", [](const PyContext& self) { return self.context.threads(); },
          "How many threads may work, the caller's included.")
      .def_prop_ro(
          "stream", [](const PyContext& self) { return self.stream; },
          nb::sig("def stream(self) -> Stream | None"), "Where work is enqueued.");
}

}  // namespace kvferry::python
