// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend's table of implementations: one row, for every operator.
#pragma once

#include <array>
#include <span>
#include <string>

#include "backends/cuda/queue.hpp"
#include "core/checks.hpp"
#include "core/impl.hpp"
#include "core/index_view.hpp"
#include "core/layout.hpp"

namespace kvferry::internal {

// WhyNot is that of Impl; Run launches and does nothing else: no allocation, no synchronisation.
template <class PlanT, class Buffers, std::string (*WhyNot)(const PlanT&),
          Status (*Run)(const PlanT&, const Buffers&, cuda::Queue&)>
std::span<const Impl<PlanT, Buffers>> cuda_implementation() {
  static const std::array row = {Impl<PlanT, Buffers>{
      "cuda", WhyNot, [](const PlanT& plan, const Buffers& buffers, ContextState& context) {
        return Run(plan, buffers, static_cast<cuda::Queue&>(*context.queue));
      }}};
  return row;
}

// Whether a tensor of a CUDA context lies in pinned host memory: its plan keeps that, for its runs to ask for
// the address that the device has for it. An empty one has no memory to ask about.
inline bool is_pinned(const TensorView& view) {
  return view.device.type == DeviceType::kCudaHost && !is_empty(view);
}

// Pointers as the device has them. The first failure sticks.
class DevicePointers {
 public:
  DevicePointers(cuda::Queue& queue, Operator op) : queue_(queue), op_(op) {}

  template <class T>
  T* of(T* pointer, bool pinned, const char* name) {
    if (!pinned || pointer == nullptr || !status_.ok()) return pointer;
    Result<void*> found = queue_.device_address(op_, name, pointer);
    if (!found.ok()) status_ = found.status();
    return found.ok() ? static_cast<T*>(found.value()) : nullptr;
  }
  const Status& status() const { return status_; }

 private:
  cuda::Queue& queue_;
  Operator op_;
  Status status_;
};

inline cuda::Indices cuda_indices(const IndexView& view, const void* data) {
  if (data == nullptr) return {};
  return {cuda::DevicePtr<const std::uint8_t>::at(static_cast<const std::uint8_t*>(data) + view.base),
          view.step0, view.step1, view.wide};
}

// Why kernels cannot move these tokens, empty if they can. In 32 bits they count inside one of them.
std::string cuda_cannot_move(const TokenMove& move);
// One nest of a token. REQUIRES that kernels can move it.
cuda::DeviceNest cuda_nest(const TokenMove& move, const Nest& nest);
// Tokens of `token_bytes` in a task: a power of two, at most `most`, of at most Tuning::task_bytes if it is
// not one. Its logarithm.
std::uint32_t cuda_task_shift(const cuda::Tuning& tuning, std::int64_t token_bytes, std::int64_t most);

}  // namespace kvferry::internal
