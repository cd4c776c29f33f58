// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "harness/random.hpp"
#include "harness/testing.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"
#include "ops/scatter_pa_kv_cache/scatter_pa_kv_cache_cases.hpp"
#include "ops/scatter_pa_kv_cache/scatter_pa_kv_cache_oracle.hpp"

namespace kvferry::harness {
namespace {

std::byte* bytes(auto& vector) {
  return reinterpret_cast<std::byte*>(vector.data());
}

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
  std::vector<std::uint16_t> cache(256);
  const auto index = [&](const std::byte* element) { return (element - bytes(cache)) / 2; };
  const Array nd = {bytes(cache), 2, {2, 2, 2, 32}, {128, 64, 32, 1}};
  EXPECT_EQ(index(cache_element(nd, CacheLayout::kNd, 32, 1, 1, 1, 3)), 128 + 64 + 32 + 3);
  EXPECT_EQ(index(cache_element(nd, CacheLayout::kNhsd, 32, 1, 1, 0, 3)), 128 + 32 + 3);
  const Array nz4 = {bytes(cache), 2, {2, 4, 2, 16}, {128, 32, 16, 1}};
  EXPECT_EQ(index(cache_element(nz4, CacheLayout::kNz4, 32, 1, 1, 1, 17)), 128 + 3 * 32 + 16 + 1);
  const Array nz5 = {bytes(cache), 2, {2, 2, 2, 2, 16}, {128, 64, 32, 16, 1}};
  EXPECT_EQ(index(cache_element(nz5, CacheLayout::kNz5, 32, 1, 1, 1, 17)), 128 + 3 * 32 + 16 + 1);
}

TEST_P(RegisteredCaseTest, Scatter) {
  EXPECT_GT(check_cases(GetParam().name), 0);
}
INSTANTIATE_TEST_SUITE_P(, RegisteredCaseTest, registered(scatter_pa_kv_cache_info(), false), test_name);

TEST(ScatterPaKvCache, EveryRuleOfPlan) {
  for (const ScatterBreaker& rule : scatter_breakers()) {
    for (const std::string& mode : split(rule.modes, ' ')) {
      check_cases("scatter_pa_kv_cache:t=7,h=3,dk=32,dv=16,bs=4,idx={i32|i64},mode=" + mode +
                  ",policy={default|reject},break=" + rule.name);
    }
  }
}

TEST(ScatterPaKvCache, Random) {
  check_random_cases(scatter_pa_kv_cache_info(), 1, random_cases(8000));
}
TEST(ScatterPaKvCacheLong, Random) {
  check_random_cases(scatter_pa_kv_cache_info(), 1'000'000, random_cases(200'000));
}

// gather(scatter(x)) == x for every mode, dtype and layout of the caches, with distinct slots at random.

struct Owned {  // a tensor in memory of its own
  std::vector<std::byte> memory;
  TensorView view;
  Owned(DType dtype, const std::vector<std::int64_t>& shape, const std::string& words, std::uint64_t seed) {
    const Layout layout = make_layout(shape, words);
    memory.resize(to_size(layout.storage_elements * item_bytes(dtype)));
    fill_random(memory.data(), static_cast<std::int64_t>(memory.size()), seed);
    view = strided(memory.data(), dtype, shape, layout.strides, layout.offset);
    view.storage_elements = layout.storage_elements;
  }
};

void round_trip(std::uint64_t seed, const Context& context) {
  Random random(seed);
  const auto types = data_types();
  const auto type_at = [&] {
    return types[to_size(random.between(0, static_cast<std::int64_t>(types.size()) - 1))].second;
  };
  const std::string mode = random.pick(std::vector<std::string>{"nd", "nhsd", "nct", "nz", "nz5"});
  const bool nz = mode == "nz" || mode == "nz5";
  const std::int64_t bs = random.between(1, 20);
  const std::int64_t h = random.between(1, 4);

  // Sequences, each with blocks of its own at random.
  std::vector<std::int64_t> lens(to_size(random.between(1, 5)));
  std::int64_t width = 1;
  std::int64_t rows = 0;
  for (std::int64_t& length : lens) {
    length = random.between(0, 3 * bs);
    width = std::max(width, (length + bs - 1) / bs);
    rows += length;
  }
  const auto batches = static_cast<std::int64_t>(lens.size());
  const std::int64_t blocks = batches * width + random.between(0, 3);
  std::vector<std::int64_t> ids(to_size(blocks));
  std::iota(ids.begin(), ids.end(), 0);
  random.shuffle(ids);
  ids.resize(to_size(batches * width));

  // The slot of each row, and rows written in an order of their own.
  std::vector<std::int64_t> slots;
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    for (std::int64_t t = 0; t < lens[to_size(batch)]; ++t)
      slots.push_back(ids[to_size(batch * width + t / bs)] * bs + t % bs);
  }

  ScatterPaKvCacheArgs write;
  GatherPaKvCacheArgs read;
  std::vector<Owned> tensors;
  tensors.reserve(8);
  for (const bool is_key : {true, false}) {
    const DType dtype = type_at();
    const std::int64_t e = 32 / item_bytes(dtype);
    const std::int64_t d = nz ? e * random.between(1, 4) : random.between(1, 60);
    const auto words = [&](int rank) {
      return random.one_in(2) ? random_layout(random, rank) : std::string();
    };
    const TensorView x =
        tensors.emplace_back(dtype, std::vector{rows, h, d}, mode == "nct" ? "" : words(3), seed).view;
    const TensorView y =
        tensors.emplace_back(dtype, nz ? std::vector{rows, h * d} : std::vector{rows, h, d}, "", seed + 1)
            .view;
    std::vector<std::int64_t> shape = {blocks, bs, h, d};
    if (mode == "nhsd") shape = {blocks, h, bs, d};
    if (mode == "nz") shape = {blocks, h * d / e, bs, e};
    if (mode == "nz5") shape = {blocks, h, d / e, bs, e};
    const TensorView cache = tensors.emplace_back(dtype, shape, mode == "nz5" ? "" : words(4), seed + 2).view;
    TensorView read_cache = cache;
    if (mode == "nhsd") {
      std::swap(read_cache.shape[1], read_cache.shape[2]);
      std::swap(read_cache.strides[1], read_cache.strides[2]);
    }
    if (mode == "nz5") read_cache = contiguous(cache.data, dtype, {blocks, h * d / e, bs, e});
    if (is_key) {
      write.key = x;
      write.key_cache = cache;
      read.key_cache = read_cache;
      read.key = y;
      write.nct_strides[0] = h * d;
    } else {
      write.value = x;
      write.value_cache = cache;
      read.value_cache = read_cache;
      read.value = y;
      write.nct_strides[1] = h * d;
    }
  }
  write.slot_mapping = contiguous(slots.data(), DType::kInt64, {rows});
  write.cache_mode = read.cache_mode = nz ? CacheMode::kPaNz : CacheMode::kNorm;
  write.scatter_mode = mode == "nhsd"  ? ScatterMode::kNhsd
                       : mode == "nct" ? ScatterMode::kNct
                                       : ScatterMode::kNone;
  write.index_policy = read.index_policy = IndexPolicy::kReject;
  read.block_tables = contiguous(ids.data(), DType::kInt64, {batches, width});
  read.seq_lens = contiguous(lens.data(), DType::kInt64, {batches});
  read.is_seq_lens_cumsum = false;

  const Status written = scatter_pa_kv_cache(write, context);
  ASSERT_TRUE(written.ok()) << written.message();
  const Status gathered = gather_pa_kv_cache(read, context);
  ASSERT_TRUE(gathered.ok()) << gathered.message();
  for (const auto& [x, y] : {std::pair{write.key, read.key}, std::pair{*write.value, read.value}}) {
    const std::int64_t item = item_bytes(x.dtype);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < h; ++i) {
        for (std::int64_t j = 0; j < x.dim(2); ++j) {
          const auto at = [](const TensorView& view, std::int64_t element, std::int64_t bytes) {
            return static_cast<const std::byte*>(view.data) + (view.offset + element) * bytes;
          };
          const std::int64_t from = (row != 0 ? row * x.stride(0) : 0) + (i != 0 ? i * x.stride(1) : 0) +
                                    (j != 0 ? j * x.stride(2) : 0);
          const std::int64_t to = (row * h + i) * x.dim(2) + j;
          ASSERT_EQ(std::memcmp(at(x, from, item), at(y, to, item), to_size(item)), 0)
              << mode << " row " << row << " head " << i << " element " << j;
        }
      }
    }
  }
}

TEST(ScatterPaKvCache, GatherReadsWhatItWrote) {
  const Context context;
  for (std::int64_t seed = 1; seed <= random_cases(1000); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    round_trip(static_cast<std::uint64_t>(seed), context);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(ScatterPaKvCacheLong, GatherReadsWhatItWrote) {
  const Context context;
  for (std::int64_t seed = 1'000'001; seed <= 1'000'000 + random_cases(50'000); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    round_trip(static_cast<std::uint64_t>(seed), context);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(ScatterPaKvCache, EveryImplementationRuns) {
  check_that_all_ran(scatter_pa_kv_cache_info());
}

}  // namespace
}  // namespace kvferry::harness
