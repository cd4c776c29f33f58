// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <numeric>

#include "harness/random.hpp"
#include "harness/testing.hpp"
#include "ops/transfer_layers/transfer_layers_cases.hpp"
#include "ops/transfer_layers/transfer_layers_oracle.hpp"

namespace kvferry::harness {
namespace {

std::byte* bytes(auto& vector) {
  return reinterpret_cast<std::byte*>(vector.data());
}

TEST(TransferLayersOracle, Example) {
  // 2 layers, 3 blocks of 2 slots of 1 byte. Block b, slot s of layer l: K is 100 l + 10 b + s, V is 50 more.
  std::vector<std::uint8_t> k0 = {0, 1, 10, 11, 20, 21}, v0 = {50, 51, 60, 61, 70, 71};
  std::vector<std::uint8_t> k1 = {100, 101, 110, 111, 120, 121}, v1 = {150, 151, 160, 161, 170, 171};
  std::vector<std::int32_t> ids = {2, -1, 0};
  std::vector<std::uint8_t> chunk(24, 77);
  const auto pool = [](auto& memory) { return Array{bytes(memory), 1, {3, 2, 1, 1}, {2, 1, 1, 1}}; };
  TransferLayersOracle oracle;
  oracle.keys = {pool(k0), pool(k1)};
  oracle.values = {pool(v0), pool(v1)};
  oracle.ids = {bytes(ids), 4, {3}, {1}};
  oracle.chunk = {bytes(chunk), 1, {2, 3, 2, 2, 1, 1}, {12, 4, 2, 1, 1, 1}};
  oracle.run();
  EXPECT_EQ(chunk, (std::vector<std::uint8_t>{20,  21,  70,  71,  0, 0, 0, 0, 0,   1,   50,  51,  //
                                              120, 121, 170, 171, 0, 0, 0, 0, 100, 101, 150, 151}));
  EXPECT_EQ(oracle.record.bad, 1U);
  EXPECT_EQ(oracle.record.batch, 1);
  EXPECT_EQ(oracle.record.id, -1);
  EXPECT_EQ(oracle.record.which, 16U);

  oracle.page_first = true;
  oracle.chunk = {bytes(chunk), 1, {3, 2, 2, 2, 1, 1}, {8, 4, 2, 1, 1, 1}};
  oracle.run();
  EXPECT_EQ(chunk, (std::vector<std::uint8_t>{20, 21, 70, 71, 120, 121, 170, 171, 0,   0,   0,   0,  //
                                              0,  0,  0,  0,  0,   1,   50,  51,  100, 101, 150, 151}));

  // Back: to blocks 1 and 0, the rest stays; an id twice and one beyond.
  oracle.to_chunk = false;
  ids = {1, -5, 0};
  oracle.run();
  EXPECT_EQ(k0, (std::vector<std::uint8_t>{0, 1, 20, 21, 20, 21}));
  EXPECT_EQ(v1, (std::vector<std::uint8_t>{150, 151, 170, 171, 170, 171}));
  EXPECT_EQ(oracle.record.bad, 0U);
  ids = {1, 3, 1};
  oracle.run();
  EXPECT_EQ(oracle.record.bad, 2U);
  EXPECT_EQ(oracle.record.batch, 1);
  EXPECT_EQ(oracle.record.which, 32U);
  EXPECT_EQ(oracle.open, (std::vector<std::int64_t>{1}));
  oracle.reject = true;
  oracle.run();
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"block_ids", "1", "3"}));
  ids = {1, 2, 1};
  oracle.run();
  EXPECT_EQ(oracle.refusal, (std::vector<std::string>{"block_ids", "2", "1", "0"}));
  EXPECT_EQ(oracle.record.which, 8U);
}

TEST_P(RegisteredCaseTest, TransferLayers) {
  EXPECT_GT(check_cases(GetParam().name), 0);
}
INSTANTIATE_TEST_SUITE_P(, RegisteredCaseTest, registered(transfer_layers_info(), false), test_name);

TEST(TransferLayers, EveryRuleOfPlan) {
  for (const TransferLayersBreaker& rule : transfer_layers_breakers()) {
    for (const std::string& direction : split(rule.directions, ' ')) {
      check_cases("transfer_layers:l=3,n=4,nb=7,bs=4,h=3,d=5,idx={i32|i64},chunk={layer|page},dir=" +
                  direction + ",policy={default|reject},break=" + rule.name);
    }
  }
}

TEST(TransferLayers, Random) {
  check_random_cases(transfer_layers_info(), 1, random_cases(5000));
}
TEST(TransferLayersLong, Random) {
  check_random_cases(transfer_layers_info(), 1'000'000, random_cases(100'000));
}

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

// Blocks that go out through one chunk and come back into pools of other strides are what they were, under
// their new ids.
void round_trip(std::uint64_t seed, const Context& context) {
  Random random(seed);
  const auto types = data_types();
  const DType dtype = types[to_size(random.between(0, static_cast<std::int64_t>(types.size()) - 1))].second;
  const std::size_t layers = random.one_in(20) ? 61 : to_size(random.between(1, 6));
  const bool with_values = random.one_in(2), page_first = random.one_in(2);
  const std::int64_t n = random.between(1, 9), bs = random.between(1, 9), h = random.between(1, 4),
                     d = random.between(1, 40);
  const auto distinct = [&](std::int64_t blocks) {
    std::vector<std::int64_t> ids(to_size(blocks));
    std::iota(ids.begin(), ids.end(), 0);
    random.shuffle(ids);
    ids.resize(to_size(n));
    return ids;
  };
  const std::int64_t from_blocks = n + random.between(0, 4), to_blocks = n + random.between(0, 4);
  const std::vector<std::int64_t> out_ids = distinct(from_blocks), in_ids = distinct(to_blocks);

  std::vector<Owned> tensors;
  tensors.reserve(4 * layers + 1);
  TransferLayersCall out, in;
  for (std::size_t l = 0; l < layers; ++l) {
    for (const bool key : {true, false}) {
      if (!key && !with_values) continue;
      const auto add = [&](std::int64_t blocks) {
        const std::string words = random.one_in(2) ? random_layout(random, 4) : std::string();
        return tensors.emplace_back(dtype, std::vector{blocks, bs, h, d}, words, random.next()).view;
      };
      (key ? out.keys : out.values).push_back(add(from_blocks));
      (key ? in.keys : in.values).push_back(add(to_blocks));
    }
  }
  const auto l = static_cast<std::int64_t>(layers);
  const std::int64_t parts = with_values ? 2 : 1;
  out.rest.chunk =
      tensors
          .emplace_back(dtype,
                        page_first ? std::vector{n, l, parts, bs, h, d} : std::vector{l, n, parts, bs, h, d},
                        random.one_in(2) ? random_layout(random, 6) : std::string(), seed)
          .view;
  out.rest.chunk_layout = page_first ? ChunkLayout::kPageFirst : ChunkLayout::kLayerFirst;
  out.rest.index_policy = IndexPolicy::kReject;
  in.rest = out.rest;
  in.rest.direction = TransferDirection::kChunkToPools;
  out.rest.block_ids = contiguous(out_ids.data(), DType::kInt64, {n});
  in.rest.block_ids = contiguous(in_ids.data(), DType::kInt64, {n});

  for (const TransferLayersCall* call : {&out, &in}) {
    const Status status = transfer_layers(call->args(), context);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  const std::int64_t item = item_bytes(dtype);
  const auto element = [item](const TensorView& pool, std::int64_t block, std::int64_t i) {
    std::int64_t at = pool.offset;
    for (int axis = 3; axis > 0; i /= pool.dim(axis), --axis) {
      if (pool.dim(axis) > 1) at += i % pool.dim(axis) * pool.stride(axis);
    }
    if (block != 0) at += block * pool.stride(0);
    return std::string(static_cast<const char*>(pool.data) + at * item, to_size(item));
  };
  for (std::size_t pool = 0; pool < layers; ++pool) {
    for (std::size_t i = 0; i < out_ids.size(); ++i) {
      for (std::int64_t e = 0; e < bs * h * d; ++e) {
        ASSERT_EQ(element(out.keys[pool], out_ids[i], e), element(in.keys[pool], in_ids[i], e))
            << "key pool " << pool << " entry " << i << " element " << e;
        if (!with_values) continue;
        ASSERT_EQ(element(out.values[pool], out_ids[i], e), element(in.values[pool], in_ids[i], e))
            << "value pool " << pool << " entry " << i << " element " << e;
      }
    }
  }
}

TEST(TransferLayers, ComesBackAsItWent) {
  const Context context;
  for (std::int64_t seed = 1; seed <= random_cases(500); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    round_trip(static_cast<std::uint64_t>(seed), context);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(TransferLayers, NullPoolsOfARunAreNamed) {
  std::vector<std::uint8_t> memory(64);
  std::vector<TensorView> pools(3, contiguous(memory.data(), DType::kUInt8, {2, 2, 1, 4}));
  std::vector<std::uint8_t> chunk(48, 77);
  const std::int64_t id = 1;
  TransferLayersArgs args;
  args.key_caches = args.value_caches = pools;
  args.chunk = contiguous(chunk.data(), DType::kUInt8, {3, 1, 2, 2, 1, 4});
  args.block_ids = contiguous(&id, DType::kInt64, {1});
  const Context context;
  const Plan planned = plan(args, context).value();
  const auto expect_null = [&](auto damage, const char* name) {
    std::vector<void*> pointers(6);
    TransferLayersBuffers b = buffers(args, pointers);
    damage(b, pointers);
    const Status status = run(planned, b, context);
    EXPECT_EQ(status.code(), StatusCode::kNull);
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
    EXPECT_EQ(chunk, std::vector<std::uint8_t>(48, 77));
  };
  expect_null([](auto& b, auto&) { b.chunk = nullptr; }, "chunk:");
  expect_null([](auto& b, auto&) { b.block_ids = nullptr; }, "block_ids:");
  expect_null([](auto& b, auto&) { b.key_caches = nullptr; }, "key_caches:");
  expect_null([](auto& b, auto&) { b.value_caches = nullptr; }, "value_caches:");
  expect_null([](auto&, auto& p) { p[1] = nullptr; }, "key_caches[1]:");
  expect_null([](auto&, auto& p) { p[5] = nullptr; }, "value_caches[2]:");
}

TEST(TransferLayers, EveryImplementationRuns) {
  check_that_all_ran(transfer_layers_info());
}

}  // namespace
}  // namespace kvferry::harness
