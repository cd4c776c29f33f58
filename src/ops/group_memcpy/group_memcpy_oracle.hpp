// SPDX-License-Identifier: Apache-2.0
//
// The definition of group_memcpy as plain loops. Nothing of the library is used here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/array.hpp"
#include "harness/int128.hpp"

namespace kvferry::harness {

struct GroupMemcpyOracle {
  Array table;  // [2H] or [H, 2]
  std::int64_t copy_bytes = 0;
  std::optional<Array> sizes;
  std::optional<std::int64_t> count;  // of whichever kind; clamped here
  bool skip_null = false;
  bool checked = false;  // compares all pairs with all: keep H small
  // Where the expectation for a destination address lies.
  std::function<std::byte*(std::uint64_t)> expected;

  // Results.
  std::vector<std::string> refusal;
  std::int64_t bytes_moved = 0;

  void run();

 private:
  std::uint64_t address(std::int64_t pair, std::int64_t which) const {
    const std::int64_t value =
        table.shape.size() == 1 ? load_index(table, {2 * pair + which}) : load_index(table, {pair, which});
    return static_cast<std::uint64_t>(value);
  }
  void check_pair(std::int64_t p);
  void check_overlaps(const std::vector<std::int64_t>& pairs);
  std::int64_t bytes_of(std::int64_t pair) const { return sizes ? load_index(*sizes, {pair}) : copy_bytes; }
  bool overlap(std::uint64_t a, std::int64_t a_bytes, std::uint64_t b, std::int64_t b_bytes) const {
    return static_cast<Int128>(a) < static_cast<Int128>(b) + b_bytes &&
           static_cast<Int128>(b) < static_cast<Int128>(a) + a_bytes;
  }
};

// A null address, one whose end wraps, a partial overlap inside the pair.
inline void GroupMemcpyOracle::check_pair(std::int64_t p) {
  const std::int64_t n = bytes_of(p);
  const auto bad = [&](std::uint64_t at) {
    return at == 0 || static_cast<Int128>(at) + n > (static_cast<Int128>(1) << 64);
  };
  const std::uint64_t src = address(p, 0);
  const std::uint64_t dst = address(p, 1);
  if (bad(src) || bad(dst) || (src != dst && overlap(src, n, dst, n))) {
    refusal = {"addr_table", "pair " + std::to_string(p)};
  }
}

// Where several overlaps exist, which of them is named first is not defined: only what all of them share is
// asked for.
inline void GroupMemcpyOracle::check_overlaps(const std::vector<std::int64_t>& pairs) {
  for (const std::int64_t p : pairs) {
    for (const std::int64_t q : pairs) {
      if (p == q) continue;
      const bool dst_meets_dst = overlap(address(p, 1), bytes_of(p), address(q, 1), bytes_of(q));
      const bool dst_meets_src = overlap(address(p, 1), bytes_of(p), address(q, 0), bytes_of(q));
      if (!dst_meets_dst && !dst_meets_src) continue;
      const std::vector<std::string> names = {"addr_table", std::to_string(p), std::to_string(q)};
      if (refusal.empty()) refusal = names;
      std::erase_if(refusal, [&](const std::string& word) {
        return std::find(names.begin(), names.end(), word) == names.end();
      });
    }
  }
}

inline void GroupMemcpyOracle::run() {
  refusal.clear();
  bytes_moved = 0;
  const std::int64_t all = table.shape.size() == 1 ? table.dim(0) / 2 : table.dim(0);
  const std::int64_t pairs = count ? std::clamp<std::int64_t>(*count, 0, all) : all;

  std::vector<std::int64_t> active;
  for (std::int64_t p = 0; p < pairs; ++p) {
    if (bytes_of(p) < 0) {
      refusal = {"sizes", "pair " + std::to_string(p), std::to_string(bytes_of(p))};
      return;
    }
  }
  for (std::int64_t p = 0; p < pairs; ++p) {
    if (bytes_of(p) == 0) continue;
    if (skip_null && (address(p, 0) == 0 || address(p, 1) == 0)) continue;
    active.push_back(p);
  }
  if (checked) {
    for (const std::int64_t p : active) {
      check_pair(p);
      if (!refusal.empty()) return;
    }
    check_overlaps(active);
    if (!refusal.empty()) return;
  }
  for (const std::int64_t p : active) {
    const std::uint64_t src = address(p, 0);
    const std::uint64_t dst = address(p, 1);
    const std::int64_t n = bytes_of(p);
    bytes_moved += n;
    if (src == dst) continue;
    const auto* from = reinterpret_cast<const std::byte*>(src);
    std::memcpy(expected(dst), from, to_size(n));
  }
}

}  // namespace kvferry::harness
