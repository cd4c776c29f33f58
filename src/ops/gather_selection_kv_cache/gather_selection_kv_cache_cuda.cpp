// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/cuda_implementation.hpp"
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_plan.hpp"

namespace kvferry::internal {
namespace {

using PlanT = GatherSelectionKvCachePlan;
using Buffers = GatherSelectionKvCacheBuffers;
using cuda::DevicePtr;

// Tables of the kernels have at most 2^31 entries, and are at most half full.
constexpr std::int64_t kMostIds = std::int64_t{1} << 30;

std::string why_not(const PlanT& plan) {
  for (const auto& [name, side] : {std::pair{"kv", &plan.kv}, std::pair{"rope", &plan.rope}}) {
    for (const TokenMove* move : {&side->fetch, &side->move}) {
      const std::string reason = cuda_cannot_move(*move);
      if (!reason.empty()) return fmt::format("{}: {}", name, reason);
    }
  }
  if (plan.rows > kMostIds) return fmt::format("{} rows, expected at most {}", plan.rows, kMostIds);
  if (plan.k > kMostIds / std::max<std::int64_t>(plan.rows_per_batch, 1)) {
    return fmt::format("{} rows of {} ids a batch, expected at most {} together", plan.rows_per_batch, plan.k,
                       kMostIds);
  }
  return {};
}

bool sums_apart(const PlanT& plan) {
  return plan.rows > cuda::SelectionCopy::kMostRows;
}

template <class T>
DevicePtr<T> part(const Workspace& workspace, std::int64_t offset) {
  return DevicePtr<T>::at(reinterpret_cast<T*>(aligned<std::byte>(workspace) + offset));
}

Buffers on_device(const PlanT& plan, Buffers b, DevicePointers& device) {
  const PlanT::Pinned& pinned = plan.pinned;
  b.selection_k_rope = device.of(b.selection_k_rope, pinned.selection_k_rope, "selection_k_rope");
  b.selection_kv_cache = device.of(b.selection_kv_cache, pinned.selection_kv_cache, "selection_kv_cache");
  b.selection_kv_block_table =
      device.of(b.selection_kv_block_table, pinned.selection_table, "selection_kv_block_table");
  b.selection_kv_block_status =
      device.of(b.selection_kv_block_status, pinned.status, "selection_kv_block_status");
  b.selection_topk_indices = device.of(b.selection_topk_indices, pinned.topk, "selection_topk_indices");
  b.full_k_rope = device.of(b.full_k_rope, pinned.full_k_rope, "full_k_rope");
  b.full_kv_cache = device.of(b.full_kv_cache, pinned.full_kv_cache, "full_kv_cache");
  b.full_kv_block_table = device.of(b.full_kv_block_table, pinned.full_table, "full_kv_block_table");
  b.full_kv_actual_seq = device.of(b.full_kv_actual_seq, pinned.kv_len, "full_kv_actual_seq");
  b.full_q_actual_seq = device.of(b.full_q_actual_seq, pinned.q_len, "full_q_actual_seq");
  b.selection_kv_actual_seq =
      device.of(b.selection_kv_actual_seq, pinned.actual_seq, "selection_kv_actual_seq");
  b.status_row = device.of(b.status_row, pinned.status_row, "status_row");
  b.counters = device.of(b.counters, pinned.counters, "counters");
  b.fetch_counts = device.of(b.fetch_counts, pinned.fetch_counts, "fetch_counts");
  return b;
}

cuda::Int32Rows rows_of(const RowsView& view, const void* data) {
  cuda::Int32Rows rows{};
  if (data != nullptr)
    rows.data = DevicePtr<std::uint8_t>::at(
        const_cast<std::uint8_t*>(static_cast<const std::uint8_t*>(data)) + view.base);
  rows.batch_step = view.batch_step;
  rows.row_step = view.row_step;
  rows.column_step = view.column_step;
  rows.rows_per_batch = view.rows_per_batch;
  return rows;
}

cuda::BlockPages pages_of(const PagedBlocks& blocks) {
  return {blocks.pages, blocks.columns, static_cast<std::uint32_t>(blocks.per_page)};
}

cuda::SelectionSchedule schedule_of(const PlanT& plan, const Workspace& workspace) {
  cuda::SelectionSchedule schedule{};
  schedule.plan_id = part<std::uint64_t>(workspace, 0);
  schedule.leaving = part<cuda::BlockCopy>(workspace, plan.cuda_parts.leaving);
  schedule.copies = part<cuda::BlockCopy>(workspace, plan.cuda_parts.copies);
  schedule.counts = part<std::int32_t>(workspace, plan.cuda_parts.counts);
  return schedule;
}

Status launch_states(const PlanT& plan, const Buffers& buffers, bool reports, cuda::Queue& queue) {
  const SelectionCudaWorkspace& parts = plan.cuda_parts;
  cuda::SelectionStates::Params p{};
  p.status_row = cuda_indices(plan.status_row, buffers.status_row);
  p.states = part<std::int32_t>(buffers.workspace, parts.states);
  p.table = part<std::int32_t>(buffers.workspace, parts.state_table);
  if (reports)
    p.record = part<cuda::Record>(buffers.workspace,
                                  parts.records + plan.batches * std::int64_t{sizeof(cuda::Record)});
  p.rows = plan.rows;
  p.status_rows = plan.status_rows;
  p.table_bits = cuda::id_table_bits(plan.rows);
  p.op = static_cast<std::uint32_t>(plan.op);
  return queue.launch<cuda::SelectionStates>(plan.op, p, 1);
}

Status launch_planner(const PlanT& plan, const Buffers& buffers, bool reports, cuda::Queue& queue) {
  const SelectionCudaWorkspace& parts = plan.cuda_parts;
  cuda::SelectionPlanner::Params p{};
  p.status = rows_of(plan.state, buffers.selection_kv_block_status);
  p.topk = rows_of(plan.topk, buffers.selection_topk_indices);
  p.selection_table = cuda_indices(plan.selection_table, buffers.selection_kv_block_table);
  p.full_table = cuda_indices(plan.full_table, buffers.full_kv_block_table);
  p.kv_len = cuda_indices(plan.kv_len, buffers.full_kv_actual_seq);
  p.reads_q = plan.q_len_mode != QLenMode::kAllRows;
  p.q_is_sum = plan.q_len_mode == QLenMode::kPrefixSum;
  if (p.reads_q) p.q_len = cuda_indices(plan.q_len, buffers.full_q_actual_seq);
  p.actual_seq = cuda_outputs(plan.actual_seq, buffers.selection_kv_actual_seq);
  p.has_counters = plan.has_counters;
  if (p.has_counters) p.counters = cuda_outputs(plan.counters, buffers.counters);
  p.has_fetch_counts = plan.has_fetch_counts;
  if (p.has_fetch_counts) p.fetch_counts = cuda_outputs(plan.fetch_counts, buffers.fetch_counts);
  p.selection = pages_of(plan.selection);
  p.full = pages_of(plan.full);
  p.schedule = schedule_of(plan, buffers.workspace);
  if (plan.has_status_row) p.states = part<std::int32_t>(buffers.workspace, parts.states);
  p.tables = part<std::int32_t>(buffers.workspace, parts.tables);
  p.groups = part<std::int32_t>(buffers.workspace, parts.groups);
  if (reports) p.records = part<cuda::Record>(buffers.workspace, parts.records);
  p.batches = plan.batches;
  p.rows_per_batch = plan.rows_per_batch;
  p.output_rows = plan.output_rows;
  p.block_tokens = plan.block_tokens;
  p.plan_id = plan.id;
  p.k = static_cast<std::uint32_t>(plan.k);
  p.table_bits = cuda::id_table_bits(plan.k);
  p.group_bits = cuda::id_table_bits(plan.rows_per_batch * plan.k);
  p.op = static_cast<std::uint32_t>(plan.op);
  return queue.launch<cuda::SelectionPlanner>(plan.op, p, std::max<std::int64_t>(plan.batches, 1));
}

Status launch_finish(const PlanT& plan, const Buffers& buffers, bool reports, cuda::Queue& queue) {
  const SelectionCudaWorkspace& parts = plan.cuda_parts;
  cuda::SelectionFinish::Params p{};
  p.counts = part<std::int32_t>(buffers.workspace, parts.counts);
  if (sums_apart(plan)) p.ends = part<std::int64_t>(buffers.workspace, parts.ends);
  p.rows = plan.rows;
  if (reports) {
    p.records = part<cuda::Record>(buffers.workspace, parts.records);
    p.record_count = plan.batches + (plan.has_status_row ? 1 : 0);
    p.record = DevicePtr<cuda::Record>::at(reinterpret_cast<cuda::Record*>(buffers.error_record));
  }
  return queue.launch<cuda::SelectionFinish>(plan.op, p, 1);
}

Status make_schedule(const PlanT& plan, const Buffers& buffers, cuda::Queue& queue) {
  const bool reports =
      plan.policy == IndexPolicy::kReport && buffers.error_record != nullptr && plan.rows > 0;
  Status status;
  if (plan.has_status_row && plan.rows > 0) status = launch_states(plan, buffers, reports, queue);
  if (status.ok()) status = launch_planner(plan, buffers, reports, queue);
  if (status.ok() && (reports || sums_apart(plan))) status = launch_finish(plan, buffers, reports, queue);
  return status;
}

cuda::SelectionCopySide side_of(const PlanT& plan, const SelectionSide& side, const void* full,
                                void* selection) {
  cuda::SelectionCopySide to{};
  if (plan.full.pages > 0) {
    to.full = DevicePtr<const std::uint8_t>::at(static_cast<const std::uint8_t*>(full) + side.full.base);
  }
  to.selection = DevicePtr<std::uint8_t>::at(static_cast<std::uint8_t*>(selection) + side.selection.base);
  to.full_page_step = side.full.page_step;
  to.full_block_step = plan.block_tokens * side.full.token_step;
  to.selection_page_step = side.selection.page_step;
  to.selection_block_step = plan.block_tokens * side.selection.token_step;
  to.fetch = cuda_nest(side.fetch, side.fetch.nests.front());
  to.move = cuda_nest(side.move, side.move.nests.front());
  return to;
}

// Tokens of a part of a block; its logarithm. Partial blocks take as many parts as whole ones, so that there
// must not be many that are empty.
std::uint32_t part_shift(const cuda::Tuning& tuning, std::int64_t token_bytes, std::int64_t block_tokens) {
  constexpr std::int64_t kMostParts = 1024, kMostBytes = std::int64_t{1} << 30;
  std::uint32_t shift = cuda_shift_of(tuning.warp_task_bytes, token_bytes, block_tokens);
  while (block_tokens >> shift > kMostParts && token_bytes << (shift + 1) <= kMostBytes) ++shift;
  return shift;
}

Status copy_blocks(const PlanT& plan, const Buffers& buffers, cuda::Queue& queue) {
  cuda::SelectionCopy::Params p{};
  if (plan.kv.active)
    p.sides[p.side_count++] = side_of(plan, plan.kv, buffers.full_kv_cache, buffers.selection_kv_cache);
  if (plan.rope.active)
    p.sides[p.side_count++] = side_of(plan, plan.rope, buffers.full_k_rope, buffers.selection_k_rope);
  if (p.side_count == 0 || plan.rows == 0) return {};
  p.schedule = schedule_of(plan, buffers.workspace);
  if (sums_apart(plan)) p.ends = part<std::int64_t>(buffers.workspace, plan.cuda_parts.ends);
  p.rows = plan.rows;
  p.rows_per_batch = plan.rows_per_batch;
  p.k = static_cast<std::uint32_t>(plan.k);
  p.plan_id = plan.id;
  p.block_tokens = static_cast<std::uint32_t>(plan.block_tokens);
  const std::int64_t token_bytes = plan.kv.fetch.token_bytes + plan.rope.fetch.token_bytes;
  p.task_shift = part_shift(queue.tuning(), token_bytes, plan.block_tokens);
  const std::int64_t parts = ((plan.block_tokens - 1) >> p.task_shift) + 1;
  const std::int64_t copies = std::min(plan.rows * plan.k, std::int64_t{1} << 31);
  const std::int64_t units = ceil_div(copies * parts, cuda::SelectionCopy::kWarps);
  const bool from_host = plan.pinned.full_kv_cache || plan.pinned.full_k_rope;
  return queue.launch<cuda::SelectionCopy>(plan.op, p, units, from_host);
}

Status run(const PlanT& plan, const SelectionCall& call, cuda::Queue& queue) {
  DevicePointers device(queue, plan.op);
  const Buffers buffers = on_device(plan, call.buffers, device);
  if (!device.status().ok()) return device.status();
  Status status;
  if (call.schedules) status = make_schedule(plan, buffers, queue);
  if (status.ok() && call.copies) status = copy_blocks(plan, buffers, queue);
  return status;
}

}  // namespace

std::span<const GatherSelectionKvCachePlan::ImplType> gather_selection_kv_cache_cuda() {
  return cuda_implementation<PlanT, SelectionCall, why_not, run>();
}

bool lay_out_cuda_workspace(GatherSelectionKvCachePlan& plan) {
  if (!why_not(plan).empty()) return true;  // is refused for that
  PartsLayout layout(64);
  SelectionCudaWorkspace& parts = plan.cuda_parts;
  const Checked copies = Checked(plan.rows) * plan.k;
  parts.leaving = layout.add(plan.rows, sizeof(cuda::BlockCopy));
  parts.copies = layout.add(copies, sizeof(cuda::BlockCopy));
  parts.counts = layout.add(plan.rows, 4);
  if (sums_apart(plan)) parts.ends = layout.add(plan.rows + 1, 8);
  if (plan.policy == IndexPolicy::kReport) parts.records = layout.add(plan.batches + 1, sizeof(cuda::Record));
  if (plan.has_status_row) {
    parts.states = layout.add(plan.rows, 4);
    if (plan.rows > cuda::SelectionStates::kSharedRows)
      parts.state_table = layout.add(std::int64_t{2} << cuda::id_table_bits(plan.rows), 4);
  }
  if (plan.k > cuda::SelectionPlanner::kSharedIds)
    parts.tables = layout.add(Checked(plan.batches) * cuda::SelectionPlanner::words_of_tables(plan.k), 4);
  if (plan.rows_per_batch > 1) {
    const std::uint32_t bits = cuda::id_table_bits(plan.rows_per_batch * plan.k);
    parts.groups = layout.add(Checked(plan.batches) * (std::int64_t{2} << bits), 4);
  }
  const Checked total = Checked(layout.end()) + kWorkspaceAlign;
  plan.workspace_bytes = total.value;
  return !layout.overflow() && !total.overflow;
}

}  // namespace kvferry::internal
