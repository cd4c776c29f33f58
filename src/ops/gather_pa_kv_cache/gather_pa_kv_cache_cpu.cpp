// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/checked_math.hpp"
#include "ops/cpu_implementations.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_plan.hpp"
#include "ops/paged_cpu.hpp"

namespace kvferry::internal {
namespace {

using PlanT = GatherPaKvCachePlan;
using Buffers = GatherPaKvCacheBuffers;
__extension__ using Int128 = __int128;

// Columns this far out stay out of every table for all of their tokens: rows are fewer than 2^62.
constexpr Int128 kFarColumn = Int128{1} << 62;

// The batches after the cut at N, exact for any 64-bit lengths. Returns the tokens to move.
std::int64_t resolve(const PlanT& plan, const Buffers& buffers, std::span<GatherSequence> sequences) {
  std::int64_t run = 0, total = 0;
  for (std::int64_t i = 0; i < plan.batches; ++i) {
    std::int64_t beg = run, end = 0;
    if (plan.cumsum) {
      beg = plan.seq_lens.at(buffers.seq_lens, i);
      end = plan.seq_lens.at(buffers.seq_lens, i + 1);
    } else {
      // Clamped at N: nothing behind it is written, and a sum of int64 lengths must not wrap.
      const std::int64_t length = std::max<std::int64_t>(plan.seq_lens.at(buffers.seq_lens, i), 0);
      end = length > plan.rows - run ? plan.rows : run + length;
      run = end;
    }
    GatherSequence& s = sequences[static_cast<std::size_t>(i)];
    s = {0, 0, 0, 0, total};
    end = std::min(end, plan.rows);
    if (beg >= end) continue;
    const Int128 skipped = beg < 0 ? -Int128{beg} : 0;  // tokens whose row is negative
    s.row = std::max<std::int64_t>(beg, 0);
    if (s.row >= end) continue;
    s.tokens = end - s.row;
    const std::int64_t shift =
        plan.has_offset ? plan.seq_offset.at(buffers.seq_offset, i) / plan.block_size : 0;
    s.column =
        static_cast<std::int64_t>(std::clamp(shift + skipped / plan.block_size, -kFarColumn, kFarColumn));
    s.slot = static_cast<std::int64_t>(skipped % plan.block_size);
    total += s.tokens;
  }
  return total;
}

// What one visited table entry is.
struct Entry {
  std::int64_t id = 0;
  std::uint32_t bad = 0;  // kBad* bits, of active pairs only
};

Entry look_up(const PlanT& plan, const Buffers& buffers, std::int64_t batch, std::int64_t column) {
  Entry entry;
  const std::uint32_t active = (plan.key.active ? kBadKey : 0) | (plan.value.active ? kBadValue : 0);
  if (column < 0 || column >= plan.table_width) {  // before the table is read
    entry.bad = active | kBadColumn;
    return entry;
  }
  entry.id = plan.block_tables.at(buffers.block_tables, batch, column);
  if (entry.id < 0 || entry.id >= plan.key.blocks) entry.bad |= active & kBadKey;
  if (entry.id < 0 || entry.id >= plan.value.blocks) entry.bad |= active & kBadValue;
  return entry;
}

// Calls found(batch, column, entry) for each bad visited entry in ascending (batch, column) while it returns
// true.
template <class Found>
void for_each_bad_entry(const PlanT& plan, const Buffers& buffers, std::span<const GatherSequence> sequences,
                        Found found) {
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const GatherSequence& s = sequences[i];
    if (s.tokens == 0) continue;
    const std::int64_t columns = (s.slot + s.tokens - 1) / plan.block_size + 1;
    for (std::int64_t c = s.column; c < s.column + columns; ++c) {
      const auto batch = static_cast<std::int64_t>(i);
      const Entry entry = look_up(plan, buffers, batch, c);
      if (entry.bad != 0 && !found(batch, c, entry)) return;
    }
  }
}

void report(const PlanT& plan, const Buffers& buffers, std::span<const GatherSequence> sequences) {
  ErrorRecord& record = *buffers.error_record;
  for_each_bad_entry(
      plan, buffers, sequences, [&](std::int64_t batch, std::int64_t column, const Entry& entry) {
        const bool first = record.bad == 0;
        record.bad += ((entry.bad & kBadKey) != 0 ? 1 : 0) + ((entry.bad & kBadValue) != 0 ? 1 : 0);
        if (first || std::pair(batch, column) < std::pair(record.batch, record.column)) {
          record.batch = batch;
          record.column = column;
          record.id = entry.id;
          record.which = entry.bad;
          record.op = static_cast<std::uint32_t>(Operator::kGatherPaKvCache);
        }
        return true;
      });
}

template <class... T>
Status refuse(fmt::format_string<T...> format, T&&... args) {
  return {StatusCode::kIndex, "gather_pa_kv_cache: " + fmt::format(format, std::forward<T>(args)...)};
}

// IndexPolicy::kReject.
Status reject(const PlanT& plan, const Buffers& buffers, std::span<const GatherSequence> sequences) {
  const auto length = [&](std::int64_t i) { return plan.seq_lens.at(buffers.seq_lens, i); };
  if (plan.cumsum) {
    if (length(0) < 0) return refuse("seq_lens: the first sum, index 0, is {}, expected >= 0", length(0));
    for (std::int64_t i = 0; i < plan.batches; ++i) {
      if (length(i + 1) < length(i)) {
        return refuse("seq_lens: index {} is {}, expected >= {} (the sum before)", i + 1, length(i + 1),
                      length(i));
      }
    }
  } else {
    for (std::int64_t i = 0; i < plan.batches; ++i) {
      if (length(i) < 0) return refuse("seq_lens: index {} is {}, expected >= 0", i, length(i));
    }
  }
  Status status;
  for_each_bad_entry(
      plan, buffers, sequences, [&](std::int64_t batch, std::int64_t column, const Entry& entry) {
        if ((entry.bad & kBadColumn) != 0) {
          status = refuse("block_tables: batch {} needs column {}, expected 0 to {}", batch, column,
                          plan.table_width - 1);
        } else {
          const bool key = (entry.bad & kBadKey) != 0;
          status = refuse("block_tables: batch {} column {} is id {}, expected 0 to {} (blocks of {})", batch,
                          column, entry.id, (key ? plan.key.blocks : plan.value.blocks) - 1,
                          key ? "key_cache" : "value_cache");
        }
        return false;
      });
  return status;
}

// Tokens [begin, end) of all batches in a row, for one of K and V.
void move_tokens(const PlanT& plan, const Buffers& buffers, std::span<const GatherSequence> sequences,
                 std::int64_t begin, std::int64_t end, const PagedSide& side, const void* cache_data,
                 void* rows_data, cpu::Mover& mover) {
  const std::byte* cache = static_cast<const std::byte*>(cache_data) + side.cache_base;
  std::byte* rows = static_cast<std::byte*>(rows_data) + side.row_base;
  // The last sequence that starts at or before `begin`; those of no tokens in front of it are passed over.
  auto s = std::upper_bound(sequences.begin(), sequences.end(), begin,
                            [](std::int64_t token, const GatherSequence& q) { return token < q.start; }) -
           1;
  while (begin < end) {
    const std::int64_t done = begin - s->start;
    if (done == s->tokens) {
      ++s;
      continue;
    }
    const std::int64_t position = s->slot + done, slot = position % plan.block_size;
    const std::int64_t column = s->column + position / plan.block_size;
    const std::int64_t tokens = std::min({plan.block_size - slot, s->tokens - done, end - begin});
    std::byte* dst = rows + (s->row + done) * side.row_step;
    std::int64_t id = -1;
    if (column >= 0 && column < plan.table_width) {
      id = plan.block_tables.at(buffers.block_tables, s - sequences.begin(), column);
    }
    if (id >= 0 && id < side.blocks) {
      mover.copy(cache + id * side.block_step + slot * side.slot_step, dst, tokens);
    } else {
      mover.zero(dst, tokens);
    }
    begin += tokens;
  }
}

Status run(const PlanT& plan, const Buffers& buffers, ContextState& context,
           const cpu::CopyKernels& kernels) {
  if (!plan.key.active && !plan.value.active) return {};
  const std::span sequences(aligned<GatherSequence>(buffers.workspace),
                            static_cast<std::size_t>(plan.batches));
  const std::int64_t tokens = resolve(plan, buffers, sequences);
  if (plan.policy == IndexPolicy::kReject) {
    if (Status status = reject(plan, buffers, sequences); !status.ok()) return status;
  } else if (plan.policy == IndexPolicy::kReport && buffers.error_record != nullptr) {
    report(plan, buffers, sequences);
  }
  if (tokens == 0) return {};

  move_paged(context, kernels, plan.key, plan.value, tokens,
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
  return kCpuImplementations<PlanT, Buffers, run>;
}

}  // namespace kvferry::internal
