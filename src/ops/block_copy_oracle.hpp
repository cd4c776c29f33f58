// SPDX-License-Identifier: Apache-2.0
//
// The definition of copy_blocks and swap_blocks as plain loops. Nothing of the library is used here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "harness/array.hpp"
#include "harness/instance.hpp"

namespace kvferry::harness {

// Calls body(a's element, b's element) for every element of block `i` of a and block `j` of b.
template <class Body>
void for_each_element(const Array& a, std::int64_t i, const Array& b, std::int64_t j, Body body) {
  const auto walk = [&](const auto& self, std::size_t axis, std::byte* p, std::byte* q) -> void {
    if (axis == a.shape.size()) return body(p, q);
    for (std::int64_t k = 0; k < a.dim(axis); ++k) {
      self(self, axis + 1, p, q);
      if (k + 1 == a.dim(axis)) break;  // the stride of an axis of length 1 is never used
      p += a.strides[axis] * a.item;
      q += b.strides[axis] * b.item;
    }
  };
  const auto block = [](const Array& array, std::int64_t n) {
    return array.data + (array.offset + (n != 0 ? n * array.strides[0] : 0)) * array.item;
  };
  walk(walk, 1, block(a, i), block(b, j));
}

struct BlockCopyOracle {
  std::vector<Array> src, dst;  // of one pool: as before the call, and as after it
  Array mapping;                // [n, 2]
  std::optional<std::int64_t> count;
  bool one_pool = false;
  bool reject = false;

  // Results.
  ExpectedRecord record;
  std::vector<std::string> refusal;
  std::vector<std::int64_t> open;  // destinations whose bytes are unspecified
  std::int64_t bytes_moved = 0;

  void run();

 private:
  struct Pair {
    std::int64_t number, src, dst;
  };
  void note(const Pair& pair, bool source, bool destination, std::uint32_t more);
};

inline void BlockCopyOracle::note(const Pair& pair, bool source, bool destination, std::uint32_t more) {
  if (record.bad++ > 0) return;
  record.batch = pair.number;
  record.id = source ? pair.src : pair.dst;
  record.which = (source ? 16U : 0U) | (destination ? 32U : 0U) | more;
}

inline void BlockCopyOracle::run() {
  record = {};
  refusal.clear();
  open.clear();
  bytes_moved = 0;
  const auto has_bytes = [](const Array& array) {
    return std::count(array.shape.begin() + 1, array.shape.end(), 0) == 0;
  };
  if (std::none_of(dst.begin(), dst.end(), has_bytes)) return;
  const std::int64_t src_blocks = src[0].dim(0);
  const std::int64_t dst_blocks = dst[0].dim(0);
  const std::int64_t n = count ? std::clamp<std::int64_t>(*count, 0, mapping.dim(0)) : mapping.dim(0);

  std::vector<Pair> good;
  std::vector<Pair> bad;  // for the record, in any order
  for (std::int64_t p = 0; p < n; ++p) {
    const Pair pair = {p, load_index(mapping, {p, 0}), load_index(mapping, {p, 1})};
    if (pair.src < 0 || pair.dst < 0) continue;
    if (pair.src < src_blocks && pair.dst < dst_blocks) {
      if (!one_pool || pair.src != pair.dst) good.push_back(pair);
      continue;
    }
    bad.push_back(pair);
    if (!reject) continue;
    const bool source = pair.src >= src_blocks;
    refusal = {"mapping", "pair " + std::to_string(p), std::to_string(source ? pair.src : pair.dst),
               std::to_string(source ? src_blocks : dst_blocks)};
    return;
  }

  std::unordered_map<std::int64_t, std::int64_t> writer;  // the first
  for (const Pair& pair : good) writer.emplace(pair.dst, pair.number);
  std::vector<Pair> taken;
  for (const Pair& pair : good) {
    const bool repeats = writer.at(pair.dst) != pair.number;
    const bool reads = one_pool && writer.count(pair.src) != 0;
    if (!repeats && !reads) continue;
    taken.push_back(pair);
    open.push_back(pair.dst);
    if (!reject) continue;
    refusal = {"mapping", "pair " + std::to_string(pair.number), std::to_string(reads ? pair.src : pair.dst),
               "pair " + std::to_string(writer.at(reads ? pair.src : pair.dst))};
    return;
  }
  for (auto out = bad.begin(), in = taken.begin(); out != bad.end() || in != taken.end();) {
    if (in == taken.end() || (out != bad.end() && out->number < in->number)) {
      note(*out, out->src >= src_blocks, out->dst >= dst_blocks, 0);
      ++out;
    } else {
      note(*in, one_pool && writer.count(in->src) != 0, writer.at(in->dst) != in->number, 8);
      ++in;
    }
  }

  for (const Pair& pair : good) {
    for (std::size_t i = 0; i < dst.size(); ++i) {
      for_each_element(src[i], pair.src, dst[i], pair.dst, [&](const std::byte* from, std::byte* to) {
        copy_element(to, from, dst[i].item);
        bytes_moved += dst[i].item;
      });
    }
  }
}

}  // namespace kvferry::harness
