// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "backends/cpu/move.hpp"
#include "backends/cpu/parallel_for.hpp"
#include "core/error_record.hpp"
#include "ops/cpu_implementations.hpp"
#include "ops/index_entries.hpp"
#include "ops/transfer_layers/transfer_layers_plan.hpp"

namespace kvferry::internal {
namespace {

using PlanT = TransferLayersPlan;
using Buffers = TransferLayersBuffers;

bool in_range(const PlanT& plan, std::int64_t id) {
  return id >= 0 && id < plan.blocks;
}
// A negative id is padding where the pools are written.
bool is_bad(const PlanT& plan, std::int64_t id) {
  return plan.to_chunk ? !in_range(plan, id) : id >= plan.blocks;
}

// The entries that are in range, sorted.
std::span<IndexUse> sorted_uses(const PlanT& plan, const Buffers& buffers) {
  auto* uses = aligned<IndexUse>(buffers.workspace);
  std::size_t count = 0;
  for (std::int64_t i = 0; i < plan.entries; ++i) {
    const std::int64_t id = plan.block_ids.at(buffers.block_ids, i);
    if (in_range(plan, id)) uses[count++] = {id, i};
  }
  sort_uses({uses, count});
  return {uses, count};
}

void report(const PlanT& plan, const Buffers& buffers) {
  ErrorRecord record;  // of this call alone
  const auto note = [&record](std::int64_t entry, std::int64_t id, std::uint32_t which) {
    if (record.bad++ > 0 && record.batch < entry) return;
    record.batch = entry;
    record.id = id;
    record.which = which;
    record.op = static_cast<std::uint32_t>(Operator::kTransferLayers);
  };
  for (std::int64_t i = 0; i < plan.entries; ++i) {
    const std::int64_t id = plan.block_ids.at(buffers.block_ids, i);
    if (is_bad(plan, id)) note(i, id, plan.to_chunk ? kBadSource : kBadDestination);
  }
  if (plan.looks_for_repeats()) {
    const std::span<IndexUse> uses = sorted_uses(plan, buffers);
    for (std::size_t i = 1; i < uses.size(); ++i) {
      if (uses[i].index == uses[i - 1].index) note(uses[i].entry, uses[i].index, kBadDuplicate);
    }
  }
  add_to(*buffers.error_record, record);
}

// IndexPolicy::kReject.
Status reject(const PlanT& plan, const Buffers& buffers) {
  for (std::int64_t i = 0; i < plan.entries; ++i) {
    const std::int64_t id = plan.block_ids.at(buffers.block_ids, i);
    if (!is_bad(plan, id)) continue;
    return {StatusCode::kIndex,
            fmt::format("transfer_layers: block_ids: index {} is id {}, expected {}{} (blocks of a pool)", i,
                        id, plan.to_chunk ? "0 to " : "< ", plan.blocks - (plan.to_chunk ? 1 : 0))};
  }
  if (!plan.looks_for_repeats()) return {};
  const IndexUse* repeat = first_repeat(sorted_uses(plan, buffers));
  if (repeat == nullptr) return {};
  return {StatusCode::kIndex,
          fmt::format("transfer_layers: block_ids: index {} is id {}, expected one that no other entry has "
                      "(index {} has it)",
                      repeat->entry, repeat->index, (repeat - 1)->entry)};
}

// Slots [begin, end) of all blocks in the order of the chunk.
void move_slots(const PlanT& plan, const Buffers& buffers, const cpu::CopyKernels& kernels, bool nontemporal,
                std::int64_t begin, std::int64_t end) {
  std::byte* const chunk = static_cast<std::byte*>(buffers.chunk) + plan.chunk_base;
  const std::int64_t inner = plan.page_first ? plan.layers : plan.entries;
  std::optional<cpu::Mover> mover;  // renewed where the strides change, which is almost never
  const TokenMove* move = nullptr;
  while (begin < end) {
    const std::int64_t block = begin / plan.block_size, slot = begin % plan.block_size;
    const std::int64_t tokens = std::min(plan.block_size - slot, end - begin);
    begin += tokens;
    const std::int64_t part = block % plan.parts, pair = block / plan.parts;
    const std::int64_t layer = plan.page_first ? pair % inner : pair / inner;
    const std::int64_t entry = plan.page_first ? pair / inner : pair % inner;
    const std::int64_t id = plan.block_ids.at(buffers.block_ids, entry);
    if (!plan.to_chunk && !in_range(plan, id)) continue;

    const PlanT::Pool& pool = plan.pools[static_cast<std::size_t>(layer * plan.parts + part)];
    if (move != &plan.moves[pool.move]) {
      move = &plan.moves[pool.move];
      mover.emplace(*move, kernels, nontemporal);
    }
    std::byte* const place =
        chunk + layer * plan.layer_step + entry * plan.entry_step + part * plan.part_step;
    std::byte* const data =
        static_cast<std::byte*>((part == 0 ? buffers.key_caches : buffers.value_caches)[layer]);
    const std::int64_t at_source = slot * move->src_token_step, at_target = slot * move->dst_token_step;
    if (!in_range(plan, id)) {
      mover->zero(place + at_target, tokens);
      continue;
    }
    std::byte* const home = data + pool.base + id * pool.block_step;
    plan.to_chunk ? mover->copy(home + at_source, place + at_target, tokens)
                  : mover->copy(place + at_source, home + at_target, tokens);
  }
}

Status run(const PlanT& plan, const Buffers& buffers, ContextState& context, const cpu::CpuKernels& kernels) {
  if (plan.nothing_to_do()) return {};
  if (plan.policy == IndexPolicy::kReject) {
    if (Status status = reject(plan, buffers); !status.ok()) return status;
  } else if (plan.policy == IndexPolicy::kReport && buffers.error_record != nullptr) {
    report(plan, buffers);
  }
  const cpu::Split split = cpu::split(plan.units(), plan.moves.front().token_bytes, context.threads);
  const bool nontemporal = cpu::use_nontemporal(split.bytes, context.options.streaming);
  cpu::parallel_for(context, split.claims, [&](std::int64_t claim) {
    const std::int64_t begin = claim * split.units_per_claim;
    move_slots(plan, buffers, kernels.copy, nontemporal, begin,
               std::min(begin + split.units_per_claim, plan.units()));
  });
  return {};
}

}  // namespace

std::span<const TransferLayersPlan::ImplType> transfer_layers_cpu() {
  return cpu_implementations<PlanT, Buffers, run>();
}

}  // namespace kvferry::internal
