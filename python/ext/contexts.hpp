// SPDX-License-Identifier: Apache-2.0
//
// Context and Stream as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "kvferry/context.hpp"

namespace kvferry::python {

namespace nb = nanobind;

// Without the GIL while it lives.
//
// Up to Python 3.13 a thread that wants the GIL of an interpreter which is ending gets pthread_exit(). It
// would unwind through destructors, and abort the process that is about to end well: such a thread stops here
// instead.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil();
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

// What work on a stream uses, until a wait covered it.
struct Kept {
  std::vector<nb::object> owners;
  std::vector<void*> pointers;
  std::shared_ptr<void> workspace;
};

// Used with the GIL, which is what guards `kept_`.
class PyStream {
 public:
  PyStream() : stream_(std::make_unique<Stream>()) {}
  ~PyStream();
  PyStream(const PyStream&) = delete;
  PyStream& operator=(const PyStream&) = delete;

  Stream* get() { return stream_.get(); }
  void keep(Kept kept) { kept_.push_back(std::move(kept)); }
  void wait();

 private:
  std::unique_ptr<Stream> stream_;
  std::vector<Kept> kept_;
};

struct PyContext {
  kvferry::Context context;
  PyStream* stream = nullptr;  // of the CPU
  nb::object stream_owner;
  // Of a CUDA device. Held, without the GIL, from asking for the context's workspace to the last launch.
  mutable std::mutex workspace_mutex{};

  bool on_cuda() const { return context.options().device.type == DeviceType::kCuda; }
};

// The process's own for the CPU. Never destroyed: its threads may run until the process ends.
const PyContext& cpu_context();
// For calls on a CUDA stream that were given no context. The last few are kept.
std::shared_ptr<const PyContext> cuda_context(Device device, void* stream);

void define_contexts(nb::module_& module);

}  // namespace kvferry::python
