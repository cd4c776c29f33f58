// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "harness/testing.hpp"
#include "ops/group_memcpy/group_memcpy_cases.hpp"
#include "ops/group_memcpy/group_memcpy_oracle.hpp"

namespace kvferry::harness {
namespace {

TEST(GroupMemcpyOracle, Example) {
  std::uint8_t from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  std::uint8_t to[8];
  const auto number = [](const void* pointer) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer));
  };
  std::vector<std::int64_t> table = {number(from + 2), number(to), number(from + 2),
                                     number(to + 5),   0,          number(to + 3)};
  std::vector<std::int64_t> sizes = {2, 1, 1};
  GroupMemcpyOracle oracle;
  oracle.table = {reinterpret_cast<std::byte*>(table.data()), 8, {3, 2}, {2, 1}};
  oracle.sizes = Array{reinterpret_cast<std::byte*>(sizes.data()), 8, {3}, {1}};
  oracle.expected = [](std::uint64_t address) { return reinterpret_cast<std::byte*>(address); };
  oracle.skip_null = true;
  const auto run = [&] {
    std::fill(to, to + 8, std::uint8_t{77});
    oracle.run();
    return std::vector<int>(to, to + 8);
  };
  EXPECT_EQ(run(), (std::vector<int>{3, 4, 77, 77, 77, 3, 77, 77}));
  EXPECT_EQ(oracle.bytes_moved, 3);
  oracle.count = 1;
  EXPECT_EQ(run(), (std::vector<int>{3, 4, 77, 77, 77, 77, 77, 77}));
  oracle.count = 99;

  const std::vector<int> untouched(8, 77);
  oracle.skip_null = false;
  oracle.checked = true;
  EXPECT_EQ(run(), untouched);
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"addr_table", "pair 2"}));
  table[4] = number(to + 1);  // overlaps the destination of pair 0, is the source of pair 2
  EXPECT_EQ(run(), untouched);
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"addr_table", "0", "2"}));
  table[4] = number(to + 3);  // source and destination of pair 2
  EXPECT_EQ(run(), (std::vector<int>{3, 4, 77, 77, 77, 3, 77, 77}));
  sizes[2] = 2;
  table[4] = number(to + 2);
  EXPECT_EQ(run(), untouched);
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"addr_table", "pair 2"}));
  sizes[1] = -4;
  EXPECT_EQ(run(), untouched);
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"sizes", "pair 1", "-4"}));
}

TEST_P(RegisteredCaseTest, GroupMemcpy) {
  if (too_large_here(GetParam())) GTEST_SKIP() << "moves more than ThreadSanitizer has memory for";
  EXPECT_GT(check_cases(GetParam().name), 0);
}
INSTANTIATE_TEST_SUITE_P(, RegisteredCaseTest, registered(group_memcpy_info(), false), test_name);
TEST_P(RegisteredCaseLong, GroupMemcpy) {
  if (too_large_here(GetParam())) GTEST_SKIP() << "moves more than ThreadSanitizer has memory for";
  EXPECT_GT(check_cases(GetParam().name), 0);
}
INSTANTIATE_TEST_SUITE_P(, RegisteredCaseLong, registered(group_memcpy_info(), true), test_name);

TEST(GroupMemcpy, EveryRuleOfPlan) {
  for (const GroupMemcpyBreaker& rule : group_memcpy_breakers()) {
    check_cases("group_memcpy:h=5,w=24,table={flat|pairs},tt={i64|u64},checked={0|1},break=" +
                std::string(rule.name));
  }
}

TEST(GroupMemcpy, Random) {
  check_random_cases(group_memcpy_info(), 1, random_cases(8000));
}
TEST(GroupMemcpyLong, Random) {
  check_random_cases(group_memcpy_info(), 1'000'000, random_cases(200'000));
}

TEST(GroupMemcpy, EveryImplementationRuns) {
  check_that_all_ran(group_memcpy_info());
}

}  // namespace
}  // namespace kvferry::harness
