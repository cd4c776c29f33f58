// SPDX-License-Identifier: Apache-2.0
//
// Intake: Python tensors to views of their memory. Nothing is copied. Fastest first: types with DLPack's
// exchange API (torch), NumPy arrays, anything with __dlpack__.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contexts.hpp"
#include "dlpack.hpp"
#include "kvferry/plan.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry::python {

namespace nb = nanobind;

enum class Access { kRead, kWrite };

// How messages call a tensor: "key", or with an index "caches[3]".
struct TensorName {
  const char* name;
  Py_ssize_t index = -1;

  std::string text() const { return index < 0 ? name : fmt::format("{}[{}]", name, index); }
};

// What Python has: by its name, and as DLPack has it.
inline constexpr const char* kDTypeNames =
    "float16, bfloat16, float32, (u)int8, (u)int16, (u)int32, (u)int64, float8_e5m2, float8_e4m3fn";
std::optional<DType> dtype_named(std::string_view name);
dlpack::DataType dlpack_dtype(DType dtype);  // REQUIRES one that has a name there

// DLPack's number of a CUDA stream: 1 is the default one.
std::uintptr_t stream_number(void* stream);

struct Kind;

// The tensors of one call. Views are valid while the caller holds the tensors and this object lives.
//
// Without a context the call runs where its tensors are. One on a CUDA device decides: with pinned host
// memory beside it, on the stream that its framework launches on. Tensors that came before are then asked
// again.
class Intake {
 public:
  // With the caller's context, if any. One with a stream runs the work after the caller has gone on: the
  // tensors are held too.
  Intake(Operator op, const PyContext* context) : op_(op), context_(context) {
    if (context == nullptr || !context->on_cuda()) return;
    device_ = context->context.options().device;
    stream_ = context->context.options().cuda_stream;
    has_stream_ = true;
  }

  TensorView tensor(TensorName name, nb::handle object, Access access);
  // Of a sequence.
  std::vector<TensorView> list(const char* name, nb::handle objects, Access access);

  // The error record of a call, behind its tensors: an ErrorRecord, or on a CUDA device a tensor there.
  ErrorRecord* record(nb::handle object);
  // Once: whether tensors were seen before it was known where the call runs.
  bool must_look_again() { return device_ != Device() && std::exchange(early_, false); }

  Operator op() const { return op_; }
  bool on_cuda() const { return device_ != Device(); }
  Device device() const { return device_; }  // where the call runs
  // The caller's, or the default one for the tensors' device.
  const PyContext& context() {
    if (context_ != nullptr) return *context_;
    if (!on_cuda()) return cpu_context();
    if (made_ == nullptr) made_ = cuda_context(device_, stream_);
    return *made_;
  }
  // Memory of the device from the allocator of a tensor's framework, whose current stream the call runs on:
  // that may be freed when the work is enqueued, and is known to a capture of a CUDA graph. Null if there is
  // none.
  std::shared_ptr<void> device_memory(std::int64_t bytes) const;
  // Raises what plan() said, with the tensor that asked for a device, if the caller's context did not.
  void raise_unless_ok(const Status& status) const;

  // What the work needs and the caller may drop.
  void hold(nb::handle object) {
    if (context_ != nullptr && context_->stream != nullptr) owners_.push_back(nb::borrow(object));
  }
  std::vector<nb::object> take_owners() { return std::move(owners_); }

 private:
  TensorView view(TensorName name, nb::handle object, const Kind& kind, Access access);
  // Of a tensor on a CUDA device, before it is exported by __dlpack__ or after it was borrowed.
  void follow(const Kind& kind, std::int32_t device);
  nb::object consumer_stream(TensorName name, nb::handle object, const Kind& kind);
  void keep(nb::object object) { owners_.push_back(std::move(object)); }

  Operator op_;
  const PyContext* context_;
  // Of the context, or of the first tensor that is not on the CPU: the library wants all on one.
  Device device_;
  TensorName device_tensor_{};
  bool early_ = false;
  // Of the context, or of the first tensor there whose framework has a current one.
  void* stream_ = nullptr;
  bool has_stream_ = false;
  const dlpack::ExchangeApi* allocator_ = nullptr;  // its framework's
  bool torch_waited_for_ = false;
  std::shared_ptr<const PyContext> made_;
  std::vector<nb::object> owners_;
};

}  // namespace kvferry::python
