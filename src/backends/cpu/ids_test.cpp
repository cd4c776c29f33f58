// SPDX-License-Identifier: Apache-2.0
//
// The id kernels of every instruction set against plain loops.
#include "backends/cpu/ids.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "backends/cpu/kernels.hpp"
#include "harness/random.hpp"

namespace kvferry::internal::cpu {
namespace {

constexpr std::size_t kRoom = 16;  // that kernels may write behind their results
constexpr std::int32_t kGuard = -77;

// Lists of exactly the promised room, and a guard behind it.
std::vector<std::int32_t> results(std::size_t count) {
  return std::vector<std::int32_t>(count + kRoom + 1, kGuard);
}

class Table {
 public:
  explicit Table(const std::vector<std::int32_t>& ids)
      : entries_(static_cast<std::size_t>(IdTable<std::uint16_t>::entries_for(std::ssize(ids)))),
        table_(entries_.data(), IdTable<std::uint16_t>::bits_for(std::ssize(ids))) {
    table_.clear();
    keys_.assign(1, -1);
    for (const std::int32_t id : ids) {
      keys_.push_back(id);
      if (table_.find_or_insert(id, static_cast<std::int32_t>(keys_.size()) - 2, keys()) >= 0)
        keys_.pop_back();
    }
  }
  const IdTable<std::uint16_t>& table() const { return table_; }
  const std::int32_t* keys() const { return keys_.data() + 1; }
  std::size_t size() const { return keys_.size() - 1; }

 private:
  std::vector<std::uint16_t> entries_;
  IdTable<std::uint16_t> table_;
  std::vector<std::int32_t> keys_;
};

void expect_finds(const Table& table, const std::vector<std::int32_t>& ids, std::int32_t below,
                  std::int32_t except) {
  std::vector<std::pair<std::int32_t, std::int32_t>> expected;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto* const end = table.keys() + table.size();
    const auto* const at = std::find(table.keys(), end, ids[i]);
    if (at != end && ids[i] < below && std::cmp_not_equal(i, except))
      expected.emplace_back(at - table.keys(), static_cast<std::int32_t>(i));
  }
  const IdSearch search{table.keys(), ids.data(), static_cast<std::int32_t>(ids.size()), below, except};
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.why_not().empty()) continue;
    auto index = results(ids.size()), place = results(ids.size());
    const std::int32_t found = set.kernels.ids.find(table.table(), search, index.data(), place.data());
    ASSERT_EQ(found, std::ssize(expected)) << set.name;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(index[i], expected[i].first) << set.name << " " << i;
      EXPECT_EQ(place[i], expected[i].second) << set.name << " " << i;
    }
    EXPECT_EQ(index.back(), kGuard) << set.name;
    EXPECT_EQ(place.back(), kGuard) << set.name;
  }
}

// Ids whose first probe is the last entry of the table for `count` ids: the next ones begin at its front.
std::vector<std::int32_t> ids_of_the_last_entry(std::size_t count) {
  const int shift = 32 - IdTable<std::uint16_t>::bits_for(static_cast<std::int64_t>(count));
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; ids.size() < count; ++id) {
    if ((static_cast<std::uint32_t>(id) * IdTable<std::uint16_t>::kMultiplier) >> shift ==
        0xffffffffU >> shift)
      ids.push_back(id);
  }
  return ids;
}

TEST(Ids, FindsInTablesOfEverySize) {
  harness::Random random(3);
  for (const std::int32_t keys : {1, 2, 3, 15, 16, 17, 100, 2048, 65534}) {
    std::vector<std::int32_t> ids;
    ids.reserve(static_cast<std::size_t>(keys));
    for (std::int32_t i = 0; i < keys; ++i)
      ids.push_back(static_cast<std::int32_t>(random.between(0, 2 * keys - 1)));
    const Table table(ids);
    for (const std::int32_t count : {0, 1, 15, 16, 17, 31, 33, 200}) {
      std::vector<std::int32_t> wanted;
      wanted.reserve(static_cast<std::size_t>(count));
      for (std::int32_t i = 0; i < count; ++i)
        wanted.push_back(static_cast<std::int32_t>(random.between(0, 3 * keys - 1)) -
                         (i % 7 == 0 ? 3 * keys : 0));
      expect_finds(table, wanted, 3 * keys, -1);
      expect_finds(table, wanted, keys, count / 2);
    }
  }
}

TEST(Ids, ProbesGoOnAtTheFront) {
  for (const std::size_t count : {2U, 7U, 40U}) {
    const std::vector<std::int32_t> ids = ids_of_the_last_entry(count);
    std::vector<std::int32_t> wanted = ids;
    for (const std::int32_t id : ids) wanted.push_back(id + 1);
    expect_finds(Table(ids), wanted, std::numeric_limits<std::int32_t>::max(), -1);
  }
}

TEST(Ids, PlacesOutside) {
  harness::Random random(4);
  for (const std::size_t count : {0U, 1U, 15U, 16U, 17U, 32U, 500U}) {
    std::vector<std::int32_t> values(count);
    for (std::int32_t& value : values) value = static_cast<std::int32_t>(random.between(0, 12 - 1)) - 2;
    for (const std::int32_t limit : {0, 1, 5, 100}) {
      std::vector<std::int32_t> expected;
      for (std::size_t i = 0; i < count; ++i) {
        if (values[i] < 0 || values[i] >= limit) expected.push_back(static_cast<std::int32_t>(i));
      }
      for (const InstructionSet& set : instruction_sets()) {
        if (!set.why_not().empty()) continue;
        auto places = results(count);
        const std::int32_t found =
            set.kernels.ids.outside(values.data(), static_cast<std::int32_t>(count), limit, places.data());
        EXPECT_EQ(places.back(), kGuard) << set.name;
        places.resize(static_cast<std::size_t>(found));
        EXPECT_EQ(places, expected) << set.name << " " << count << " " << limit;
      }
    }
  }
}

}  // namespace
}  // namespace kvferry::internal::cpu
