// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "core/checked_math.hpp"
#include "core/error_record.hpp"
#include "ops/cpu_implementations.hpp"
#include "ops/index_entries.hpp"
#include "ops/paged_cpu.hpp"
#include "ops/scatter_pa_kv_cache/scatter_pa_kv_cache_plan.hpp"

namespace kvferry::internal {
namespace {

using PlanT = ScatterPaKvCachePlan;
using Buffers = ScatterPaKvCacheBuffers;

// kBad* bits of the active pairs whose cache has no such slot. Negative slots are padding, not bad.
std::uint32_t out_of_range(const PlanT& plan, std::int64_t slot) {
  std::uint32_t bad = 0;
  if (plan.key.active && slot >= plan.key_slots) bad |= kBadKey;
  if (plan.value.active && slot >= plan.value_slots) bad |= kBadValue;
  return bad;
}

std::uint32_t active_pairs(const PlanT& plan) {
  return (plan.key.active ? kBadKey : 0) | (plan.value.active ? kBadValue : 0);
}

// The tokens whose slot is in range for some cache, sorted.
std::span<IndexUse> sorted_uses(const PlanT& plan, const Buffers& buffers) {
  auto* uses = aligned<IndexUse>(buffers.workspace);
  std::size_t count = 0;
  for (std::int64_t t = 0; t < plan.tokens; ++t) {
    const std::int64_t slot = plan.slot_mapping.at(buffers.slot_mapping, t);
    if (slot >= 0 && out_of_range(plan, slot) != active_pairs(plan)) uses[count++] = {slot, t};
  }
  sort_uses({uses, count});
  return {uses, count};
}

void record_entry(ErrorRecord& record, std::int64_t token, std::int64_t slot, std::uint32_t bits) {
  const bool first = record.bad == 0;
  record.bad += static_cast<std::uint64_t>(std::popcount(bits & (kBadKey | kBadValue)));
  if (first || token < record.batch) {
    record.batch = token;
    record.column = 0;
    record.id = slot;
    record.which = bits;
    record.op = static_cast<std::uint32_t>(Operator::kScatterPaKvCache);
  } else if (token == record.batch) {
    record.which |= bits;  // out of range for one cache, repeated in the other
  }
}

void report(const PlanT& plan, const Buffers& buffers) {
  // Of this call alone: bits of one token meet here, never with those of an earlier call's token.
  ErrorRecord record;
  for (std::int64_t t = 0; t < plan.tokens; ++t) {
    const std::int64_t slot = plan.slot_mapping.at(buffers.slot_mapping, t);
    if (const std::uint32_t bad = slot >= 0 ? out_of_range(plan, slot) : 0; bad != 0)
      record_entry(record, t, slot, bad);
  }
  const std::span<IndexUse> uses = sorted_uses(plan, buffers);
  for (std::size_t i = 1; i < uses.size(); ++i) {
    if (uses[i].index != uses[i - 1].index) continue;
    const std::uint32_t in_range = active_pairs(plan) & ~out_of_range(plan, uses[i].index);
    record_entry(record, uses[i].entry, uses[i].index, in_range | kBadDuplicate);
  }
  add_to(*buffers.error_record, record);
}

template <class... T>
Status refuse(fmt::format_string<T...> format, T&&... args) {
  return {StatusCode::kIndex,
          "scatter_pa_kv_cache: slot_mapping: " + fmt::format(format, std::forward<T>(args)...)};
}

// IndexPolicy::kReject.
Status reject(const PlanT& plan, const Buffers& buffers) {
  for (std::int64_t t = 0; t < plan.tokens; ++t) {
    const std::int64_t slot = plan.slot_mapping.at(buffers.slot_mapping, t);
    const std::uint32_t bad = slot >= 0 ? out_of_range(plan, slot) : 0;
    if (bad == 0) continue;
    const bool key = (bad & kBadKey) != 0;
    return refuse("index {} is slot {}, expected < {} (slots of {})", t, slot,
                  key ? plan.key_slots : plan.value_slots, key ? "key_cache" : "value_cache");
  }
  const IndexUse* repeat = first_repeat(sorted_uses(plan, buffers));
  if (repeat == nullptr) return {};
  return refuse("index {} is slot {}, expected a slot that no other token has (index {} has it)",
                repeat->entry, repeat->index, (repeat - 1)->entry);
}

// Tokens [begin, end), for one of K and V. Neighbours in one block go together; every slot of a run is looked
// at.
void move_tokens(const PlanT& plan, const Buffers& buffers, std::int64_t begin, std::int64_t end,
                 const PagedSide& side, std::int64_t slots, const void* rows_data, void* cache_data,
                 cpu::Mover& mover) {
  const std::byte* rows = static_cast<const std::byte*>(rows_data) + side.row_base;
  std::byte* cache = static_cast<std::byte*>(cache_data) + side.cache_base;
  while (begin < end) {
    const std::int64_t slot = plan.slot_mapping.at(buffers.slot_mapping, begin);
    if (slot < 0 || slot >= slots) {
      ++begin;
      continue;
    }
    const std::int64_t block = slot / plan.block_size, position = slot % plan.block_size;
    const std::int64_t most = std::min(plan.block_size - position, end - begin);
    std::int64_t tokens = 1;
    while (tokens < most && plan.slot_mapping.at(buffers.slot_mapping, begin + tokens) == slot + tokens)
      ++tokens;
    mover.copy(rows + begin * side.row_step, cache + block * side.block_step + position * side.slot_step,
               tokens);
    begin += tokens;
  }
}

Status run(const PlanT& plan, const Buffers& buffers, ContextState& context, const cpu::CpuKernels& kernels) {
  if (!plan.key.active && !plan.value.active) return {};
  if (plan.policy == IndexPolicy::kReject) {
    if (Status status = reject(plan, buffers); !status.ok()) return status;
  } else if (plan.policy == IndexPolicy::kReport && buffers.error_record != nullptr) {
    report(plan, buffers);
  }
  move_paged(context, kernels.copy, plan.key, plan.value, plan.tokens,
             [&](std::int64_t begin, std::int64_t end, const PagedSide& side, cpu::Mover& mover) {
               const bool key = &side == &plan.key;
               move_tokens(plan, buffers, begin, end, side, key ? plan.key_slots : plan.value_slots,
                           key ? buffers.key : buffers.value, key ? buffers.key_cache : buffers.value_cache,
                           mover);
             });
  return {};
}

}  // namespace

std::span<const ScatterPaKvCachePlan::ImplType> scatter_pa_kv_cache_cpu() {
  return cpu_implementations<PlanT, Buffers, run>();
}

}  // namespace kvferry::internal
