// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "harness/random.hpp"
#include "harness/testing.hpp"
#include "kvferry/ops/swap_blocks.hpp"
#include "ops/block_copy_oracle.hpp"
#include "ops/swap_blocks/swap_blocks_cases.hpp"

namespace kvferry::harness {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::byte* bytes(auto& vector) {
  return reinterpret_cast<std::byte*>(vector.data());
}

TEST(SwapBlocksOracle, Example) {
  // 3 blocks of [2, 2] to 2 blocks with the axes the other way round.
  Bytes src = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  Bytes dst(8, 77);
  std::vector<std::int32_t> mapping = {2, 0, 1, -1, 3, 1, 0, 0};
  BlockCopyOracle oracle;
  oracle.src = {{bytes(src), 1, {3, 2, 2}, {4, 2, 1}}};
  oracle.dst = {{bytes(dst), 1, {2, 2, 2}, {4, 1, 2}}};
  oracle.mapping = {bytes(mapping), 4, {4, 2}, {2, 1}};
  oracle.count = 3;
  oracle.run();
  EXPECT_EQ(dst, (Bytes{9, 11, 10, 12, 77, 77, 77, 77}));
  EXPECT_EQ(oracle.record.bad, 1U);
  EXPECT_EQ(oracle.record.batch, 2);
  EXPECT_EQ(oracle.record.id, 3);
  EXPECT_EQ(oracle.record.which, 16U);
  oracle.count = 99;
  oracle.run();
  EXPECT_EQ(oracle.record.bad, 2U);
  EXPECT_EQ(oracle.open, (std::vector<std::int64_t>{0}));
  oracle.reject = true;
  oracle.run();
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"mapping", "pair 2", "3", "3"}));
  mapping[4] = -1;
  oracle.run();
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"mapping", "pair 3", "0", "pair 0"}));
}

TEST_P(RegisteredCaseTest, SwapBlocks) {
  EXPECT_GT(check_cases(GetParam().name), 0);
}
INSTANTIATE_TEST_SUITE_P(, RegisteredCaseTest, registered(swap_blocks_info(), false), test_name);

TEST(SwapBlocks, EveryRuleOfPlan) {
  for (const BlockCopyBreaker& rule : breakers_of(swap_blocks_front())) {
    check_cases(
        "swap_blocks:shape=4;2;8/3;5,dtype={f16|u8;f32},idx={i32|i64},policy={default|reject},break=" +
        std::string(rule.name));
  }
}

TEST(SwapBlocks, Random) {
  check_random_cases(swap_blocks_info(), 1, random_cases(8000));
}
TEST(SwapBlocksLong, Random) {
  check_random_cases(swap_blocks_info(), 1'000'000, random_cases(200'000));
}

// Out to a pool of another layout, and back into other blocks: they hold what the first ones held.
void round_trip(std::uint64_t seed, const Context& context) {
  Random random(seed);
  const std::int64_t n = random.between(1, 20);
  struct Pool {
    std::vector<Bytes> memory;
    std::vector<TensorView> views;
    std::int64_t blocks;
  };
  const auto some_ids = [&](const Pool& pool) {
    std::vector<std::int64_t> ids(to_size(pool.blocks));
    std::iota(ids.begin(), ids.end(), 0);
    if (random.one_in(2)) random.shuffle(ids);
    ids.resize(to_size(n));
    return ids;
  };
  Pool device{{}, {}, n + random.between(0, 9)};
  Pool host{{}, {}, n + random.between(0, 9)};
  Pool back{{}, {}, n + random.between(0, 9)};
  for (std::int64_t i = random.between(1, 5); i > 0; --i) {
    const DType dtype = data_types()[to_size(random.between(0, 11))].second;
    std::vector<std::int64_t> shape(to_size(random.between(1, 5)));
    for (std::int64_t& length : shape) length = random.between(1, 12);
    for (Pool* pool : {&device, &host, &back}) {
      shape[0] = pool->blocks;
      const Layout layout = make_layout(
          shape, random.one_in(2) ? random_layout(random, static_cast<int>(shape.size())) : std::string());
      Bytes& memory = pool->memory.emplace_back(to_size(layout.storage_elements * item_bytes(dtype)));
      fill_random(bytes(memory), static_cast<std::int64_t>(memory.size()), random.next());
      pool->views.push_back(strided(memory.data(), dtype, shape, layout.strides, layout.offset));
    }
  }
  const std::vector<std::int64_t> from = some_ids(device), between = some_ids(host), to = some_ids(back);
  const auto swap = [&](const Pool& src, const std::vector<std::int64_t>& src_ids, const Pool& dst,
                        const std::vector<std::int64_t>& dst_ids) {
    std::vector<std::int64_t> mapping;
    for (std::size_t p = 0; p < src_ids.size(); ++p) mapping.insert(mapping.end(), {src_ids[p], dst_ids[p]});
    SwapBlocksArgs args{
        src.views, dst.views, contiguous(mapping.data(), DType::kInt64, {n, 2}), {}, IndexPolicy::kReject};
    const Status status = swap_blocks(args, context);
    ASSERT_TRUE(status.ok()) << status.message();
  };
  swap(device, from, host, between);
  swap(host, between, back, to);
  for (std::size_t i = 0; i < device.views.size(); ++i) {
    const auto array = [&](Pool& pool) {
      const TensorView& view = pool.views[i];
      const auto rank = static_cast<std::ptrdiff_t>(view.rank);
      return Array{bytes(pool.memory[i]),
                   item_bytes(view.dtype),
                   {view.shape.begin(), view.shape.begin() + rank},
                   {view.strides.begin(), view.strides.begin() + rank},
                   view.offset};
    };
    const Array first = array(device);
    const Array last = array(back);
    for (std::size_t p = 0; p < from.size(); ++p) {
      for_each_element(first, from[p], last, to[p], [&](const std::byte* a, const std::byte* b) {
        ASSERT_EQ(std::memcmp(a, b, to_size(first.item)), 0) << "tensor " << i << ", pair " << p;
      });
    }
  }
}

TEST(SwapBlocks, OutAndIn) {
  const Context context;
  for (std::int64_t seed = 1; seed <= random_cases(1000); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    round_trip(static_cast<std::uint64_t>(seed), context);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(SwapBlocks, EveryImplementationRuns) {
  check_that_all_ran(swap_blocks_info());
}

}  // namespace
}  // namespace kvferry::harness
