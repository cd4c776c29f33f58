// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu_implementations.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_plan.hpp"
#include "ops/paged_cpu.hpp"

namespace kvferry::internal {
namespace {

using PlanT = GatherPaKvCachePlan;
using Buffers = GatherPaKvCacheBuffers;

// Tokens [begin, end) of all batches in a row, for one of K and V.
void move_tokens(const PlanT& plan, const Buffers& buffers, std::span<const GatherSequence> sequences,
                 std::int64_t begin, std::int64_t end, const PagedSide& side, const void* cache_data,
                 void* rows_data, cpu::Mover& mover) {
  const std::byte* cache = static_cast<const std::byte*>(cache_data) + side.cache_base;
  std::byte* rows = static_cast<std::byte*>(rows_data) + side.row_base;
  for_each_run(plan.reads, buffers.block_tables, sequences, begin, end,
               [&](std::int64_t id, std::int64_t slot, std::int64_t row, std::int64_t tokens) {
                 std::byte* dst = rows + row * side.row_step;
                 if (id >= 0 && id < side.blocks) {
                   mover.copy(cache + id * side.block_step + slot * side.slot_step, dst, tokens);
                 } else {
                   mover.zero(dst, tokens);
                 }
               });
}

Status run(const PlanT& plan, const Buffers& buffers, ContextState& context, const cpu::CpuKernels& kernels) {
  if (!plan.key.active && !plan.value.active) return {};
  const std::span sequences(aligned<GatherSequence>(buffers.workspace),
                            static_cast<std::size_t>(plan.reads.batches));
  std::int64_t tokens = 0;
  if (Status status = resolve_reads(plan.reads, {buffers.block_tables, buffers.seq_lens, buffers.seq_offset},
                                    plan.op, buffers.error_record, sequences, tokens);
      !status.ok() || tokens == 0) {
    return status;
  }
  move_paged(context, kernels.copy, plan.key, plan.value, tokens,
             [&](std::int64_t begin, std::int64_t end, const PagedSide& side, cpu::Mover& mover) {
               const bool key = &side == &plan.key;
               move_tokens(plan, buffers, sequences, begin, end, side,
                           key ? buffers.key_cache : buffers.value_cache, key ? buffers.key : buffers.value,
                           mover);
             });
  return {};
}

}  // namespace

std::span<const GatherPaKvCachePlan::ImplType> gather_pa_kv_cache_cpu() {
  return cpu_implementations<PlanT, Buffers, run>();
}

}  // namespace kvferry::internal
