// SPDX-License-Identifier: Apache-2.0
//
// Kernels over lists of ids: which of them a table holds, and which places of a list are left. The selection
// planner is made of them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kvferry::internal::cpu {

// Ids to their index, by open addressing. The keys stay with the caller, in an array whose element -1 is no
// id, so that an entry is 2 bytes. The table is nearly empty because a wrong guess of "taken or not" costs
// more than a larger table: planning a row of 2,048 ids, none of which stays, takes 23.9 / 18.6 / 17.3 us
// with 4 / 8 / 16 entries an id (16, 32 and 64 KiB; Zen 4). Buckets of four ids compared at once: 19.7.
template <class Entry>
class IdTable {
 public:
  static constexpr std::int64_t kEntriesPerId = sizeof(Entry) == 2 ? 16 : 8;
  static constexpr int bits_for(std::int64_t ids) {
    return std::min(31,
                    static_cast<int>(std::bit_width(static_cast<std::uint64_t>(kEntriesPerId * ids - 1))));
  }
  // Entries of memory, one more than the table has: a kernel reads two at a time.
  static constexpr std::int64_t entries_for(std::int64_t ids) {
    return (std::int64_t{1} << bits_for(ids)) + 1;
  }

  IdTable(Entry* entries, int bits)
      : entries_(entries), shift_(32 - bits), last_((std::size_t{1} << bits) - 1) {}
  void clear() { std::memset(entries_, 0, sizeof(Entry) * (last_ + 1)); }

  // The index of `id`, or -1.
  std::int32_t find(std::int32_t id, const std::int32_t* keys) const {
    std::size_t at = home(id);
    while (holds_another(entries_[at], id, keys)) at = next(at);
    return index(entries_[at]);
  }
  // The index that `id` has, or -1 and it gets `new_index`.
  std::int32_t find_or_insert(std::int32_t id, std::int32_t new_index, const std::int32_t* keys) {
    std::size_t at = home(id);
    for (; entries_[at] != 0; at = next(at)) {
      if (keys[index(entries_[at])] == id) return index(entries_[at]);
    }
    entries_[at] = static_cast<Entry>(new_index + 1);
    return -1;
  }

  // For kernels that do the same with vectors. An entry is 1 + the index, 0 if there is none.
  static constexpr std::uint32_t kMultiplier = 0x9e3779b1U;
  const Entry* entries() const { return entries_; }
  int shift() const { return shift_; }

 private:
  static std::int32_t index(Entry entry) { return static_cast<std::int32_t>(entry) - 1; }
  std::size_t home(std::int32_t id) const { return (static_cast<std::uint32_t>(id) * kMultiplier) >> shift_; }
  std::size_t next(std::size_t at) const { return (at + 1) & last_; }
  static bool holds_another(Entry entry, std::int32_t id, const std::int32_t* keys) {
    auto differs =
        static_cast<std::uint32_t>(keys[index(entry)] ^ id) & (0 - static_cast<std::uint32_t>(entry != 0));
    // Ids are there or not in random order. Asked one by one, "is there an entry" and "is it this one" are
    // two coins to guess, and wrong guesses took a third of the planning.
    asm("" : "+r"(differs));
    return differs != 0;
  }

  Entry* entries_;
  int shift_;
  std::size_t last_;
};

// Which ids of a list stand in a table.
struct IdSearch {
  const std::int32_t* keys;  // of the table
  const std::int32_t* ids;
  std::int32_t count;
  std::int32_t below;   // larger ids are not looked for,
  std::int32_t except;  // nor is the one at this place
};

// Writes the matches, a pair (index into keys, place in ids) each, in the order of places; returns their
// number. `index` and `place` have room for count + 16.
template <class Entry>
std::int32_t find_ids(const IdTable<Entry>& table, const IdSearch& search, std::int32_t* index,
                      std::int32_t* place) {
  const IdSearch s = search;
  std::int32_t found = 0;
  for (std::int32_t i = 0; i < s.count; ++i) {
    const std::int32_t id = s.ids[i];
    const std::int32_t j = table.find(id, s.keys);
    index[found] = j;
    place[found] = i;
    found += static_cast<std::int32_t>(j >= 0) & static_cast<std::int32_t>(id < s.below) &
             static_cast<std::int32_t>(i != s.except);
  }
  return found;
}

struct IdKernels {
  std::int32_t (*find)(const IdTable<std::uint16_t>& table, const IdSearch& search, std::int32_t* index,
                       std::int32_t* place);
  // The places of values that are not in [0, limit), in order; returns their number. `places` has room for
  // count + 16.
  std::int32_t (*outside)(const std::int32_t* values, std::int32_t count, std::int32_t limit,
                          std::int32_t* places);
};

extern const IdKernels kGenericIds;
extern const IdKernels kAvx512Ids;

}  // namespace kvferry::internal::cpu
