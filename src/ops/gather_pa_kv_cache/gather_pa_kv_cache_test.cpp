// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "harness/random.hpp"
#include "harness/testing.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_cases.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_oracle.hpp"

namespace kvferry::harness {
namespace {

TEST(GatherPaKvCacheOracle, Example) {
  // Blocks of 2 tokens of 1 byte; token (b, s) of K is 10 b + s + 1, of V 100 + that.
  std::vector<std::uint8_t> k = {1, 2, 11, 12, 21, 22};
  std::vector<std::uint8_t> v = {101, 102, 111, 112};  // one block less
  std::vector<std::int32_t> table = {2, 0, -1, 1, 9, 9};
  std::vector<std::int32_t> lens = {3, 2};
  std::vector<std::int32_t> offset = {0, 1};  // less than a block: no shift
  std::vector<std::uint8_t> key(6, 77);
  std::vector<std::uint8_t> value(6, 77);
  const auto bytes = [](auto& vector) { return reinterpret_cast<std::byte*>(vector.data()); };

  GatherOracle oracle;
  oracle.key_cache = {bytes(k), 1, {3, 2, 1, 1}, {2, 1, 1, 1}};
  oracle.value_cache = {bytes(v), 1, {2, 2, 1, 1}, {2, 1, 1, 1}};
  oracle.block_tables = {bytes(table), 4, {2, 3}, {3, 1}};
  oracle.seq_lens = {bytes(lens), 4, {2}, {1}};
  oracle.seq_offset = Array{bytes(offset), 4, {2}, {1}};
  oracle.key = {bytes(key), 1, {6, 1, 1}, {1, 1, 1}};
  oracle.value = {bytes(value), 1, {6, 1, 1}, {1, 1, 1}};
  oracle.run();
  EXPECT_EQ(key, (std::vector<std::uint8_t>{21, 22, 1, 11, 12, 77}));
  EXPECT_EQ(value, (std::vector<std::uint8_t>{0, 0, 101, 111, 112, 77}));
  EXPECT_EQ(oracle.record.bad, 1U);
  EXPECT_EQ(oracle.record.batch, 0);
  EXPECT_EQ(oracle.record.column, 0);
  EXPECT_EQ(oracle.record.id, 2);
  EXPECT_EQ(oracle.record.which, 2U);

  // Cumulative sums that start at 1, columns 2 and -1.
  std::vector<std::int32_t> sums = {1, 3, 5};
  offset = {5, -2};
  key.assign(6, 77);
  oracle.cumsum = true;
  oracle.seq_lens = {bytes(sums), 4, {3}, {1}};
  oracle.run();
  EXPECT_EQ(key, (std::vector<std::uint8_t>{77, 0, 0, 0, 0, 77}));
  EXPECT_EQ(oracle.record.bad, 4U);
  EXPECT_EQ(oracle.record.column, 2);
  EXPECT_EQ(oracle.record.which, 3U);

  oracle.reject = true;
  key.assign(6, 77);
  oracle.run();
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"block_tables", "batch", "0", "column", "2", "-1"}));
  EXPECT_EQ(key, std::vector<std::uint8_t>(6, 77));
  sums = {1, 3, 2};
  oracle.run();
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"seq_lens", "2", "2"}));
}

TEST(GatherPaKvCacheOracle, FractalNzExample) {
  // e = 16 two-byte elements: element j of slot s is unit j / 16, row s.
  std::vector<std::uint16_t> cache(128);
  for (std::size_t i = 0; i < cache.size(); ++i) cache[i] = static_cast<std::uint16_t>(i);
  std::vector<std::int32_t> table = {1};
  std::vector<std::int32_t> lens = {2};
  std::vector<std::uint16_t> key(64);
  std::vector<std::uint16_t> value(64);
  const auto bytes = [](auto& vector) { return reinterpret_cast<std::byte*>(vector.data()); };
  GatherOracle oracle;
  oracle.nz = true;
  oracle.key_cache = {bytes(cache), 2, {2, 2, 2, 16}, {64, 32, 16, 1}};
  oracle.value_cache = oracle.key_cache;
  oracle.block_tables = {bytes(table), 4, {1, 1}, {1, 1}};
  oracle.seq_lens = {bytes(lens), 4, {1}, {1}};
  oracle.key = {bytes(key), 2, {2, 32}, {32, 1}};
  oracle.value = {bytes(value), 2, {2, 32}, {32, 1}};
  oracle.run();
  EXPECT_EQ(key[0], 64);  // block 1, unit 0, slot 0
  EXPECT_EQ(key[15], 79);
  EXPECT_EQ(key[16], 96);            // unit 1, slot 0
  EXPECT_EQ(key[32], 80);            // unit 0, slot 1
  EXPECT_EQ(key[32 + 17], 112 + 1);  // unit 1, slot 1
  EXPECT_EQ(value, key);
}

TEST_P(RegisteredCaseTest, Gather) {
  EXPECT_GT(check_cases(GetParam().name), 0);
}
INSTANTIATE_TEST_SUITE_P(, RegisteredCaseTest, registered(gather_pa_kv_cache_info(), false), test_name);

TEST(GatherPaKvCache, EveryRuleOfPlan) {
  for (const GatherBreaker& rule : gather_breakers()) {
    const std::string name = rule.name;
    for (const char* mode : {"nd", "nz"}) {
      // The rules that only one layout has.
      if (name.starts_with("nz_") && mode == std::string("nd")) continue;
      if (name == "key_heads" && mode == std::string("nz")) continue;
      check_cases(
          "gather_pa_kv_cache:lens=5;3,offset=4;0,w=3,h=2,dk=16,dv=8,cumsum={0|1},idx={i32|i64},mode=" +
          std::string(mode) + ",policy={default|reject},break=" + name);
    }
  }
}

TEST(GatherPaKvCache, Random) {
  check_random_cases(gather_pa_kv_cache_info(), 1, random_cases(8000));
}
TEST(GatherPaKvCacheLong, Random) {
  check_random_cases(gather_pa_kv_cache_info(), 1'000'000, random_cases(200'000));
}

// Properties that need no oracle, on shapes at random.

struct Problem {
  std::int64_t bs = 0;
  std::int64_t units = 0;  // of 32 bytes in a row
  std::int64_t blocks = 0;
  std::int64_t width = 0;
  std::vector<std::int32_t> lens, sums, table;
  std::vector<std::uint8_t> cache;

  explicit Problem(Random& random)
      : bs(random.between(1, 20)),
        units(random.between(1, 12)),
        blocks(random.between(1, 9)),
        width(random.between(1, 5)) {
    sums = {0};
    for (std::int64_t i = random.between(1, 6); i > 0; --i) {
      lens.push_back(static_cast<std::int32_t>(random.between(0, width * bs + 2)));
      sums.push_back(sums.back() + lens.back());
    }
    table.resize(lens.size() * to_size(width));
    for (std::int32_t& id : table) id = static_cast<std::int32_t>(random.between(-1, blocks));
    cache.resize(to_size(blocks * bs * units * 32));
    fill_random(reinterpret_cast<std::byte*>(cache.data()), static_cast<std::int64_t>(cache.size()),
                random.next());
  }
  std::int64_t row_bytes() const { return units * 32; }

  // Rows of K; V is the same cache as bytes, so that both paths see two different calls.
  std::vector<std::uint8_t> gather(bool nz, bool cumsum, const Context& context) const {
    const std::int64_t rows = sums.back() + 2;
    std::vector<std::uint8_t> key(to_size(rows * row_bytes()), 77);
    std::vector<std::uint8_t> value = key;
    const auto batches = static_cast<std::int64_t>(lens.size());
    GatherPaKvCacheArgs args;
    args.cache_mode = nz ? CacheMode::kPaNz : CacheMode::kNorm;
    const std::vector<std::int64_t> shape = nz ? std::vector{blocks, units, bs, std::int64_t{32}}
                                               : std::vector{blocks, bs, std::int64_t{1}, row_bytes()};
    const std::vector<std::int64_t> out_shape =
        nz ? std::vector{rows, row_bytes()} : std::vector{rows, std::int64_t{1}, row_bytes()};
    void* memory = const_cast<std::uint8_t*>(cache.data());
    args.key_cache = args.value_cache = contiguous(memory, DType::kInt8, shape);
    args.key = contiguous(static_cast<void*>(key.data()), DType::kInt8, out_shape);
    args.value = contiguous(static_cast<void*>(value.data()), DType::kInt8, out_shape);
    args.block_tables = contiguous(table.data(), DType::kInt32, {batches, width});
    args.seq_lens = cumsum ? contiguous(sums.data(), DType::kInt32, {batches + 1})
                           : contiguous(lens.data(), DType::kInt32, {batches});
    args.is_seq_lens_cumsum = cumsum;
    EXPECT_TRUE(gather_pa_kv_cache(args, context).ok());
    EXPECT_EQ(key, value);
    return key;
  }
};

TEST(GatherPaKvCache, PlainLengthsAndSumsAgree) {
  const Context context;
  for (std::int64_t seed = 0; seed < random_cases(500); ++seed) {
    Random random(static_cast<std::uint64_t>(seed));
    const Problem problem(random);
    ASSERT_EQ(problem.gather(false, false, context), problem.gather(false, true, context)) << "seed " << seed;
  }
}

TEST(GatherPaKvCache, FractalNzIsNormAfterConversion) {
  const Context context;
  for (std::int64_t seed = 0; seed < random_cases(500); ++seed) {
    Random random(static_cast<std::uint64_t>(seed));
    const Problem norm(random);
    Problem nz = norm;
    for (std::int64_t block = 0; block < norm.blocks; ++block) {
      for (std::int64_t slot = 0; slot < norm.bs; ++slot) {
        for (std::int64_t unit = 0; unit < norm.units; ++unit) {
          const std::int64_t from = ((block * norm.bs + slot) * norm.units + unit) * 32;
          const std::int64_t to = ((block * norm.units + unit) * norm.bs + slot) * 32;
          std::copy_n(norm.cache.begin() + from, 32, nz.cache.begin() + to);
        }
      }
    }
    ASSERT_EQ(norm.gather(false, false, context), nz.gather(true, false, context)) << "seed " << seed;
  }
}

TEST(GatherPaKvCache, EveryImplementationRuns) {
  check_that_all_ran(gather_pa_kv_cache_info());
}

}  // namespace
}  // namespace kvferry::harness
