// SPDX-License-Identifier: Apache-2.0
#include "ops/paged_reads.hpp"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "core/checked_math.hpp"

namespace kvferry::internal {
namespace {

__extension__ using Int128 = __int128;

// Columns this far out stay out of every table for all of their tokens: rows are fewer than 2^62.
constexpr Int128 kFarColumn = Int128{1} << 62;

// The batches after the cut at N, exact for any 64-bit lengths. Returns the tokens to read.
std::int64_t cut(const PagedReads& reads, const ReadPointers& pointers, std::span<GatherSequence> sequences) {
  std::int64_t run = 0, total = 0;
  for (std::int64_t i = 0; i < reads.batches; ++i) {
    std::int64_t beg = run, end = 0;
    if (reads.cumsum) {
      beg = reads.seq_lens.at(pointers.seq_lens, i);
      end = reads.seq_lens.at(pointers.seq_lens, i + 1);
    } else {
      // Clamped at N: nothing behind it is written, and a sum of int64 lengths must not wrap.
      const std::int64_t length = std::max<std::int64_t>(reads.seq_lens.at(pointers.seq_lens, i), 0);
      end = length > reads.rows - run ? reads.rows : run + length;
      run = end;
    }
    GatherSequence& s = sequences[static_cast<std::size_t>(i)];
    s = {0, 0, 0, 0, total};
    end = std::min(end, reads.rows);
    if (beg >= end) continue;
    const Int128 skipped = beg < 0 ? -Int128{beg} : 0;  // tokens whose row is negative
    s.row = std::max<std::int64_t>(beg, 0);
    if (s.row >= end) continue;
    s.tokens = end - s.row;
    const std::int64_t shift =
        reads.has_offset ? reads.seq_offset.at(pointers.seq_offset, i) / reads.block_size : 0;
    s.column =
        static_cast<std::int64_t>(std::clamp(shift + skipped / reads.block_size, -kFarColumn, kFarColumn));
    s.slot = static_cast<std::int64_t>(skipped % reads.block_size);
    total += s.tokens;
  }
  return total;
}

// What one visited table entry is.
struct Entry {
  std::int64_t id = 0;
  std::uint32_t bad = 0;  // kBad* bits
};

Entry look_up(const PagedReads& reads, const ReadPointers& pointers, std::int64_t batch,
              std::int64_t column) {
  Entry entry;
  const bool outside = column < 0 || column >= reads.table_width;  // before the table is read
  if (outside) {
    entry.bad = kBadColumn;
  } else {
    entry.id = reads.block_tables.at(pointers.block_tables, batch, column);
  }
  for (const PagedReads::Cache& cache : reads.used_caches()) {
    if (outside || entry.id < 0 || entry.id >= cache.blocks) entry.bad |= cache.bad_bit;
  }
  return entry;
}

// Calls found(batch, column, entry) for each bad visited entry in ascending (batch, column) while it returns
// true.
template <class Found>
void for_each_bad_entry(const PagedReads& reads, const ReadPointers& pointers,
                        std::span<const GatherSequence> sequences, Found found) {
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const GatherSequence& s = sequences[i];
    if (s.tokens == 0) continue;
    const std::int64_t columns = (s.slot + s.tokens - 1) / reads.block_size + 1;
    for (std::int64_t c = s.column; c < s.column + columns; ++c) {
      const auto batch = static_cast<std::int64_t>(i);
      const Entry entry = look_up(reads, pointers, batch, c);
      if (entry.bad != 0 && !found(batch, c, entry)) return;
    }
  }
}

void report(const PagedReads& reads, const ReadPointers& pointers, Operator op, ErrorRecord& record,
            std::span<const GatherSequence> sequences) {
  for_each_bad_entry(reads, pointers, sequences,
                     [&](std::int64_t batch, std::int64_t column, const Entry& entry) {
                       const bool first = record.bad == 0;
                       record.bad += static_cast<std::uint64_t>(std::popcount(entry.bad & ~kBadColumn));
                       if (first || std::pair(batch, column) < std::pair(record.batch, record.column)) {
                         record.batch = batch;
                         record.column = column;
                         record.id = entry.id;
                         record.which = entry.bad;
                         record.op = static_cast<std::uint32_t>(op);
                       }
                       return true;
                     });
}

// IndexPolicy::kReject.
Status reject(const PagedReads& reads, const ReadPointers& pointers, Operator op,
              std::span<const GatherSequence> sequences) {
  const auto refuse = [op]<class... T>(fmt::format_string<T...> format, T&&... args) {
    return Status(StatusCode::kIndex,
                  fmt::format("{}: {}", to_string(op), fmt::format(format, std::forward<T>(args)...)));
  };
  const auto length = [&](std::int64_t i) { return reads.seq_lens.at(pointers.seq_lens, i); };
  if (reads.cumsum) {
    if (length(0) < 0) return refuse("seq_lens: the first sum, index 0, is {}, expected >= 0", length(0));
    for (std::int64_t i = 0; i < reads.batches; ++i) {
      if (length(i + 1) < length(i)) {
        return refuse("seq_lens: index {} is {}, expected >= {} (the sum before)", i + 1, length(i + 1),
                      length(i));
      }
    }
  } else {
    for (std::int64_t i = 0; i < reads.batches; ++i) {
      if (length(i) < 0) return refuse("seq_lens: index {} is {}, expected >= 0", i, length(i));
    }
  }
  Status status;
  for_each_bad_entry(
      reads, pointers, sequences, [&](std::int64_t batch, std::int64_t column, const Entry& entry) {
        if ((entry.bad & kBadColumn) != 0) {
          status = refuse("block_tables: batch {} needs column {}, expected 0 to {}", batch, column,
                          reads.table_width - 1);
          return false;
        }
        for (const PagedReads::Cache& cache : reads.used_caches()) {
          if ((entry.bad & cache.bad_bit) == 0) continue;
          status = refuse("block_tables: batch {} column {} is id {}, expected 0 to {} (blocks of {})", batch,
                          column, entry.id, cache.blocks - 1, cache.name);
          break;
        }
        return false;
      });
  return status;
}

}  // namespace

void check_reads(Checker& check, const TensorView& block_tables, const TensorView& seq_lens,
                 const std::optional<TensorView>& seq_offset, bool cumsum, std::int64_t rows,
                 bool nothing_to_write) {
  check.tensor("block_tables", block_tables);
  check.tensor("seq_lens", seq_lens);
  if (seq_offset) check.tensor("seq_offset", *seq_offset);
  check.rank("block_tables", block_tables, 2);
  check.rank("seq_lens", seq_lens, 1);
  if (seq_offset) check.rank("seq_offset", *seq_offset, 1);
  check.index_dtype("block_tables", block_tables);
  check.same_dtype("seq_lens", seq_lens, "block_tables", block_tables);
  if (seq_offset) check.same_dtype("seq_offset", *seq_offset, "block_tables", block_tables);

  const std::int64_t batches = block_tables.dim(0);
  if (cumsum) {
    check.that(seq_lens.dim(0) - 1 == batches,
               "seq_lens: dimension 0 is {}, expected {} + 1 (block_tables dimension 0, cumulative sums)",
               seq_lens.dim(0), batches);
  } else {
    check.dim("seq_lens", seq_lens, 0, batches, "block_tables dimension 0");
  }
  if (seq_offset) check.dim("seq_offset", *seq_offset, 0, batches, "block_tables dimension 0");
  for (const int axis : {0, 1}) {
    check.that(nothing_to_write || block_tables.dim(axis) > 0,
               "block_tables: dimension {} is 0, expected > 0 with {} rows to write", axis, rows);
  }
  const Checked tokens = Checked(batches) * rows;
  const Checked workspace = (Checked(batches) + 1) * static_cast<std::int64_t>(sizeof(GatherSequence));
  check.that(!tokens.overflow && !workspace.overflow,
             "block_tables: dimension 0 is {}, too many batches for {} rows in 64 bits", batches, rows);
}

PagedReads make_reads(const TensorView& block_tables, const TensorView& seq_lens,
                      const std::optional<TensorView>& seq_offset, bool cumsum, std::int64_t rows,
                      std::int64_t block_size, IndexPolicy policy) {
  PagedReads reads;
  reads.batches = block_tables.dim(0);
  reads.table_width = block_tables.dim(1);
  reads.rows = rows;
  reads.block_size = block_size;
  reads.block_tables = IndexView(block_tables);
  reads.seq_lens = IndexView(seq_lens);
  reads.has_offset = seq_offset.has_value();
  if (seq_offset) reads.seq_offset = IndexView(*seq_offset);
  reads.cumsum = cumsum;
  reads.policy = policy;
  return reads;
}

Status resolve_reads(const PagedReads& reads, const ReadPointers& pointers, Operator op, ErrorRecord* record,
                     std::span<GatherSequence> sequences, std::int64_t& tokens) {
  tokens = cut(reads, pointers, sequences);
  if (reads.policy == IndexPolicy::kReject) return reject(reads, pointers, op, sequences);
  if (reads.policy == IndexPolicy::kReport && record != nullptr)
    report(reads, pointers, op, *record, sequences);
  return {};
}

}  // namespace kvferry::internal
