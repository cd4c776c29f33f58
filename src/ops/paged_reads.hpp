// SPDX-License-Identifier: Apache-2.0
//
// Sequences read out of a paged cache: the lengths, offsets and block tables of the gathers, without any byte
// of the cache.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "core/checks.hpp"
#include "core/impl.hpp"
#include "core/index_view.hpp"

namespace kvferry::internal {

// One batch after the cut at N: `tokens` tokens from (column, slot) on, to rows [row, row + tokens).
struct GatherSequence {
  std::int64_t row;
  std::int64_t column;  // clamped to +-2^62
  std::int64_t slot;
  std::int64_t tokens;
  std::int64_t start;  // tokens of the batches before
};

// The part of a plan that says which token goes to which row.
struct PagedReads {
  // A cache that the ids of the table name blocks of.
  struct Cache {
    const char* name;
    std::uint32_t bad_bit;
    std::int64_t blocks;
  };
  std::array<Cache, 2> caches{};
  std::size_t cache_count = 0;  // those that are not empty; 0: nothing is read

  std::int64_t batches = 0;
  std::int64_t table_width = 0;
  std::int64_t rows = 0;
  std::int64_t block_size = 0;
  IndexView block_tables, seq_lens, seq_offset;
  bool has_offset = false;
  bool cumsum = false;
  IndexPolicy policy = IndexPolicy::kDefault;

  void add_cache(const char* name, std::uint32_t bad_bit, std::int64_t blocks) {
    caches[cache_count++] = {name, bad_bit, blocks};
  }
  std::span<const Cache> used_caches() const { return std::span(caches).first(cache_count); }
  // One GatherSequence a batch, and room to align them.
  std::int64_t workspace_bytes() const {
    return cache_count == 0 ? 0
                            : batches * static_cast<std::int64_t>(sizeof(GatherSequence)) + kWorkspaceAlign;
  }
};

struct ReadPointers {
  const void* block_tables;
  const void* seq_lens;
  const void* seq_offset;
};

// The rules of the index tensors. `nothing_to_write`: the outputs are empty.
void check_reads(Checker& check, const TensorView& block_tables, const TensorView& seq_lens,
                 const std::optional<TensorView>& seq_offset, bool cumsum, std::int64_t rows,
                 bool nothing_to_write);

// REQUIRES check_reads passed.
PagedReads make_reads(const TensorView& block_tables, const TensorView& seq_lens,
                      const std::optional<TensorView>& seq_offset, bool cumsum, std::int64_t rows,
                      std::int64_t block_size, IndexPolicy policy);

// The sequences in `workspace`, and the index policy: all that is decided before the first byte is written.
// Adds up the tokens to read.
Status resolve_reads(const PagedReads& reads, const ReadPointers& pointers, Operator op, ErrorRecord* record,
                     std::span<GatherSequence> sequences, std::int64_t& tokens);

// Tokens [begin, end) of all batches in a row: calls found(id, slot, row, tokens) for runs inside one block.
// An id outside the table is -1.
template <class Found>
void for_each_run(const PagedReads& reads, const void* block_tables,
                  std::span<const GatherSequence> sequences, std::int64_t begin, std::int64_t end,
                  Found found) {
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
    const std::int64_t position = s->slot + done, slot = position % reads.block_size;
    const std::int64_t column = s->column + position / reads.block_size;
    const std::int64_t tokens = std::min({reads.block_size - slot, s->tokens - done, end - begin});
    std::int64_t id = -1;
    if (column >= 0 && column < reads.table_width) {
      id = reads.block_tables.at(block_tables, s - sequences.begin(), column);
    }
    found(id, slot, s->row + done, tokens);
    begin += tokens;
  }
}

}  // namespace kvferry::internal
