// SPDX-License-Identifier: Apache-2.0
//
// Two steps: the schedule, and the copy. The blocks of all rows are one list that all threads share out, so
// that the misses of a single row keep every core busy.
#include <algorithm>

#include "backends/cpu/move.hpp"
#include "backends/cpu/parallel_for.hpp"
#include "ops/cpu_implementations.hpp"
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_schedule.hpp"

namespace kvferry::internal {
namespace {

using PlanT = GatherSelectionKvCachePlan;
using Buffers = GatherSelectionKvCacheBuffers;

// The copies of one claim, for one of kv and rope.
class SideCopier {
 public:
  SideCopier(const PlanT& plan, const SelectionSide& side, const Buffers& buffers,
             const cpu::CopyKernels& kernels, bool nontemporal)
      : side_(side),
        fetch_(side.fetch, kernels, nontemporal),
        move_(side.move, kernels, nontemporal),
        full_block_step_(plan.block_tokens * side.full.token_step),
        selection_block_step_(plan.block_tokens * side.selection.token_step) {
    const bool kv = &side == &plan.kv;
    full_ = static_cast<const std::byte*>(kv ? buffers.full_kv_cache : buffers.full_k_rope);
    selection_ = static_cast<std::byte*>(kv ? buffers.selection_kv_cache : buffers.selection_k_rope);
  }

  void copy(const SelectionCopy& c) {
    std::byte* const dst = in_selection(c.dst_page, c.dst_block);
    switch (c.kind) {
      case CopyKind::kFetch:
        return fetch_.copy(
            full_ + side_.full.base + c.src_page * side_.full.page_step + c.src_block * full_block_step_, dst,
            c.tokens);
      case CopyKind::kMove:
        return move_.copy(in_selection(c.src_page, c.src_block), dst, c.tokens);
      case CopyKind::kZero:
        return fetch_.zero(dst, c.tokens);
    }
  }

 private:
  std::byte* in_selection(std::int32_t page, std::int32_t block) const {
    return selection_ + side_.selection.base + page * side_.selection.page_step +
           block * selection_block_step_;
  }

  const SelectionSide& side_;
  cpu::Mover fetch_;
  cpu::Mover move_;
  const std::int64_t full_block_step_;
  const std::int64_t selection_block_step_;
  const std::byte* full_;
  std::byte* selection_;
};

// Calls body(copy) for the copies [begin, end) of all batches' lists; groups belong to whoever has their
// start.
template <class Body>
void for_each_copy(const PlanT& plan, Schedule* schedule, std::int64_t begin, std::int64_t end, Body body) {
  const auto* ends = part<std::int64_t>(schedule, plan.parts.ends);
  const auto* copies = part<SelectionCopy>(schedule, plan.parts.copies);
  for (std::int64_t b = std::upper_bound(ends, ends + plan.batches + 1, begin) - ends - 1;
       b < plan.batches && ends[b] < end; ++b) {
    const SelectionCopy* list = copies + b * plan.rows_per_batch * plan.k;
    const std::int64_t size = ends[b + 1] - ends[b];
    std::int64_t i = std::max<std::int64_t>(begin - ends[b], 0);
    std::int64_t stop = std::min(end - ends[b], size);
    while (i < stop && !list[i].starts_group) ++i;
    if (i == stop) continue;
    while (stop < size && !list[stop].starts_group) ++stop;
    for (; i < stop; ++i) body(list[i]);
  }
}

// Runs visit(begin, end, copier) over claims of `count` blocks, for kv, then for rope.
template <class Visit>
void copy_claims(const PlanT& plan, const Buffers& buffers, ContextState& context,
                 const cpu::CopyKernels& kernels, std::int64_t count, Visit visit) {
  const cpu::Split split = cpu::split(count, plan.block_bytes(), context.threads);
  const bool nontemporal = cpu::use_nontemporal(split.bytes, context.options.streaming);
  cpu::parallel_for(context, split.claims, [&](std::int64_t claim) {
    const std::int64_t begin = claim * split.units_per_claim;
    const std::int64_t end = std::min(begin + split.units_per_claim, count);
    for (const SelectionSide* side : {&plan.kv, &plan.rope}) {
      if (!side->active) continue;
      SideCopier copier(plan, *side, buffers, kernels, nontemporal);
      visit(begin, end, copier);
    }
  });
}

void copy_blocks(const PlanT& plan, const Buffers& buffers, Schedule* schedule, ContextState& context,
                 const cpu::CopyKernels& kernels) {
  if (schedule->leaving > 0) {
    copy_claims(plan, buffers, context, kernels, plan.rows,
                [&](std::int64_t begin, std::int64_t end, SideCopier& copier) {
                  const auto* leaving = part<SelectionCopy>(schedule, plan.parts.leaving);
                  for (std::int64_t r = begin; r < end; ++r) {
                    if (leaving[r].tokens > 0) copier.copy(leaving[r]);
                  }
                });
  }
  const std::int64_t count = part<std::int64_t>(schedule, plan.parts.ends)[plan.batches];
  copy_claims(plan, buffers, context, kernels, count,
              [&](std::int64_t begin, std::int64_t end, SideCopier& copier) {
                for_each_copy(plan, schedule, begin, end, [&](const SelectionCopy& c) { copier.copy(c); });
              });
}

Status run(const PlanT& plan, const SelectionCall& call, ContextState& context,
           const cpu::CpuKernels& kernels) {
  auto* schedule = aligned<Schedule>(call.buffers.workspace);
  if (call.schedules) {
    if (Status status = make_schedule(plan, call.buffers, schedule, context, kernels); !status.ok())
      return status;
  } else if (schedule->plan_id != plan.id) {
    return {StatusCode::kInvalidArgument,
            "gather_selection_kv_cache: workspace: holds no schedule of this plan, expected schedule() "
            "before copy()"};
  }
  if (call.copies) copy_blocks(plan, call.buffers, schedule, context, kernels.copy);
  return {};
}

}  // namespace

std::span<const GatherSelectionKvCachePlan::ImplType> gather_selection_kv_cache_cpu() {
  return cpu_implementations<PlanT, SelectionCall, run>();
}

}  // namespace kvferry::internal
