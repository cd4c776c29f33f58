// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "harness/testing.hpp"
#include "ops/block_copy_oracle.hpp"
#include "ops/copy_blocks/copy_blocks_cases.hpp"

namespace kvferry::harness {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::byte* bytes(auto& vector) {
  return reinterpret_cast<std::byte*>(vector.data());
}

TEST(CopyBlocksOracle, Example) {
  // 5 blocks of [2, 1] and, in another cache, of [1].
  const Bytes k = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const Bytes v = {11, 12, 13, 14, 15};
  Bytes k_before = k;
  Bytes v_before = v;
  Bytes k_after;
  Bytes v_after;
  std::vector<std::int32_t> mapping;
  BlockCopyOracle oracle;
  oracle.one_pool = true;
  const auto run = [&](std::vector<std::int32_t> pairs) {
    mapping = std::move(pairs);
    k_after = k;
    v_after = v;
    oracle.src = {{bytes(k_before), 1, {5, 2, 1}, {2, 1, 1}}, {bytes(v_before), 1, {5}, {1}}};
    oracle.dst = {{bytes(k_after), 1, {5, 2, 1}, {2, 1, 1}}, {bytes(v_after), 1, {5}, {1}}};
    oracle.mapping = {bytes(mapping), 4, {static_cast<std::int64_t>(mapping.size() / 2), 2}, {2, 1}};
    oracle.run();
  };
  run({0, 4, 3, 2, -1, 0, 1, 1});
  EXPECT_EQ(k_after, (Bytes{1, 2, 3, 4, 7, 8, 7, 8, 1, 2}));
  EXPECT_EQ(v_after, (Bytes{11, 12, 14, 14, 11}));
  EXPECT_EQ(oracle.record.bad, 0U);
  EXPECT_TRUE(oracle.open.empty());
  EXPECT_EQ(oracle.bytes_moved, 6);

  run({0, 4, 5, 9, 4, 3, 1, 4, 2, -7, 2, 5});
  EXPECT_EQ(oracle.record.bad, 4U);
  EXPECT_EQ(oracle.record.batch, 1);
  EXPECT_EQ(oracle.record.id, 5);
  EXPECT_EQ(oracle.record.which, 16U | 32U);
  EXPECT_EQ(oracle.open, (std::vector<std::int64_t>{3, 4}));

  oracle.reject = true;
  run({0, 4, 4, 3, 2, 5});
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"mapping", "pair 2", "5", "5"}));
  EXPECT_EQ(k_after, k);
  run({0, 4, 4, 3, 1, 4});
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"mapping", "pair 1", "4", "pair 0"}));
  run({0, 4, 4, 4, 1, 4});
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"mapping", "pair 2", "4", "pair 0"}));
  EXPECT_EQ(v_after, v);
}

TEST_P(RegisteredCaseTest, CopyBlocks) {
  EXPECT_GT(check_cases(GetParam().name), 0);
}
INSTANTIATE_TEST_SUITE_P(, RegisteredCaseTest, registered(copy_blocks_info(), false), test_name);

TEST(CopyBlocks, EveryRuleOfPlan) {
  for (const BlockCopyBreaker& rule : breakers_of(copy_blocks_front())) {
    check_cases(
        "copy_blocks:shape=4;2;8/3;5,dtype={f16|u8;f32},idx={i32|i64},policy={default|reject},break=" +
        std::string(rule.name));
  }
}

TEST(CopyBlocks, Random) {
  check_random_cases(copy_blocks_info(), 1, random_cases(8000));
}
TEST(CopyBlocksLong, Random) {
  check_random_cases(copy_blocks_info(), 1'000'000, random_cases(200'000));
}

TEST(CopyBlocks, EveryImplementationRuns) {
  check_that_all_ran(copy_blocks_info());
}

}  // namespace
}  // namespace kvferry::harness
