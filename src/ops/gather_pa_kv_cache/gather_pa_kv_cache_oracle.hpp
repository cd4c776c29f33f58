// SPDX-License-Identifier: Apache-2.0
//
// The definition of gather_pa_kv_cache as plain loops. Nothing of the library is used here: the harness holds
// every implementation against it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/array.hpp"
#include "harness/instance.hpp"
#include "harness/int128.hpp"

namespace kvferry::harness {

struct GatherOracle {
  Array key_cache, value_cache, block_tables, seq_lens;
  std::optional<Array> seq_offset;
  Array key, value;  // written
  bool nz = false;
  bool cumsum = false;
  bool reject = false;
  // What a token becomes in a row, for operators that do not copy it. Rows of `key` are then [N, n].
  void (*convert)(const Array& cache, const Array& out, std::int64_t id, std::int64_t slot,
                  std::int64_t row) = nullptr;

  // Results.
  ExpectedRecord record;
  std::vector<std::string> refusal;     // reject: what the message names; empty: accepted
  std::vector<std::int64_t> contested;  // rows that more than one batch claimed: their bytes are unspecified
  std::int64_t rows_written = 0;

  void run();

 private:
  void copy_token(const Array& cache, const Array& out, std::int64_t id, std::int64_t slot,
                  std::int64_t row) const;
  void zero_token(const Array& out, std::int64_t row) const;
  void note(std::int64_t batch, Int128 column, bool in_table, std::int64_t id, bool key_bad, bool value_bad);
  void check_lengths();
};

inline void GatherOracle::copy_token(const Array& cache, const Array& out, std::int64_t id, std::int64_t slot,
                                     std::int64_t row) const {
  if (convert != nullptr) return convert(cache, out, id, slot, row);
  if (nz) {
    const std::int64_t e = cache.dim(3);
    for (std::int64_t j = 0; j < out.dim(1); ++j) {
      copy_element(out.at({row, j}), cache.at({id, j / e, slot, j % e}), out.item);
    }
  } else {
    for (std::int64_t h = 0; h < out.dim(1); ++h) {
      for (std::int64_t d = 0; d < out.dim(2); ++d) {
        copy_element(out.at({row, h, d}), cache.at({id, slot, h, d}), out.item);
      }
    }
  }
}

inline void GatherOracle::zero_token(const Array& out, std::int64_t row) const {
  if (out.shape.size() == 2) {
    for (std::int64_t j = 0; j < out.dim(1); ++j) zero_element(out.at({row, j}), out.item);
  } else {
    for (std::int64_t h = 0; h < out.dim(1); ++h) {
      for (std::int64_t d = 0; d < out.dim(2); ++d) zero_element(out.at({row, h, d}), out.item);
    }
  }
}

inline void GatherOracle::note(std::int64_t batch, Int128 column, bool in_table, std::int64_t id,
                               bool key_bad, bool value_bad) {
  if (!key_bad && !value_bad) return;
  constexpr Int128 kFar = static_cast<Int128>(1) << 62;
  if (record.bad == 0) {  // entries come in ascending (batch, column): the first is the lowest
    record.batch = batch;
    record.column = static_cast<std::int64_t>(std::clamp(column, -kFar, kFar));
    record.id = in_table ? id : 0;
    record.which = (key_bad ? 1U : 0U) | (value_bad ? 2U : 0U) | (in_table ? 0U : 4U);
    if (reject && refusal.empty()) {
      refusal = {"block_tables", "batch", std::to_string(batch), "column", std::to_string(record.column)};
      if (in_table) refusal.push_back(std::to_string(id));
    }
  }
  record.bad += (key_bad ? 1U : 0U) + (value_bad ? 1U : 0U);
}

// reject: a negative length or first sum, then decreasing sums.
inline void GatherOracle::check_lengths() {
  const std::int64_t entries = seq_lens.dim(0);
  const auto refuse = [&](std::int64_t i) {
    refusal = {"seq_lens", std::to_string(i), std::to_string(load_index(seq_lens, {i}))};
  };
  if (cumsum) {
    if (load_index(seq_lens, {0}) < 0) return refuse(0);
    for (std::int64_t i = 1; i < entries; ++i) {
      if (load_index(seq_lens, {i}) < load_index(seq_lens, {i - 1})) return refuse(i);
    }
  } else {
    for (std::int64_t i = 0; i < entries; ++i) {
      if (load_index(seq_lens, {i}) < 0) return refuse(i);
    }
  }
}

inline void GatherOracle::run() {
  record = {};
  refusal.clear();
  contested.clear();
  rows_written = 0;
  const std::int64_t batches = block_tables.dim(0);
  const std::int64_t width = block_tables.dim(1);
  const std::int64_t block_size = nz ? key_cache.dim(2) : key_cache.dim(1);
  const std::int64_t rows = key.dim(0);
  const bool has_key = key.elements() > 0;
  const bool has_value = value.elements() > 0;
  if (!has_key && !has_value) return;
  if (reject) check_lengths();
  if (!refusal.empty()) return;

  // Who claimed a row; needed only where sums decrease.
  bool decreasing = false;
  for (std::int64_t i = 0; cumsum && i < batches; ++i) {
    decreasing = decreasing || load_index(seq_lens, {i + 1}) < load_index(seq_lens, {i});
  }
  std::vector<std::int64_t> claims(decreasing ? to_size(rows) : 0, -1);

  // With `reject` the first round only looks, because a refusal writes nothing.
  for (const bool write : {false, true}) {
    if (write && !refusal.empty()) return;
    Int128 sum = 0;
    for (std::int64_t i = 0; i < batches; ++i) {
      Int128 beg = sum;
      Int128 end = 0;
      if (cumsum) {
        beg = load_index(seq_lens, {i});
        end = load_index(seq_lens, {i + 1});
      } else {
        end = sum + std::max<std::int64_t>(load_index(seq_lens, {i}), 0);
        sum = end;
      }
      const Int128 n = std::min<Int128>(end, rows) - beg;
      if (beg >= rows || n <= 0) continue;
      const Int128 shift = seq_offset ? load_index(*seq_offset, {i}) / block_size : 0;
      const Int128 first = beg < 0 ? -beg : static_cast<Int128>(0);  // rows below 0 do not exist
      for (Int128 t = first; t < n; ++t) {
        const auto row = static_cast<std::int64_t>(beg + t);
        const Int128 column = shift + t / block_size;
        const auto slot = static_cast<std::int64_t>(t % block_size);
        const bool in_table = column >= 0 && column < width;
        const std::int64_t id =
            in_table ? load_index(block_tables, {i, static_cast<std::int64_t>(column)}) : -1;
        const bool key_bad = has_key && (id < 0 || id >= key_cache.dim(0));
        const bool value_bad = has_value && (id < 0 || id >= value_cache.dim(0));
        if (!write) {
          if (t == first || slot == 0) note(i, column, in_table, id, key_bad, value_bad);
          continue;
        }
        ++rows_written;
        if (!claims.empty()) {
          std::int64_t& claim = claims[to_size(row)];
          if (claim >= 0 && claim != i) contested.push_back(row);
          claim = i;
        }
        if (has_key && key_bad) zero_token(key, row);
        if (has_key && !key_bad) copy_token(key_cache, key, id, slot, row);
        if (has_value && value_bad) zero_token(value, row);
        if (has_value && !value_bad) copy_token(value_cache, value, id, slot, row);
      }
    }
  }
}

}  // namespace kvferry::harness
