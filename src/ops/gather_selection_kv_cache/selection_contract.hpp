// SPDX-License-Identifier: Apache-2.0
//
// Checks one call of gather_selection_kv_cache against the header's items 1-6 and the slot order, from the
// state before and after it. Sets and questions about the result, where the oracle simulates: the two share
// nothing. For calls without bad entries, with dense tensors of bytes.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvferry::harness {

struct SelectionWorld {
  using Ints = std::vector<std::int32_t>;
  using Bytes = std::vector<std::uint8_t>;

  // Sizes.
  std::int64_t batches = 1, rows_per_batch = 1, k = 1, block = 1;
  std::int64_t selection_page = 1, full_page = 1, kv_bytes = 1, rope_bytes = 0;
  std::int64_t selection_columns = 1, full_columns = 1;
  // Inputs.
  Ints selection_table, topk, full_table, kv, status_row;  // status_row: always, 0, 1, ... if none is passed
  std::vector<std::int64_t> q;                             // query tokens of each batch
  Bytes full_kv, full_rope;
  // What a call changes.
  Ints status, out, counters, fetch_counts;
  Bytes selection_kv, selection_rope;

  std::int64_t rows() const { return batches * rows_per_batch; }
};

class SelectionContract {
 public:
  SelectionContract(const SelectionWorld& before, const SelectionWorld& after)
      : before_(before), after_(after) {}

  // The first violation, or nothing.
  std::string check() {
    written_.assign(before_.selection_kv.size() / at(before_.kv_bytes), false);
    Ints expected_out(before_.out.size(), 0);
    std::vector<std::set<std::int64_t>> fetched(at(before_.batches));
    status_rows_.clear();
    for (std::int64_t r = 0; r < before_.rows() && error_.empty(); ++r) {
      const Row row = read_row(r);
      if (row.state >= 0 && row.visible > 0) check_row(row, fetched[at(r / before_.rows_per_batch)]);
      if (row.state < 0 || row.visible <= 0) check_counters(r, 0, 0, 0);
      expected_out[at(r)] = static_cast<std::int32_t>(row.length);
    }
    if (!error_.empty()) return error_;
    if (after_.out != expected_out) return "selection_kv_actual_seq is wrong";
    for (std::size_t b = 0; b < fetched.size(); ++b) {
      if (at(after_.fetch_counts[b]) != fetched[b].size())
        return fmt::format("batch {}: {} fetches, expected {}", b, after_.fetch_counts[b], fetched[b].size());
    }
    check_the_rest();
    return error_;
  }

 private:
  using Ints = SelectionWorld::Ints;
  using Bytes = SelectionWorld::Bytes;

  struct Row {
    std::int64_t r = 0, batch = 0, state = 0, visible = 0, ids = 0, tail = 0, length = 0;
    std::vector<std::int64_t> order;  // the selected ids by first occurrence
    std::set<std::int64_t> selected;
    bool partial() const { return tail != 0 && selected.contains(ids - 1); }
  };

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  template <class... T>
  void fail(fmt::format_string<T...> format, T&&... args) {
    if (error_.empty()) error_ = fmt::format(format, std::forward<T>(args)...);
  }
  static std::int32_t status(const SelectionWorld& world, const Row& row, std::int64_t p) {
    return world.status[at(row.state * (world.k + 1) + p)];
  }
  std::int64_t tokens(const Row& row, std::int64_t id) const {
    return row.tail != 0 && id == row.ids - 1 ? row.tail : before_.block;
  }

  Row read_row(std::int64_t r) const {
    const SelectionWorld& w = before_;
    Row row;
    row.r = r;
    row.batch = r / w.rows_per_batch;
    row.state = w.status_row[at(r)];
    const std::int64_t later = std::max<std::int64_t>(w.q[at(row.batch)] - 1 - r % w.rows_per_batch, 0);
    row.visible = w.kv[at(row.batch)] - later;
    if (row.state < 0 || row.visible <= 0) return row;
    row.tail = row.visible % w.block;  // 0: the last block is full
    row.ids = row.visible / w.block + (row.tail != 0 ? 1 : 0);
    const auto list = w.topk.begin() + r * w.k;
    const auto end = std::find_if(list, list + w.k, [](std::int32_t id) { return id < 0; });
    for (auto id = list; id != end; ++id) {
      if (*id < row.ids && row.selected.insert(*id).second) row.order.push_back(*id);
    }
    for (const std::int64_t id : row.selected) row.length += tokens(row, id);
    return row;
  }

  // Token t of a row's selection, as a number among the tokens of the cache.
  std::int64_t selection_token(const Row& row, std::int64_t t) const {
    const std::int64_t page =
        before_.selection_table[at(row.state * before_.selection_columns + t / before_.selection_page)];
    return page * before_.selection_page + t % before_.selection_page;
  }
  std::int64_t full_token(const Row& row, std::int64_t t) const {
    const std::int64_t page =
        before_.full_table[at(row.batch * before_.full_columns + t / before_.full_page)];
    return page * before_.full_page + t % before_.full_page;
  }
  static bool same(const Bytes& a, std::int64_t i, const Bytes& b, std::int64_t j, std::int64_t bytes) {
    return std::equal(a.begin() + i * bytes, a.begin() + (i + 1) * bytes, b.begin() + j * bytes);
  }

  void check_row(const Row& row, std::set<std::int64_t>& fetched) {
    const auto n = static_cast<std::int64_t>(row.selected.size());
    const std::string who = fmt::format("row {} (state {})", row.r, row.state);
    status_rows_.insert(row.state);
    // 1
    if (status(after_, row, before_.k) != row.length)
      return fail("{}: status says {} tokens, expected {}", who, status(after_, row, before_.k), row.length);
    // 2
    std::map<std::int64_t, std::int64_t> slot_of;
    for (std::int64_t p = 0; p < before_.k; ++p) {
      const std::int64_t id = status(after_, row, p);
      if (p >= n) {
        if (id != -1) return fail("{}: slot {} behind the {} used ones holds {}", who, p, n, id);
      } else if (!row.selected.contains(id) || !slot_of.emplace(id, p).second) {
        return fail("{}: slot {} holds {}, which was not selected or twice", who, p, id);
      }
    }
    // 4
    if (row.partial() && slot_of[row.ids - 1] != n - 1)
      return fail("{}: the partial block is in slot {} of {}", who, slot_of[row.ids - 1], n);
    // 3
    for (const auto& [id, p] : slot_of) {
      for (std::int64_t t = 0; t < tokens(row, id); ++t) {
        const std::int64_t to = selection_token(row, p * before_.block + t);
        const std::int64_t from = full_token(row, id * before_.block + t);
        written_[at(to)] = true;
        if (!same(after_.selection_kv, to, before_.full_kv, from, before_.kv_bytes) ||
            !same(after_.selection_rope, to, before_.full_rope, from, before_.rope_bytes)) {
          return fail("{}: token {} of id {} in slot {} differs from the full cache", who, t, id, p);
        }
      }
    }
    check_order(row, slot_of, who, fetched);
  }

  void check_order(const Row& row, std::map<std::int64_t, std::int64_t>& slot_of, const std::string& who,
                   std::set<std::int64_t>& fetched) {
    const auto n = static_cast<std::int64_t>(row.selected.size());
    const std::int64_t len = status(before_, row, before_.k);
    // Whole blocks below both ends are trusted; the lowest slot of an id counts.
    const std::int64_t settled =
        before_.kv[at(row.batch)] - std::max<std::int64_t>(before_.q[at(row.batch)], 0);
    std::map<std::int64_t, std::int64_t> resident;
    for (std::int64_t p = std::min(before_.k, std::max<std::int64_t>(len, 0) / before_.block) - 1; p >= 0;
         --p) {
      const std::int64_t id = status(before_, row, p);
      if (row.selected.contains(id) && (id + 1) * before_.block <= settled) resident[id] = p;
    }
    std::set<std::int64_t> free;
    for (std::int64_t p = 0; p < n; ++p) free.insert(p);
    std::set<std::int64_t> placed;
    const auto expect = [&](std::int64_t id, std::int64_t p, const char* rule) {
      placed.insert(id);
      free.erase(p);
      if (slot_of[id] != p)
        fail("{}: rule {}: id {} is in slot {}, expected {}", who, rule, id, slot_of[id], p);
    };
    if (row.partial()) expect(row.ids - 1, n - 1, "a");
    for (const auto& [id, p] : resident) {
      if (free.contains(p)) expect(id, p, "b");
    }
    for (const std::int64_t id : row.order) {
      if (!placed.contains(id)) expect(id, *free.begin(), "c");
    }
    std::int64_t moved = 0;
    for (const auto& [id, p] : resident) moved += slot_of[id] != p ? 1 : 0;
    for (const std::int64_t id : row.order) {
      if (!resident.contains(id)) fetched.insert(id);
    }
    const auto hits = static_cast<std::int64_t>(resident.size());
    check_counters(row.r, hits, n - hits, moved);
  }

  void check_counters(std::int64_t r, std::int64_t hits, std::int64_t misses, std::int64_t moved) {
    const std::int32_t* seen = &after_.counters[at(3 * r)];
    if (seen[0] != hits || seen[1] != misses || seen[2] != moved) {
      fail("row {}: counters {} {} {}, expected {} {} {}", r, seen[0], seen[1], seen[2], hits, misses, moved);
    }
  }

  // 5, and that inputs stayed.
  void check_the_rest() {
    for (std::size_t t = 0; t < written_.size(); ++t) {
      const auto token = static_cast<std::int64_t>(t);
      if (!written_[t] &&
          (!same(after_.selection_kv, token, before_.selection_kv, token, before_.kv_bytes) ||
           !same(after_.selection_rope, token, before_.selection_rope, token, before_.rope_bytes))) {
        return fail("token {} of page {} was written", token % before_.selection_page,
                    token / before_.selection_page);
      }
    }
    const auto columns = at(before_.k + 1);
    for (std::size_t i = 0; i < before_.status.size(); ++i) {
      if (!status_rows_.contains(static_cast<std::int64_t>(i / columns)) &&
          before_.status[i] != after_.status[i])
        return fail("status row {}, which no active row has, changed", i / columns);
    }
    if (before_.selection_table != after_.selection_table || before_.full_table != after_.full_table ||
        before_.topk != after_.topk || before_.kv != after_.kv || before_.full_kv != after_.full_kv ||
        before_.full_rope != after_.full_rope || before_.status_row != after_.status_row) {
      fail("an input changed");
    }
  }

  const SelectionWorld& before_;
  const SelectionWorld& after_;
  std::vector<bool> written_;  // tokens of the selection cache that the rows own
  std::set<std::int64_t> status_rows_;
  std::string error_;
};

}  // namespace kvferry::harness
