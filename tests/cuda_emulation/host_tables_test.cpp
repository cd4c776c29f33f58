// SPDX-License-Identifier: Apache-2.0
//
// Tables and mappings in ordinary host memory on a CUDA context: run() has read them when it returns, and
// what they name goes into kernel parameters or to the DMA engines. The cases of the harness have all tensors
// on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "harness/array.hpp"
#include "harness/random.hpp"
#include "harness/testing.hpp"
#include "kvferry/ops/copy_blocks.hpp"
#include "kvferry/ops/group_memcpy.hpp"
#include "kvferry/ops/swap_blocks.hpp"
#include "tests/cuda_emulation/queue.hpp"

namespace kvferry::emulation {
namespace {

using harness::Random;
using harness::to_size;
using internal::cuda::LinkTuning;
using Numbers = std::vector<std::int64_t>;
using Bytes = std::vector<std::uint8_t>;

TensorView on(DeviceType type, TensorView view) {
  view.device = {type, 0};
  return view;
}

TensorView on_host(Numbers& numbers) {
  return contiguous(numbers.data(), DType::kInt64, {static_cast<std::int64_t>(numbers.size())});
}

class HostTables : public testing::Test {
 protected:
  std::string finish() { return queue_->finish(); }

  const std::shared_ptr<EmulatedQueue> queue_ = std::make_shared<EmulatedQueue>(7);
  const kvferry::Context context_ = make_context(queue_);
};

// group_memcpy

struct Copies {
  Bytes source_bytes = Bytes(1 << 20);
  Buffer<std::uint8_t> sources{std::size_t{1} << 20, 3};
  Buffer<std::uint8_t> destinations{std::size_t{1} << 20, 5};
  Bytes expected = Bytes(1 << 20, 0xee);
  Numbers table, sizes;

  explicit Copies(Random& random) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      sources[i] = static_cast<std::uint8_t>(random.next());
      destinations[i] = 0xee;
    }
  }
  // Returns the offset behind it.
  std::int64_t add(std::int64_t from, std::int64_t to, std::int64_t bytes, bool runs) {
    table.push_back(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(sources.data() + from)));
    table.push_back(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(destinations.data() + to)));
    sizes.push_back(bytes);
    if (runs) std::copy_n(sources.data() + from, bytes, expected.begin() + to);
    return to + bytes;
  }
  bool right() const { return std::equal(expected.begin(), expected.end(), destinations.data()); }
};

TEST_F(HostTables, GroupMemcpyRandom) {
  for (std::int64_t seed = 1; seed <= harness::random_cases(100); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(static_cast<std::uint64_t>(seed));
    Copies copies(random);
    const bool sized = random.one_in(2);
    const std::int64_t h = random.between(0, random.one_in(3) ? sized ? 160 : 240 : 20);
    const std::int64_t limit = random.one_in(3) ? 4000 : 100;
    const std::int64_t w = random.between(0, limit);
    GroupMemcpyArgs args;
    Numbers count = {random.between(-2, h + 2)};
    std::int64_t runs = h;
    if (random.one_in(3)) {
      args.count = on_host(count);
      runs = std::clamp<std::int64_t>(count[0], 0, h);
    } else if (random.one_in(3)) {
      args.host_count = runs = random.between(0, h);
    }
    args.skip_null = random.one_in(2);
    std::int64_t at = 0;
    for (std::int64_t p = 0; p < h; ++p) {
      const std::int64_t bytes = !sized ? w : random.one_in(8) ? 0 : random.between(0, limit);
      const bool null = args.skip_null && random.one_in(6), same = random.one_in(10);
      at = copies.add(random.between(0, 4096), at + random.between(0, 70), bytes, p < runs && !null && !same);
      if (null) copies.table[copies.table.size() - 1 - to_size(random.between(0, 1))] = 0;
      if (same && !null) copies.table[copies.table.size() - 2] = copies.table.back();
    }
    if (sized) {
      args.sizes = on_host(copies.sizes);
    } else {
      args.copy_bytes = w;
    }
    args.addr_table = on_host(copies.table);
    const Status status = group_memcpy(args, context_);
    ASSERT_TRUE(status.ok()) << status.message();
    // It may go now.
    for (Numbers* numbers : {&copies.table, &copies.sizes, &count})
      std::fill(numbers->begin(), numbers->end(), 1);
    ASSERT_EQ(finish(), "");
    ASSERT_TRUE(copies.right());
  }
}

TEST_F(HostTables, GroupMemcpyRefusesSizes) {
  Random random(1);
  Copies copies(random);
  for (const std::int64_t size : {std::int64_t{-1}, std::int64_t{1} << 62}) {
    copies.table.clear();
    copies.sizes.clear();
    for (std::int64_t p = 0; p < 4; ++p) copies.add(0, 100 * p, 10, false);
    copies.sizes[1] = copies.sizes[2] = size;
    GroupMemcpyArgs args;
    args.addr_table = on_host(copies.table);
    args.sizes = on_host(copies.sizes);
    const std::uint64_t before = queue_->launches();
    const Status status = group_memcpy(args, context_);
    EXPECT_EQ(status.code(), StatusCode::kIndex);
    EXPECT_NE(status.message().find("sizes"), std::string_view::npos) << status.message();
    EXPECT_EQ(queue_->launches(), before);
  }
}

TEST_F(HostTables, GroupMemcpyTableThatDoesNotFit) {
  for (const bool sized : {false, true}) {
    for (const std::int64_t more : {0, 1}) {
      const std::int64_t most = sized ? 160 : 240, h = most + more;
      Numbers table(to_size(2 * h), 0);
      Numbers sizes(to_size(h), 8);
      GroupMemcpyArgs args;
      args.addr_table = on_host(table);
      if (sized) {
        args.sizes = on_host(sizes);
      } else {
        args.copy_bytes = 8;
      }
      args.skip_null = true;
      const Result<Plan> made = plan(args, context_);
      EXPECT_EQ(made.status().code(), more != 0 ? StatusCode::kInvalidArgument : StatusCode::kOk);
      if (more == 0) continue;
      for (const std::string& word : {std::string("addr_table"), std::to_string(h), std::to_string(most)})
        EXPECT_TRUE(harness::contains_word(made.status().message(), word)) << made.status().message();
      args.host_count = most;
      EXPECT_TRUE(plan(args, context_).ok());
    }
  }
}

TEST_F(HostTables, GroupMemcpyTensorsOnBothSides) {
  Numbers table(2, 0);
  Numbers count(1, 1);
  const auto code = [&](DeviceType table_on, DeviceType count_on) {
    GroupMemcpyArgs args;
    args.copy_bytes = 8;
    args.addr_table = on(table_on, on_host(table));
    args.count = on(count_on, on_host(count));
    return plan(args, context_).status().code();
  };
  EXPECT_EQ(code(DeviceType::kCpu, DeviceType::kCpu), StatusCode::kOk);
  EXPECT_EQ(code(DeviceType::kCuda, DeviceType::kCudaHost), StatusCode::kOk);
  EXPECT_EQ(code(DeviceType::kCpu, DeviceType::kCuda), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(DeviceType::kCuda, DeviceType::kCpu), StatusCode::kInvalidArgument);
}

// swap_blocks and copy_blocks

// Pools of blocks in any of the layouts that the backend tells apart, and what the CPU makes of them.
struct Pools {
  explicit Pools(EmulatedQueue& q) : queue(q) {}

  EmulatedQueue& queue;
  std::vector<harness::Memory> memory;
  std::vector<std::shared_ptr<void>> lent;
  std::vector<Bytes> expected;
  std::vector<TensorView> src, dst, cpu_src, cpu_dst;

  struct Shape {
    std::int64_t blocks, bytes, padding;  // of a block, behind each
    bool rows;                            // a block is rows of half its bytes with 3 more behind each
  };
  TensorView add(const Shape& s, DeviceType where, Random& random, std::vector<TensorView>& views) {
    const std::int64_t row = s.bytes / 2;
    const std::int64_t step = s.padding + (s.rows ? 2 * (row + 3) : s.bytes);
    harness::Memory& made =
        memory.emplace_back(std::max<std::int64_t>(s.blocks * step, 1), harness::Placement::kGuarded, 1);
    harness::fill_random(made.data(), made.size(), random.next());
    if (where == DeviceType::kCudaHost) {
      queue.pin(made.data(), to_size(made.size()), false);
      lent.emplace_back(made.data(), [q = &queue](void* data) { q->unpin(static_cast<std::byte*>(data)); });
    } else {
      lent.push_back(std::make_shared<RegisteredRange>(made.data(), to_size(made.size())));
    }
    const TensorView view = s.rows
                                ? strided(made.data(), DType::kUInt8, {s.blocks, 2, row}, {step, row + 3, 1})
                                : strided(made.data(), DType::kUInt8, {s.blocks, s.bytes}, {step, 1});
    views.push_back(on(where, view));
    return view;
  }
  void add_source(const Shape& s, DeviceType where, Random& random) {
    cpu_src.push_back(add(s, where, random, src));
  }
  void add_destination(const Shape& s, DeviceType where, Random& random) {
    TensorView twin = add(s, where, random, dst);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(memory.back().data());
    twin.data = expected.emplace_back(bytes, bytes + memory.back().size()).data();
    cpu_dst.push_back(twin);
  }
  bool right() const {
    for (std::size_t i = 0; i < dst.size(); ++i) {
      if (std::memcmp(dst[i].data, expected[i].data(), expected[i].size()) != 0) return false;
    }
    return true;
  }
};

// A way is free where it is possible, and the others cost.
constexpr std::int64_t kFree = std::int64_t{1} << 40;  // bytes a nanosecond
constexpr LinkTuning kByKernelOnly = {1, kFree, kFree, 1000, 0, 4096};
constexpr LinkTuning kByDmaIfPossible = {kFree, 1, 1, 0, 0, 1 << 20};
constexpr LinkTuning kStagedIfPossible = {kFree, 1, kFree, 1000, 0, 1 << 20};

TEST_F(HostTables, SwapBlocksRandom) {
  const kvferry::Context cpu;
  std::uint64_t refused = 0, recorded = 0;
  const LinkTuning links[] = {queue_->tuning().link, kByKernelOnly, kByDmaIfPossible, kStagedIfPossible};
  std::uint64_t staged = 0;
  for (std::int64_t seed = 1; seed <= harness::random_cases(120); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(static_cast<std::uint64_t>(seed));
    queue_->set_link(links[seed % 4]);
    queue_->set_staging(random.pick(Numbers{0, 100, 1 << 10, 1 << 20}));
    const bool large = random.one_in(3);
    const std::int64_t n = large ? random.between(0, 6) : random.between(0, random.one_in(5) ? 300 : 20);
    const std::int64_t nb = n + random.between(1, 6), nbd = n + random.between(0, 6);
    const DeviceType from = random.one_in(2) ? DeviceType::kCudaHost : DeviceType::kCuda;
    const DeviceType to = random.one_in(2) ? DeviceType::kCudaHost : DeviceType::kCuda;
    Pools pools(*queue_);
    const std::int64_t caches = random.one_in(10) && !large ? 100 : random.between(1, 3);
    Pools::Shape shape{nb, large ? (64 << 10) + random.between(-40, 40) : random.between(1, 90), 0, false};
    for (std::int64_t i = 0; i < caches; ++i) {
      if (random.one_in(3)) shape.rows = random.one_in(2) && shape.bytes % 2 == 0;
      shape.padding = random.one_in(3) ? random.between(0, 9) : 0;
      shape.blocks = nb;
      pools.add_source(shape, from, random);
      if (random.one_in(3)) shape.padding = random.between(0, 9);
      shape.blocks = nbd;
      pools.add_destination(shape, to, random);
    }
    Numbers destinations(to_size(nbd));
    std::iota(destinations.begin(), destinations.end(), 0);
    if (random.one_in(2)) random.shuffle(destinations);
    Numbers mapping;
    const IndexPolicy policy = static_cast<IndexPolicy>(random.between(0, 2));
    for (std::int64_t p = 0; p < n; ++p) {
      std::int64_t s = random.one_in(2) ? std::min(p, nb - 1) : random.between(0, nb - 1);
      std::int64_t d = destinations[to_size(p)];
      if (random.one_in(12)) s = random.pick(Numbers{-1, nb, nb + 7});
      if (random.one_in(12)) d = random.pick(Numbers{-5, nbd, std::int64_t{1} << 40});
      if (policy == IndexPolicy::kReject && random.one_in(20)) d = destinations.front();
      mapping.insert(mapping.end(), {s, d});
    }
    Numbers count = {random.between(-1, n + 1)};
    SwapBlocksArgs args{pools.src, pools.dst, contiguous(mapping.data(), DType::kInt64, {n, 2}), {}, policy};
    if (random.one_in(4)) args.count = on_host(count);
    SwapBlocksArgs cpu_args = args;
    cpu_args.src = pools.cpu_src;
    cpu_args.dst = pools.cpu_dst;
    ErrorRecord record, cpu_record;
    const Status expected = swap_blocks(cpu_args, cpu, &cpu_record);
    const std::uint64_t launches = queue_->launches(), batches = queue_->batches();
    const Status status = swap_blocks(args, context_, &record);
    if (queue_->launches() > launches && queue_->batches() > batches) ++staged;
    ASSERT_EQ(status.code(), expected.code()) << status.message();
    ASSERT_EQ(status.message(), expected.message());
    ASSERT_EQ(std::memcmp(&record, &cpu_record, sizeof record), 0);
    refused += expected.ok() ? 0U : 1U;
    recorded += record.bad > 0 ? 1U : 0U;
    std::fill(mapping.begin(), mapping.end(), 1);  // it may go now
    std::fill(count.begin(), count.end(), 1);
    ASSERT_EQ(finish(), "");
    ASSERT_TRUE(pools.right());
  }
  EXPECT_GT(refused, 0U);
  EXPECT_GT(recorded, 0U);
  EXPECT_GT(queue_->launches(), 0U);
  EXPECT_GT(queue_->batches(), 0U);
  EXPECT_GT(queue_->runs(), queue_->batches());
  EXPECT_GT(staged, 0U);
}

TEST_F(HostTables, CopyBlocksRandom) {
  const kvferry::Context cpu;
  for (std::int64_t seed = 1; seed <= harness::random_cases(60); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(static_cast<std::uint64_t>(seed));
    const std::int64_t n = random.between(0, random.one_in(5) ? 300 : 20), nb = 2 * n + 3;
    Pools pools(*queue_);
    for (std::int64_t i = random.between(1, 3); i > 0; --i)
      pools.add_destination({nb, 2 * random.between(1, 60), random.between(0, 5), random.one_in(2)},
                            random.one_in(4) ? DeviceType::kCudaHost : DeviceType::kCuda, random);
    Numbers mapping;
    for (std::int64_t p = 0; p < n; ++p) {
      const std::int64_t s = random.one_in(9) ? random.pick(Numbers{-1, nb}) : random.between(0, n);
      mapping.insert(mapping.end(), {s, random.one_in(9) && s >= 0 ? s : n + 1 + p});
    }
    const IndexPolicy policy = static_cast<IndexPolicy>(random.between(0, 2));
    const TensorView view = contiguous(mapping.data(), DType::kInt64, {n, 2});
    ErrorRecord record, cpu_record;
    const Status expected = copy_blocks({pools.cpu_dst, view, {}, policy}, cpu, &cpu_record);
    const Status status = copy_blocks({pools.dst, view, {}, policy}, context_, &record);
    ASSERT_EQ(status.message(), expected.message());
    ASSERT_EQ(std::memcmp(&record, &cpu_record, sizeof record), 0);
    if (record.bad > 0 && (record.which & kBadDuplicate) != 0) GTEST_FAIL() << "bytes are open";
    std::fill(mapping.begin(), mapping.end(), 1);
    ASSERT_EQ(finish(), "");
    ASSERT_TRUE(pools.right());
  }
  EXPECT_EQ(queue_->batches(), 0U);
}

// Who moves the bytes: by the size of copies and their number, on both sides and on the host's.
TEST_F(HostTables, SwapBlocksChoice) {
  Random random(3);
  struct Taken {
    std::uint64_t launches, batches, runs;
    bool operator==(const Taken&) const = default;
  };
  constexpr auto kPinned = DeviceType::kCudaHost;
  constexpr auto kCuda = DeviceType::kCuda;
  std::string text;
  const auto swap = [&](std::int64_t bytes, std::int64_t padding, const Numbers& pairs, DeviceType src,
                        DeviceType dst, DeviceType mapping_on = DeviceType::kCpu) {
    Pools pools(*queue_);
    Buffer<std::int64_t> mapping(pairs);
    for (std::int64_t i = 0; i < 2; ++i) {
      pools.add_source({70, bytes, padding, false}, src, random);
      pools.add_destination({70, bytes, padding, false}, dst, random);
    }
    TensorView view =
        contiguous(mapping.data(), DType::kInt64, {static_cast<std::int64_t>(pairs.size()) / 2, 2});
    const Status expected = swap_blocks({pools.cpu_src, pools.cpu_dst, view, {}, {}}, kvferry::Context());
    EXPECT_TRUE(expected.ok());
    view.device.type = mapping_on;
    const SwapBlocksArgs args{pools.src, pools.dst, view, {}, {}};
    text = plan(args, context_)->describe();
    const Taken before{queue_->launches(), queue_->batches(), queue_->runs()};
    const Status status = swap_blocks(args, context_);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(finish(), "");
    EXPECT_TRUE(pools.right());
    return Taken{queue_->launches() - before.launches, queue_->batches() - before.batches,
                 queue_->runs() - before.runs};
  };
  constexpr Taken kByKernel = {1, 0, 0};
  const auto by_dma = [](std::uint64_t copies) { return Taken{0, 1, copies}; };
  // A copy of 100 bytes takes as long as to start it; the kernel is at half the speed of DMA.
  queue_->set_link({1, 1, 10, 100, 500, 16});
  queue_->set_staging(0);
  // Apart on both sides; a run of three and a pair alone; neighbours on the host's side, of `in` or of `out`.
  const Numbers apart = {0, 10, 7, 3, 1, 11}, neighbours = {5, 20, 6, 21, 7, 22, 9, 3};
  Numbers in, out;
  for (std::int64_t i = 0; i < 30; ++i) {
    in.insert(in.end(), {20 + i, 69 - 2 * i});
    out.insert(out.end(), {69 - 2 * i, 20 + i});
  }

  EXPECT_EQ(swap(400, 0, apart, kPinned, kCuda), by_dma(6));
  EXPECT_NE(
      text.find("2 caches: the cheapest for each call's runs; estimates of 3 pairs in one run .. in none: "
                "dma 2.9 .. 2.9 us, staged never .. never us, kernel 2.9 .. 2.9 us"),
      std::string::npos)
      << text;
  EXPECT_EQ(swap(100, 5, neighbours, kCuda, kPinned), by_dma(8));
  EXPECT_EQ(swap(90, 5, neighbours, kCuda, kPinned), kByKernel);
  EXPECT_EQ(swap(50, 0, neighbours, kPinned, kCuda), by_dma(4));
  EXPECT_EQ(swap(50, 0, apart, kPinned, kCuda), kByKernel);
  EXPECT_EQ(swap(400, 5, in, kPinned, kCuda), kByKernel) << "60 copies, of 16 at most";

  // Two caches of 30 blocks: two copies, a kernel. The half of it: four, and two kernels.
  queue_->set_link({10, 1, 10, 1000, 500, 4096});
  queue_->set_staging(2 * 30 * 90);
  EXPECT_EQ(swap(90, 0, in, kPinned, kCuda), (Taken{1, 1, 2}));
  EXPECT_NE(text.find("dma 2.5 .. 60.5 us, staged 3.5 .. 61.5 us, kernel 5.9 .. 5.9 us"), std::string::npos)
      << text;
  EXPECT_EQ(swap(90, 0, out, kCuda, kPinned), (Taken{1, 1, 2}));
  EXPECT_EQ(swap(90, 0, in, kCuda, kPinned), kByKernel) << "neighbours on the device only";
  EXPECT_EQ(swap(90, 5, in, kPinned, kCuda), kByKernel) << "not one piece on the host";
  EXPECT_EQ(swap(90, 0, in, kPinned, kPinned), kByKernel) << "no device to stage on";
  queue_->set_link({10, 1, 10, 1000, 100, 4096});
  queue_->set_staging(30 * 90);
  EXPECT_EQ(swap(90, 0, in, kPinned, kCuda), (Taken{2, 2, 2}));
  queue_->set_staging(16 * 90);
  EXPECT_EQ(swap(90, 0, in, kPinned, kCuda), (Taken{4, 4, 4}));
  queue_->set_staging(89);
  EXPECT_EQ(swap(90, 0, in, kPinned, kCuda), kByKernel) << "no block fits";

  EXPECT_EQ(swap(400, 0, apart, kCuda, kCuda), kByKernel);
  EXPECT_EQ(text.find("transfer"), std::string::npos) << text;
  EXPECT_EQ(swap(400, 0, apart, kPinned, kCuda, kCuda), kByKernel);
  EXPECT_NE(text.find("the host does not read the mapping"), std::string::npos) << text;
}

TEST_F(HostTables, SwapBlocksWantsPinnedMemoryForEveryWay) {
  Random random(4);
  queue_->set_staging(1 << 10);
  Numbers mapping = {0, 5, 1, 3, 2, 7};
  for (const LinkTuning& link : {kByKernelOnly, kByDmaIfPossible, kStagedIfPossible}) {
    queue_->set_link(link);
    for (const bool in : {true, false}) {
      Pools pools(*queue_);
      for (int i = 0; i < 2; ++i) {
        pools.add_source({8, 16, 0, false}, in ? DeviceType::kCudaHost : DeviceType::kCuda, random);
        pools.add_destination({8, 16, 0, false}, in ? DeviceType::kCuda : DeviceType::kCudaHost, random);
      }
      queue_->unpin(pools.memory[in ? 2 : 3].data());  // of the second pair
      const Status status = swap_blocks(
          {pools.src, pools.dst, contiguous(mapping.data(), DType::kInt64, {3, 2}), {}, {}}, context_);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_TRUE(status.message().starts_with(in ? "swap_blocks: src[1]: " : "swap_blocks: dst[1]: "))
          << status.message();
      EXPECT_EQ(finish(), "");
      EXPECT_TRUE(pools.right());
    }
  }
}

TEST_F(HostTables, RejectNeedsAMappingOnTheHost) {
  Bytes pool(64);
  Numbers mapping(2, 0);
  const std::vector<TensorView> caches = {
      on(DeviceType::kCuda, contiguous(pool.data(), DType::kUInt8, {8, 8}))};
  const TensorView view = contiguous(mapping.data(), DType::kInt64, {1, 2});
  const auto made = [&](DeviceType where) {
    return plan(CopyBlocksArgs{caches, on(where, view), {}, IndexPolicy::kReject}, context_);
  };
  ASSERT_TRUE(made(DeviceType::kCpu).ok());
  EXPECT_NE(made(DeviceType::kCpu)->describe().find("of host memory"), std::string::npos);
  EXPECT_EQ(made(DeviceType::kCuda).status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(made(DeviceType::kCudaHost).status().code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace kvferry::emulation
