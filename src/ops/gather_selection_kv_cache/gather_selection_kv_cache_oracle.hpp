// SPDX-License-Identifier: Apache-2.0
//
// The definition of gather_selection_kv_cache as plain loops. Nothing of the library is used here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "harness/array.hpp"
#include "harness/instance.hpp"

namespace kvferry::harness {

// The record bits of this operator's bad entries.
inline constexpr std::uint32_t kOutsideTable = 4;
inline constexpr std::uint32_t kRepeated = 8;
inline constexpr std::uint32_t kFromNowhere = 16;
inline constexpr std::uint32_t kToNowhere = 32;

// Element p of a row of a BSND [B, S, 1, n] or TND [T, 1, n] tensor.
inline std::byte* row_element(const Array& array, std::int64_t row, std::int64_t p) {
  if (array.shape.size() == 4) return array.at({row / array.dim(1), row % array.dim(1), 0, p});
  return array.at({row, 0, p});
}
inline std::int64_t load_row(const Array& array, std::int64_t row, std::int64_t p) {
  std::int32_t value = 0;
  std::memcpy(&value, row_element(array, row, p), sizeof value);
  return value;
}
inline void store_row(const Array& array, std::int64_t row, std::int64_t p, std::int64_t value) {
  const auto narrow = static_cast<std::int32_t>(value);
  std::memcpy(row_element(array, row, p), &narrow, sizeof narrow);
}
inline std::int64_t rows_of(const Array& array) {
  return array.shape.size() == 4 ? array.dim(0) * array.dim(1) : array.dim(0);
}

enum class QLengths { kCounts, kPrefixSum, kAllRows };

struct SelectionLayer {
  Array selection_kv, full_kv;
  std::optional<Array> selection_rope, full_rope;
};

struct SelectionOracle {
  std::vector<SelectionLayer> layers;  // share everything else
  Array selection_table, status, topk, full_table, kv_lens, out;
  std::optional<Array> q_lens, status_row, counters, fetch_counts;
  std::int64_t block_size = 1;
  QLengths q_mode = QLengths::kCounts;
  bool reject = false;

  // What decide() finds; it writes nothing.
  struct Slot {
    std::int64_t id = 0;
    std::int64_t tokens = 0;
    std::int64_t from = -1;  // slot that it is resident in, -1: a miss
    std::uint32_t bad = 0;   // record bits
  };
  struct Row {
    std::int64_t state = 0;       // its row of status and of the selection table
    std::uint32_t bad_state = 0;  // record bits
    bool active = false;
    std::int64_t length = 0;
    std::vector<Slot> slots;
  };
  std::vector<Row> rows;
  std::vector<std::set<std::int64_t>> missed;  // of each batch
  ExpectedRecord record;
  std::vector<std::string> refusal;
  std::int64_t tokens_copied = 0;  // fetched or moved, of one layer

  void decide();
  void run() {
    decide();
    if (!refusal.empty()) return;
    for (const SelectionLayer& layer : layers) {
      copy(layer.selection_kv, layer.full_kv);
      if (layer.selection_rope) copy(*layer.selection_rope, *layer.full_rope);
    }
    write_state();
  }

  std::int64_t batches() const { return full_table.dim(0); }
  std::int64_t rows_of_batch() const { return batches() == 0 ? 0 : rows_of(topk) / batches(); }
  std::int64_t q_of(std::int64_t batch) const;
  std::int64_t visible_of(std::int64_t row) const;

 private:
  std::int64_t top() const { return topk.shape.back(); }
  std::int64_t page_of(const Row& row, std::int64_t slot) const {
    return load_index(selection_table, {row.state, slot * block_size / layers.front().selection_kv.dim(1)});
  }
  bool destination_ok(const Row& row, std::int64_t slot) const {
    const std::int64_t page = page_of(row, slot);
    return page >= 0 && page < layers.front().selection_kv.dim(0);
  }
  void note(std::int64_t row, std::int64_t column, std::int64_t id, std::uint32_t which) {
    if (record.bad++ == 0) record = {1, row, column, id, which};
  }
  void refuse(std::vector<std::string> words) {
    if (reject && refusal.empty()) refusal = std::move(words);
  }
  void find_states();
  void place(std::int64_t r, Row& row);
  void judge_slots(std::int64_t r, Row& row);
  void copy(const Array& selection, const Array& full) const;
  void write_state() const;
};

inline std::int64_t SelectionOracle::q_of(std::int64_t batch) const {
  if (q_mode == QLengths::kAllRows) return rows_of_batch();
  std::int64_t q = load_index(*q_lens, {batch});
  if (q_mode == QLengths::kPrefixSum && batch > 0) q -= load_index(*q_lens, {batch - 1});
  return std::max<std::int64_t>(q, 0);
}

inline std::int64_t SelectionOracle::visible_of(std::int64_t row) const {
  const std::int64_t batch = row / rows_of_batch();
  const std::int64_t s = row % rows_of_batch();
  const std::int64_t q = q_of(batch);
  const std::int64_t kv = load_index(kv_lens, {batch});
  return s < q ? kv - (q - 1 - s) : kv;
}

inline void SelectionOracle::decide() {
  record = {};
  refusal.clear();
  rows.assign(to_size(rows_of(topk)), {});
  missed.assign(to_size(batches()), {});
  tokens_copied = 0;
  for (std::int64_t b = 0; b < batches(); ++b) {
    const std::int64_t q = q_of(b);
    if (q > rows_of_batch())
      refuse({"full_q_actual_seq", std::to_string(b), std::to_string(q), std::to_string(rows_of_batch())});
  }
  find_states();
  for (std::int64_t r = 0; r < rows_of(topk); ++r) {
    Row& row = rows[to_size(r)];
    if (row.bad_state != 0) note(r, 0, row.state, row.bad_state);
    if (!row.active) continue;
    place(r, row);
    judge_slots(r, row);
  }
}

inline void SelectionOracle::find_states() {
  std::set<std::int64_t> taken;
  for (std::int64_t r = 0; r < rows_of(topk); ++r) {
    Row& row = rows[to_size(r)];
    row.state = status_row ? load_index(*status_row, {r}) : r;
    if (row.state < -1 || row.state >= rows_of(status)) {
      row.bad_state = kToNowhere;
    } else if (row.state >= 0 && !taken.insert(row.state).second) {
      row.bad_state = kRepeated;
    }
    if (row.bad_state != 0) refuse({"status_row", std::to_string(r), std::to_string(row.state)});
    row.active = row.state >= 0 && row.bad_state == 0 && visible_of(r) > 0;
  }
}

// Which id goes into which slot, and where it comes from.
inline void SelectionOracle::place(std::int64_t r, Row& row) {
  const std::int64_t bs = block_size;
  const std::int64_t batch = r / rows_of_batch();
  const std::int64_t visible = visible_of(r);
  const std::int64_t num_ids = (visible + bs - 1) / bs;
  const std::int64_t tail = visible - (num_ids - 1) * bs;

  std::vector<std::int64_t> selected;
  std::unordered_map<std::int64_t, std::int64_t> slot_of;  // of a selected id; -1: none yet
  for (std::int64_t j = 0; j < top(); ++j) {
    const std::int64_t id = load_row(topk, r, j);
    if (id < 0) break;
    if (id < num_ids && slot_of.emplace(id, -1).second) selected.push_back(id);
  }
  const auto n = static_cast<std::int64_t>(selected.size());

  std::unordered_map<std::int64_t, std::int64_t> resident;
  const std::int64_t old_length = load_row(status, row.state, top());
  for (std::int64_t p = 0; p < top() && p * bs < old_length; ++p) {
    const std::int64_t id = load_row(status, row.state, p);
    const bool old_tail = old_length % bs != 0 && p == old_length / bs;
    if (old_tail || !slot_of.contains(id) || !destination_ok(row, p)) continue;
    const std::int64_t settled =
        load_index(kv_lens, {batch}) - q_of(batch);  // tokens behind it may have been drafts
    if ((id + 1) * bs <= settled) resident.emplace(id, p);
  }

  row.slots.resize(to_size(n));
  std::vector<bool> used(to_size(n), false);
  const auto give = [&](std::int64_t id, std::int64_t slot) {
    slot_of[id] = slot;
    used[to_size(slot)] = true;
  };
  if (tail < bs && slot_of.contains(num_ids - 1)) give(num_ids - 1, n - 1);
  for (const auto& [id, slot] : resident) {
    if (slot < n && !used[to_size(slot)] && slot_of[id] < 0) give(id, slot);
  }
  for (const std::int64_t id : selected) {
    if (slot_of[id] >= 0) continue;
    std::int64_t slot = 0;
    while (used[to_size(slot)]) ++slot;
    give(id, slot);
  }
  for (const std::int64_t id : selected) {
    Slot& slot = row.slots[to_size(slot_of[id])];
    slot.id = id;
    slot.tokens = id == num_ids - 1 ? tail : bs;
    row.length += slot.tokens;
    if (const auto found = resident.find(id); found != resident.end()) {
      slot.from = found->second;
    } else {
      missed[to_size(batch)].insert(id);
    }
  }
}

inline void SelectionOracle::judge_slots(std::int64_t r, Row& row) {
  const std::int64_t batch = r / rows_of_batch();
  const std::int64_t per_page = layers.front().full_kv.dim(1);
  const std::int64_t pages = layers.front().full_kv.dim(0);
  for (std::size_t i = 0; i < row.slots.size(); ++i) {
    Slot& slot = row.slots[i];
    const auto p = static_cast<std::int64_t>(i);
    std::vector<std::string> words;
    if (!destination_ok(row, p)) {
      slot.bad |= kToNowhere;
      words = {"selection_kv_block_table", std::to_string(row.state),
               std::to_string(p * block_size / layers.front().selection_kv.dim(1)),
               std::to_string(page_of(row, p))};
    }
    if (slot.from < 0) {
      const std::int64_t column = slot.id * block_size / per_page;
      std::vector<std::string> full = {"full_kv_block_table", std::to_string(batch), std::to_string(column)};
      std::uint32_t bad = 0;
      if (column >= full_table.dim(1)) {
        bad = kOutsideTable;
      } else if (const std::int64_t page = load_index(full_table, {batch, column});
                 page < 0 || page >= pages) {
        bad = kFromNowhere;
        full.push_back(std::to_string(page));
      }
      if (bad != 0) words = slot.bad != 0 ? std::vector<std::string>{} : full;  // of two either may be named
      slot.bad |= bad;
    }
    if (slot.bad != 0) {
      note(r, p, slot.id, slot.bad);
      words.emplace_back("gather_selection_kv_cache");  // empty would be no refusal
      refuse(words);
    } else if (slot.from != p) {
      tokens_copied += slot.tokens;
    }
  }
}

inline void SelectionOracle::copy(const Array& selection, const Array& full) const {
  const std::int64_t bs = block_size;
  const std::int64_t width = selection.dim(2);
  const auto token = [&](const Array& cache, std::int64_t page, std::int64_t at, auto&& each) {
    for (std::int64_t d = 0; d < width; ++d) each(d, cache.at({page, at % cache.dim(1), d}));
  };
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    const auto batch = static_cast<std::int64_t>(r) / rows_of_batch();
    // All that the row will hold, before any of it is written.
    std::vector<std::byte> held(to_size(row.length * width * selection.item));
    std::byte* to = held.data();
    for (const Slot& slot : row.slots) {
      for (std::int64_t t = 0; t < slot.tokens; ++t, to += width * selection.item) {
        const auto take = [&](std::int64_t d, const std::byte* from) {
          copy_element(to + d * selection.item, from, selection.item);
        };
        if ((slot.bad & (kOutsideTable | kFromNowhere)) != 0) continue;  // zero
        if (slot.from >= 0) {
          token(selection, page_of(row, slot.from), slot.from * bs + t, take);
        } else {
          const std::int64_t at = slot.id * bs + t;
          token(full, load_index(full_table, {batch, at / full.dim(1)}), at, take);
        }
      }
    }
    const std::byte* from = held.data();
    for (std::size_t p = 0; p < row.slots.size(); ++p) {
      const Slot& slot = row.slots[p];
      const auto at = static_cast<std::int64_t>(p) * bs;
      for (std::int64_t t = 0; t < slot.tokens; ++t, from += width * selection.item) {
        if ((slot.bad & kToNowhere) != 0) continue;
        token(selection, page_of(row, static_cast<std::int64_t>(p)), at + t,
              [&](std::int64_t d, std::byte* e) {
                copy_element(e, from + d * selection.item, selection.item);
              });
      }
    }
  }
}

inline void SelectionOracle::write_state() const {
  for (std::int64_t i = 0; i < out.dim(0); ++i) store_index(out, {i}, 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const auto r = static_cast<std::int64_t>(i);
    std::int64_t hits = 0;
    std::int64_t moved = 0;
    for (std::size_t p = 0; p < row.slots.size(); ++p) {
      if (row.slots[p].from < 0) continue;
      ++hits;
      if (row.slots[p].from != static_cast<std::int64_t>(p)) ++moved;
    }
    if (counters) {
      store_index(*counters, {r, 0}, hits);
      store_index(*counters, {r, 1}, static_cast<std::int64_t>(row.slots.size()) - hits);
      store_index(*counters, {r, 2}, moved);
    }
    if (!row.active) continue;
    store_index(out, {r}, row.length);
    for (std::int64_t p = 0; p < top(); ++p) {
      const bool held = to_size(p) < row.slots.size() && row.slots[to_size(p)].bad == 0;
      store_row(status, row.state, p, held ? row.slots[to_size(p)].id : -1);
    }
    store_row(status, row.state, top(), row.length);
  }
  for (std::int64_t b = 0; fetch_counts && b < batches(); ++b)
    store_index(*fetch_counts, {b}, static_cast<std::int64_t>(missed[to_size(b)].size()));
}

}  // namespace kvferry::harness
