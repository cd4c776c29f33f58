// SPDX-License-Identifier: Apache-2.0
//
// The definition of scatter_pa_kv_cache as plain loops. Nothing of the library is used here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "harness/array.hpp"
#include "harness/instance.hpp"
#include "harness/int128.hpp"

namespace kvferry::harness {

enum class CacheLayout {
  kNd,    // [NB, bs, H, D]
  kNhsd,  // [NB, H, bs, D]
  kNz4,   // [NB, H*D/e, bs, e]
  kNz5,   // [NB, H, D/e, bs, e]
};

// Element (h, d) of the token at (block, position).
inline std::byte* cache_element(const Array& cache, CacheLayout layout, std::int64_t head_size,
                                std::int64_t block, std::int64_t position, std::int64_t h, std::int64_t d) {
  switch (layout) {
    case CacheLayout::kNd:
      return cache.at({block, position, h, d});
    case CacheLayout::kNhsd:
      return cache.at({block, h, position, d});
    case CacheLayout::kNz4: {
      const std::int64_t e = cache.dim(3);
      const std::int64_t j = h * head_size + d;
      return cache.at({block, j / e, position, j % e});
    }
    case CacheLayout::kNz5: {
      const std::int64_t e = cache.dim(4);
      return cache.at({block, h, d / e, position, d % e});
    }
  }
  return nullptr;
}

inline std::int64_t block_size_of(const Array& cache, CacheLayout layout) {
  return cache.dim(layout == CacheLayout::kNd ? 1 : layout == CacheLayout::kNz5 ? 3 : 2);
}

struct ScatterOracle {
  Array key, key_cache, slots;
  std::optional<Array> value, value_cache;  // both or none
  CacheLayout layout = CacheLayout::kNd;
  bool reject = false;

  // Results.
  struct Open {
    std::int64_t block;
    std::int64_t position;
  };
  ExpectedRecord record;
  std::vector<std::string> refusal;
  std::vector<Open> key_open, value_open;  // slots that several tokens named: their bytes are unspecified
  std::int64_t key_tokens = 0;             // written
  std::int64_t value_tokens = 0;

  void run();

 private:
  void copy_token(const Array& rows, const Array& cache, std::int64_t t, std::int64_t slot) const {
    const std::int64_t bs = block_size_of(cache, layout);
    for (std::int64_t h = 0; h < rows.dim(1); ++h) {
      for (std::int64_t d = 0; d < rows.dim(2); ++d) {
        copy_element(cache_element(cache, layout, rows.dim(2), slot / bs, slot % bs, h, d),
                     rows.at({t, h, d}), cache.item);
      }
    }
  }
};

inline void ScatterOracle::run() {
  record = {};
  refusal.clear();
  key_open.clear();
  value_open.clear();
  key_tokens = value_tokens = 0;
  const std::int64_t tokens = slots.dim(0);
  const bool has_key = key.elements() > 0;
  const bool has_value = value && value->elements() > 0;
  if (tokens == 0 || (!has_key && !has_value)) return;
  const std::int64_t bs = block_size_of(key_cache, layout);
  const Int128 key_slots = static_cast<Int128>(key_cache.dim(0)) * bs;
  const Int128 value_slots =
      has_value ? static_cast<Int128>(value_cache->dim(0)) * bs : static_cast<Int128>(0);

  std::vector<std::string> out_of_range;
  std::vector<std::string> repeated;
  std::unordered_map<std::int64_t, bool> named;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t slot = load_index(slots, {t});
    if (slot < 0) continue;
    const bool in_key = has_key && slot < key_slots;
    const bool in_value = has_value && slot < value_slots;
    const bool key_bad = has_key && !in_key;
    const bool value_bad = has_value && !in_value;
    const bool again = (in_key || in_value) && !named.emplace(slot, true).second;
    const std::vector<std::string> words = {"slot_mapping", std::to_string(t), std::to_string(slot)};
    if ((key_bad || value_bad) && out_of_range.empty()) out_of_range = words;
    if (again && repeated.empty()) repeated = words;
    const bool key_counts = key_bad || (again && in_key);
    const bool value_counts = value_bad || (again && in_value);
    if ((key_counts || value_counts) && record.bad == 0) {
      record.batch = t;
      record.id = slot;
      record.which = (key_counts ? 1U : 0U) | (value_counts ? 2U : 0U) | (again ? 8U : 0U);
    }
    record.bad += (key_counts ? 1U : 0U) + (value_counts ? 1U : 0U);
    if (again && in_key) key_open.push_back({slot / bs, slot % bs});
    if (again && in_value) value_open.push_back({slot / bs, slot % bs});
  }
  if (reject) refusal = out_of_range.empty() ? repeated : out_of_range;
  if (!refusal.empty()) return;

  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t slot = load_index(slots, {t});
    if (slot >= 0 && has_key && slot < key_slots) {
      copy_token(key, key_cache, t, slot);
      ++key_tokens;
    }
    if (slot >= 0 && has_value && slot < value_slots) {
      copy_token(*value, *value_cache, t, slot);
      ++value_tokens;
    }
  }
}

}  // namespace kvferry::harness
