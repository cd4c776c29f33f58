// SPDX-License-Identifier: Apache-2.0
//
// Lengths, offsets and block tables of cases: what the gathers' case files share.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "harness/case.hpp"
#include "harness/instance.hpp"
#include "harness/random.hpp"
#include "kvferry/plan.hpp"

namespace kvferry::harness {

using Shape = std::vector<std::int64_t>;

inline constexpr std::int64_t kAnySize = std::int64_t{1} << 40;

// The keys b, lens, cumsum, base, sums, offset, n, extra and w.
struct ReadsCase {
  bool cumsum = false;
  Shape seq_lens;  // as stored
  Shape tokens;    // of each batch
  bool has_offset = false;
  Shape offsets;
  Shape shifts;  // columns
  std::int64_t rows = 0;
  std::int64_t width = 0;

  std::int64_t batches() const { return static_cast<std::int64_t>(tokens.size()); }
};
ReadsCase read_reads(const Case& from, std::int64_t block_size, Random& random);

// The keys table and put. Entries that no batch needs are wild: nobody may look at them.
Shape make_table(const Case& from, const ReadsCase& reads, std::int64_t block_size, std::int64_t blocks,
                 Random& random);

// The index tensors, with the keys bt, sl and so.
struct ReadsTensors {
  std::size_t block_tables = 0;
  std::size_t seq_lens = 0;
  std::optional<std::size_t> seq_offset;
};
ReadsTensors add_reads(Instance& instance, const Case& from, DType index_type, const ReadsCase& reads,
                       const Shape& table);

// Any lengths, offsets and ids at random. `wide`: index tensors of 64 bits.
void set_random_reads(Case& made, Random& random, std::int64_t block_size, bool wide);

}  // namespace kvferry::harness
