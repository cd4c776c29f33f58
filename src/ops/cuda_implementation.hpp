// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend's table of implementations: one row, for every operator.
#pragma once

#include <algorithm>
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

inline cuda::Int32Outputs cuda_outputs(const IndexView& view, void* data) {
  if (data == nullptr) return {};
  return {cuda::DevicePtr<std::uint8_t>::at(static_cast<std::uint8_t*>(data) + view.base), view.step0,
          view.step1};
}

// Why kernels cannot move these tokens, empty if they can. In 32 bits they count inside one of them.
std::string cuda_cannot_move(const TokenMove& move);
// One nest of a token. REQUIRES that kernels can move it.
cuda::DeviceNest cuda_nest(const TokenMove& move, const Nest& nest);
// `bytes` in equal parts of at most `most`, all but the last one whole lines of memory. REQUIRES bytes > 0
// and that `most` is a multiple of such a line.
struct CudaSplit {
  std::int64_t parts;
  std::uint32_t part_bytes;
};
CudaSplit cuda_split(std::int64_t bytes, std::int64_t most);
// Threads for so many bytes that stand together: two vectors each, but not more than `most`. Powers of two.
std::uint32_t cuda_ranks(std::int64_t bytes, std::uint32_t most);
// Blocks of K for outer * inner items of `ranks` threads, or so many that it makes no difference.
template <class K>
std::int64_t cuda_units(std::int64_t outer, std::int64_t inner, std::uint32_t ranks) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const std::int64_t items = std::min(outer, kMost) * std::min(inner, kMost), groups = K::kThreads / ranks;
  return (items + groups - 1) / groups;
}
// Tokens of `token_bytes` in a task: a power of two, less than 2 * `most`, of at most `task_bytes` if it is
// not one. Its logarithm.
std::uint32_t cuda_shift_of(std::int64_t task_bytes, std::int64_t token_bytes, std::int64_t most);
inline std::uint32_t cuda_task_shift(const cuda::Tuning& tuning, std::int64_t token_bytes,
                                     std::int64_t most) {
  return cuda_shift_of(tuning.task_bytes, token_bytes, most);
}

}  // namespace kvferry::internal
