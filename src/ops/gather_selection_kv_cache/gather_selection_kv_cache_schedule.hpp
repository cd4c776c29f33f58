// SPDX-License-Identifier: Apache-2.0
//
// The schedule of one call on the CPU: what planners leave in the workspace for the threads that copy.
#pragma once

#include "backends/cpu/kernels.hpp"
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_plan.hpp"

namespace kvferry::internal {

enum class CopyKind : std::uint8_t { kFetch, kMove, kZero };

// One block: places are a page and a block of it.
struct SelectionCopy {
  std::int32_t src_page;
  std::int32_t src_block;
  std::int32_t dst_page;
  std::int32_t dst_block;
  std::int32_t tokens;  // 0: nothing to copy
  CopyKind kind;
  bool starts_group;  // copies of one source follow one another: one thread reads it, once
};

// At the aligned start of the workspace; the rest is behind it, where PlanT::parts says.
struct Schedule {
  std::uint64_t plan_id;
  std::int64_t leaving;  // rows whose slot n-1 is emptied before the rest
};

template <class T>
T* part(Schedule* schedule, std::int64_t offset) {
  return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(schedule) + offset);
}

// Plans every row, checks what the index policies ask for and updates the state. REQUIRES `schedule` to be
// the aligned start of the plan's workspace.
Status make_schedule(const GatherSelectionKvCachePlan& plan, const GatherSelectionKvCacheBuffers& buffers,
                     Schedule* schedule, ContextState& context, const cpu::CpuKernels& kernels);

}  // namespace kvferry::internal
