// SPDX-License-Identifier: Apache-2.0
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_plan.hpp"
#include "ops/paged_cuda.hpp"

namespace kvferry::internal {
namespace {

using PlanT = GatherPaKvCachePlan;
using Buffers = GatherPaKvCacheBuffers;

std::string why_not(const PlanT& plan) {
  for (const auto& [name, side] : {std::pair{"key", &plan.key}, std::pair{"value", &plan.value}}) {
    const std::string reason = cuda_cannot_move(side->move);
    if (!reason.empty()) return fmt::format("{}: {}", name, reason);
  }
  return {};
}

cuda::PagedGatherSide side_of(const PagedSide& side, const Nest& nest, const void* cache, void* rows) {
  cuda::PagedGatherSide to{};
  if (side.blocks > 0) {
    to.cache = cuda::DevicePtr<const std::uint8_t>::at(static_cast<const std::uint8_t*>(cache) +
                                                       side.cache_base + nest.src_base);
  }
  to.rows =
      cuda::DevicePtr<std::uint8_t>::at(static_cast<std::uint8_t*>(rows) + side.row_base + nest.dst_base);
  to.blocks = side.blocks;
  to.block_step = side.block_step;
  to.nest = cuda_nest(side.move, nest);
  return to;
}

Status run(const PlanT& plan, const Buffers& given, cuda::Queue& queue) {
  if ((!plan.key.active && !plan.value.active) || plan.reads.batches == 0) return {};
  Buffers buffers = given;
  DevicePointers device(queue, plan.op);
  buffers.key_cache = device.of(given.key_cache, plan.pinned.key_cache, "key_cache");
  buffers.value_cache = device.of(given.value_cache, plan.pinned.value_cache, "value_cache");
  buffers.block_tables = device.of(given.block_tables, plan.pinned.block_tables, "block_tables");
  buffers.seq_lens = device.of(given.seq_lens, plan.pinned.seq_lens, "seq_lens");
  buffers.seq_offset = device.of(given.seq_offset, plan.pinned.seq_offset, "seq_offset");
  buffers.key = device.of(given.key, plan.pinned.key, "key");
  buffers.value = device.of(given.value, plan.pinned.value, "value");
  if (!device.status().ok()) return device.status();
  const std::uint32_t shift =
      cuda_task_shift(queue.tuning(), std::max(plan.key.move.token_bytes, plan.value.move.token_bytes),
                      plan.reads.block_size);
  const auto loop = cuda_paged_loop(plan.reads, {buffers.block_tables, buffers.seq_lens, buffers.seq_offset},
                                    shift, plan.op, buffers.workspace, buffers.error_record, queue);
  if (!loop.ok()) return loop.status();
  cuda::PagedGather::Params params{};
  params.loop = loop.value();
  // Almost always one nest a side, and one launch.
  const std::size_t nests = std::max(plan.key.move.nests.size(), plan.value.move.nests.size());
  for (std::size_t n = 0; n < nests; ++n) {
    params.side_count = 0;
    if (n < plan.key.move.nests.size())
      params.sides[params.side_count++] =
          side_of(plan.key, plan.key.move.nests[n], buffers.key_cache, buffers.key);
    if (n < plan.value.move.nests.size())
      params.sides[params.side_count++] =
          side_of(plan.value, plan.value.move.nests[n], buffers.value_cache, buffers.value);
    const std::int64_t units = cuda_most_tasks(plan.reads, shift) * params.side_count;
    const bool from_host = plan.pinned.key_cache || plan.pinned.value_cache;
    if (Status status = queue.launch<cuda::PagedGather>(plan.op, params, units, from_host); !status.ok())
      return status;
  }
  return {};
}

}  // namespace

std::span<const GatherPaKvCachePlan::ImplType> gather_pa_kv_cache_cuda() {
  return cuda_implementation<PlanT, Buffers, why_not, run>();
}

}  // namespace kvferry::internal
