// SPDX-License-Identifier: Apache-2.0
//
// The definition of transfer_layers as plain loops. Nothing of the library is used here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "harness/array.hpp"
#include "harness/instance.hpp"

namespace kvferry::harness {

struct TransferLayersOracle {
  std::vector<Array> keys, values;  // [NB, bs, H, D]; values may be empty
  Array chunk, ids;
  bool page_first = false;
  bool to_chunk = true;
  bool reject = false;

  // Results.
  ExpectedRecord record;
  std::vector<std::string> refusal;
  std::vector<std::int64_t> open;     // blocks that several entries name: their bytes are unspecified
  std::int64_t elements_written = 0;  // zeros included

  void run();

 private:
  void note(std::int64_t entry, std::int64_t id, std::uint32_t which) {
    if (record.bad++ == 0) {
      record.batch = entry;
      record.id = id;
      record.which = which;
    }
  }
};

inline void TransferLayersOracle::run() {
  record = {};
  refusal.clear();
  open.clear();
  elements_written = 0;
  if (chunk.elements() == 0) return;
  const std::int64_t entries = ids.dim(0), blocks = keys.front().dim(0);
  const auto at = [&](std::int64_t i) { return load_index(ids, {i}); };
  const auto names_a_block = [&](std::int64_t id) { return id >= 0 && id < blocks; };

  std::vector<std::string> out_of_range, repeated;
  std::vector<std::int64_t> named;
  for (std::int64_t i = 0; i < entries; ++i) {
    const std::int64_t id = at(i);
    if (!names_a_block(id)) {
      if (!to_chunk && id < 0) continue;
      note(i, id, to_chunk ? 16U : 32U);
      if (out_of_range.empty()) out_of_range = {"block_ids", std::to_string(i), std::to_string(id)};
      continue;
    }
    const auto before = std::find(named.begin(), named.end(), id);
    if (!to_chunk && before != named.end()) {
      note(i, id, 8U);
      open.push_back(id);
      if (repeated.empty()) {
        std::int64_t first = 0;
        while (at(first) != id) ++first;
        repeated = {"block_ids", std::to_string(i), std::to_string(id), std::to_string(first)};
      }
    }
    named.push_back(id);
  }
  if (reject) refusal = out_of_range.empty() ? repeated : out_of_range;
  if (!refusal.empty()) return;

  const auto parts = values.empty() ? std::int64_t{1} : std::int64_t{2};
  for (std::int64_t i = 0; i < entries; ++i) {
    const std::int64_t id = at(i);
    if (!to_chunk && !names_a_block(id)) continue;
    for (std::size_t l = 0; l < keys.size(); ++l) {
      const auto layer = static_cast<std::int64_t>(l);
      for (std::int64_t p = 0; p < parts; ++p) {
        const Array& pool = p == 0 ? keys[l] : values[l];
        for (std::int64_t s = 0; s < pool.dim(1); ++s) {
          for (std::int64_t h = 0; h < pool.dim(2); ++h) {
            for (std::int64_t d = 0; d < pool.dim(3); ++d) {
              std::byte* const place =
                  page_first ? chunk.at({i, layer, p, s, h, d}) : chunk.at({layer, i, p, s, h, d});
              ++elements_written;
              if (!names_a_block(id)) {
                zero_element(place, chunk.item);
              } else if (to_chunk) {
                copy_element(place, pool.at({id, s, h, d}), chunk.item);
              } else {
                copy_element(pool.at({id, s, h, d}), place, chunk.item);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace kvferry::harness
