// SPDX-License-Identifier: Apache-2.0
#include "core/checked_math.hpp"
#include "ops/cuda_implementation.hpp"
#include "ops/scatter_pa_kv_cache/scatter_pa_kv_cache_plan.hpp"

namespace kvferry::internal {
namespace {

using PlanT = ScatterPaKvCachePlan;
using Buffers = ScatterPaKvCacheBuffers;

std::string why_not(const PlanT& plan) {
  for (const auto& [name, side] : {std::pair{"key", &plan.key}, std::pair{"value", &plan.value}}) {
    const std::string reason = cuda_cannot_move(side->move);
    if (!reason.empty()) return fmt::format("{}: {}", name, reason);
  }
  return {};
}

Status report(const PlanT& plan, const Buffers& buffers, cuda::Queue& queue) {
  using Report = cuda::ScatterReport;
  Report::Params params{};
  params.slots = cuda_indices(plan.slot_mapping, buffers.slot_mapping);
  params.tokens = plan.tokens;
  params.uses = cuda::FirstUse::at(
      cuda::DevicePtr<cuda::FirstUse::Place>::at(aligned<cuda::FirstUse::Place>(buffers.workspace)),
      plan.tokens);
  params.record = cuda::DevicePtr<cuda::Record>::at(reinterpret_cast<cuda::Record*>(buffers.error_record));
  if (plan.key.active) params.caches[params.cache_count++] = {plan.key_slots, kBadKey};
  if (plan.value.active) params.caches[params.cache_count++] = {plan.value_slots, kBadValue};
  params.op = static_cast<std::uint32_t>(plan.op);
  return queue.launch<Report>(plan.op, params, 1);
}

// Tokens of a task: so few that there is a task for every block that is resident, since the tokens of a
// decode step are few.
std::uint32_t task_shift(const PlanT& plan, const cuda::Queue& queue, std::int64_t sides) {
  const std::int64_t token_bytes = std::max(plan.key.move.token_bytes, plan.value.move.token_bytes);
  const std::int64_t resident = queue.multiprocessors() * std::int64_t{cuda::PagedScatter::kMinBlocks};
  std::uint32_t shift = cuda_task_shift(queue.tuning(), token_bytes, cuda::PagedScatter::kMostTokens);
  while (shift > 0 && (plan.tokens >> shift) < ceil_div(resident, sides)) --shift;
  return shift;
}

// Adds a nest of a side that has one, and blocks to write to.
void add_side(cuda::PagedScatter::Params& params, const PagedSide& side, std::size_t nest, std::int64_t slots,
              const void* rows, void* cache) {
  if (slots == 0 || nest >= side.move.nests.size()) return;
  const Nest& from = side.move.nests[nest];
  cuda::PagedScatterSide& to = params.sides[params.side_count++];
  to.rows = cuda::DevicePtr<const std::uint8_t>::at(static_cast<const std::uint8_t*>(rows) + side.row_base +
                                                    from.src_base);
  to.cache =
      cuda::DevicePtr<std::uint8_t>::at(static_cast<std::uint8_t*>(cache) + side.cache_base + from.dst_base);
  to.slots = slots;
  to.block_step = side.block_step;
  to.nest = cuda_nest(side.move, from);
}

Status run(const PlanT& plan, const Buffers& given, cuda::Queue& queue) {
  if (!plan.key.active && !plan.value.active) return {};
  Buffers buffers = given;
  DevicePointers device(queue, plan.op);
  buffers.key = device.of(given.key, plan.pinned.key, "key");
  buffers.key_cache = device.of(given.key_cache, plan.pinned.key_cache, "key_cache");
  buffers.slot_mapping = device.of(given.slot_mapping, plan.pinned.slot_mapping, "slot_mapping");
  buffers.value = device.of(given.value, plan.pinned.value, "value");
  buffers.value_cache = device.of(given.value_cache, plan.pinned.value_cache, "value_cache");
  if (!device.status().ok()) return device.status();
  if (plan.policy == IndexPolicy::kReport && buffers.error_record != nullptr) {
    if (Status status = report(plan, buffers, queue); !status.ok()) return status;
  }
  // Almost always one nest a side, and one launch.
  const std::size_t nests = std::max(plan.key.move.nests.size(), plan.value.move.nests.size());
  for (std::size_t n = 0; n < nests; ++n) {
    cuda::PagedScatter::Params params{};
    params.slots = cuda_indices(plan.slot_mapping, buffers.slot_mapping);
    params.tokens = plan.tokens;
    params.block_size = plan.block_size;
    add_side(params, plan.key, n, plan.key_slots, buffers.key, buffers.key_cache);
    add_side(params, plan.value, n, plan.value_slots, buffers.value, buffers.value_cache);
    if (params.side_count == 0) continue;
    params.task_shift = task_shift(plan, queue, params.side_count);
    const std::int64_t units = (((plan.tokens - 1) >> params.task_shift) + 1) * params.side_count;
    const bool from_host = plan.pinned.key || plan.pinned.value;
    if (Status status = queue.launch<cuda::PagedScatter>(plan.op, params, units, from_host); !status.ok())
      return status;
  }
  return {};
}

}  // namespace

std::span<const ScatterPaKvCachePlan::ImplType> scatter_pa_kv_cache_cuda() {
  return cuda_implementation<PlanT, Buffers, why_not, run>();
}

}  // namespace kvferry::internal
