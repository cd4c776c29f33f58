// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "harness/testing.hpp"
#include "ops/scatter_pa_kv_cache/scatter_pa_kv_cache_cases.hpp"
#include "ops/scatter_pa_kv_cache/scatter_pa_kv_cache_oracle.hpp"

namespace kvferry::harness {
namespace {

std::byte* bytes(auto& vector) { return reinterpret_cast<std::byte*>(vector.data()); }

TEST(ScatterPaKvCacheOracle, Example) {
  // 3 blocks of 2 slots of 1 byte, value has 2 blocks.
  std::vector<std::uint8_t> k = {1, 2, 3, 4, 5, 6};
  std::vector<std::uint8_t> v = {11, 12, 13, 14, 15, 16};
  std::vector<std::int32_t> slots = {5, -1, 0, 6, 3};  // 5 is beyond value, 6 beyond both
  std::vector<std::uint8_t> key(6, 77);
  std::vector<std::uint8_t> value(4, 77);
  ScatterOracle oracle;
  oracle.key = {bytes(k), 1, {6, 1, 1}, {1, 1, 1}};
  oracle.value = Array{bytes(v), 1, {6, 1, 1}, {1, 1, 1}};
  oracle.slots = {bytes(slots), 4, {5}, {1}};
  oracle.key_cache = {bytes(key), 1, {3, 2, 1, 1}, {2, 1, 1, 1}};
  oracle.value_cache = Array{bytes(value), 1, {2, 2, 1, 1}, {2, 1, 1, 1}};
  oracle.run();
  EXPECT_EQ(key, (std::vector<std::uint8_t>{3, 77, 77, 5, 77, 1}));
  EXPECT_EQ(value, (std::vector<std::uint8_t>{13, 77, 77, 15}));
  EXPECT_EQ(oracle.record.bad, 3U);
  EXPECT_EQ(oracle.record.batch, 0);
  EXPECT_EQ(oracle.record.id, 5);
  EXPECT_EQ(oracle.record.which, 2U);

  oracle.reject = true;
  key.assign(6, 77);
  oracle.run();
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"slot_mapping", "0", "5"}));
  EXPECT_EQ(key, std::vector<std::uint8_t>(6, 77));

  slots = {5, 2, 5, 2, 5};
  oracle.value.reset();
  oracle.run();
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"slot_mapping", "2", "5"}));
  EXPECT_EQ(oracle.record.bad, 3U);
  EXPECT_EQ(oracle.record.which, 1U | 8U);
  EXPECT_EQ(oracle.key_open.size(), 3U);
}

TEST(ScatterPaKvCacheOracle, Layouts) {
  // Position 1 of block 1; H = 2, D = 32 two-byte elements, so e = 16.
  std::vector<std::uint16_t> cache(2 * 2 * 2 * 32);
  const auto index = [&](const std::byte* element) { return (element - bytes(cache)) / 2; };
  const Array nd = {bytes(cache), 2, {2, 2, 2, 32}, {128, 64, 32, 1}};
  EXPECT_EQ(index(cache_element(nd, CacheLayout::kNd, 32, 1, 1, 1, 3)), 128 + 64 + 32 + 3);
  EXPECT_EQ(index(cache_element(nd, CacheLayout::kNhsd, 32, 1, 1, 0, 3)), 128 + 32 + 3);
  const Array nz4 = {bytes(cache), 2, {2, 4, 2, 16}, {128, 32, 16, 1}};
  EXPECT_EQ(index(cache_element(nz4, CacheLayout::kNz4, 32, 1, 1, 1, 17)), 128 + 3 * 32 + 16 + 1);
  const Array nz5 = {bytes(cache), 2, {2, 2, 2, 2, 16}, {128, 64, 32, 16, 1}};
  EXPECT_EQ(index(cache_element(nz5, CacheLayout::kNz5, 32, 1, 1, 1, 17)), 128 + 3 * 32 + 16 + 1);
}

TEST_P(RegisteredCaseTest, Scatter) { EXPECT_GT(check_cases(GetParam().name), 0); }
INSTANTIATE_TEST_SUITE_P(, RegisteredCaseTest, registered(scatter_pa_kv_cache_info(), false), test_name);

TEST(ScatterPaKvCache, EveryRuleOfPlan) {
  for (const ScatterBreaker& rule : scatter_breakers()) {
    for (const std::string& mode : split(rule.modes, ' ')) {
      check_cases("scatter_pa_kv_cache:t=7,h=3,dk=32,dv=16,bs=4,idx={i32|i64},mode=" + mode +
                  ",policy={default|reject},break=" + rule.name);
    }
  }
}

TEST(ScatterPaKvCache, Random) { check_random_cases(scatter_pa_kv_cache_info(), 1, random_cases(8000)); }
TEST(ScatterPaKvCacheLong, Random) {
  check_random_cases(scatter_pa_kv_cache_info(), 1'000'000, random_cases(200'000));
}

TEST(ScatterPaKvCache, ZEveryImplementationRan) { check_that_all_ran(scatter_pa_kv_cache_info()); }

}  // namespace
}  // namespace kvferry::harness
