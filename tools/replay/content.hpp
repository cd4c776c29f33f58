// SPDX-License-Identifier: Apache-2.0
//
// Content: what every byte of KV must be, so that any row can be checked without a second copy.
//
// A row is a token's K or V in one layer. Its 8-byte word w is
//
//     seed(identity, position, layer, K|V) ^ table[w]
//
// with a 64-bit hash as the seed and a fixed table of random words: one mix a row, then two loads and an
// XOR a word, which keeps up with memory.
//   another token, layer, K for V     another seed: every word of the row differs
//   heads, words or offsets swapped   table[w] ^ table[v] is random for every w != v
//   shifted bytes, stale or zero rows differ with probability 1 - 2^-64 a word
//   one flipped bit                   the words are compared whole
// The identity of a token is its block's hash id inside full prompt blocks, else its request's number.
#pragma once

#include <cstddef>
#include <cstdint>

#include "harness/random.hpp"

namespace kvferry::replay {

inline constexpr std::int64_t kMaxRowBytes = 4096;

enum class Part : std::uint8_t { kKey, kValue };

inline std::uint64_t block_identity(std::int64_t hash_id) {
  return harness::mix(2 * static_cast<std::uint64_t>(hash_id));
}
inline std::uint64_t request_identity(std::int64_t request) {
  return harness::mix(2 * static_cast<std::uint64_t>(request) + 1);
}
// Of one layer's K or V.
inline std::uint64_t stream_of(std::uint64_t identity, std::int64_t layer, Part part) {
  return harness::mix(identity + static_cast<std::uint64_t>(2 * layer + (part == Part::kValue ? 1 : 0)));
}
inline std::uint64_t row_seed(std::uint64_t stream, std::int64_t position) {
  return harness::mix(stream + static_cast<std::uint64_t>(position));
}

// Writes `rows` rows of `row_bytes` (a multiple of 16, at most kMaxRowBytes) for
// positions first, first + 1, ...
void fill_rows(std::byte* rows_at, std::int64_t row_bytes, std::uint64_t stream, std::int64_t first,
               std::int64_t rows);

// How many leading rows hold exactly that: `rows` if all do.
std::int64_t good_rows(const std::byte* rows_at, std::int64_t row_bytes, std::uint64_t stream,
                       std::int64_t first, std::int64_t rows);

// The row as it must be.
void expected_row(std::byte* row, std::int64_t row_bytes, std::uint64_t stream, std::int64_t position);

}  // namespace kvferry::replay
