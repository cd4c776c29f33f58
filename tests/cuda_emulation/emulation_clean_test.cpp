// SPDX-License-Identifier: Apache-2.0
//
// Correct kernels: right in every order, and nothing to report.
#include <numeric>

#include "tests/cuda_emulation/emulation_testing.hpp"
#include "tests/cuda_emulation/stream.hpp"

namespace kvferry::emulation {
namespace {

using internal::cuda::DevicePtr;
using internal::cuda::MappedPtr;

// The sum of a block's numbers, by a tree in shared memory.
struct TreeSum {
  struct Params {
    DevicePtr<const std::uint32_t> in;
    DevicePtr<std::uint32_t> out;
  };
  static constexpr std::uint32_t kThreads = 256;
  template <class X>
  struct Shared {
    internal::cuda::SharedArray<X, std::uint32_t, kThreads> sums;
  };
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    const std::uint32_t t = x.thread();
    sh.sums.set(t, x.load(p.in.get() + x.block() * kThreads + t));
    x.sync();
    for (std::uint32_t half = kThreads / 2; half > 0; half /= 2) {
      if (t < half) sh.sums.set(t, sh.sums[t] + sh.sums[t + half]);
      x.sync();
    }
    if (t == 0) x.store(p.out.get() + x.block(), sh.sums[0]);
  }
};

TEST(Emulation, TreeSum) {
  std::vector<std::uint32_t> numbers(3 * TreeSum::kThreads);
  std::iota(numbers.begin(), numbers.end(), 1U);
  const Buffer<std::uint32_t> in(numbers), out(3);
  for (const LaunchOptions& options : all_orders()) {
    expect_clean(launch<TreeSum>(3, {in.device(), out.device()}, options), options);
    for (std::uint32_t b = 0; b < 3; ++b) {
      const std::uint32_t first = b * 256 + 1;
      EXPECT_EQ(out[b], 256 * first + 255 * 128) << options;
    }
  }
}

struct Params {
  DevicePtr<std::uint32_t> out;
};

// Everything that a warp can do.
struct WarpOperations {
  using Params = emulation::Params;
  static constexpr std::uint32_t kThreads = 64;
  template <class X>
  struct Shared {
    internal::cuda::SharedArray<X, std::uint32_t, kThreads> words;
  };
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    const std::uint32_t t = x.thread(), lane = x.lane();
    std::uint32_t sum = lane;
    for (std::uint32_t by = 1; by < 32; by *= 2) {
      const std::uint32_t up = x.shfl_up(sum, by);
      if (lane >= by) sum += up;
    }
    std::uint32_t bits = x.ballot(lane % 3 == 0) + x.match_any(lane / 8);
    // Half a warp for itself, and words that only a warp shares.
    if (lane < 16) bits += x.shfl(t, 3, 0xffff) + x.match_any(lane % 2, 0xffff);
    sh.words.set(t, sum);
    x.sync_warp();
    const std::uint32_t other = sh.words[t ^ 1U];
    x.store(p.out.get() + x.block() * kThreads + t, other * 7 + bits + x.shfl(sum, 31));
  }
};

TEST(Emulation, WarpOperations) {
  const Buffer<std::uint32_t> out(2 * 64);
  for (const LaunchOptions& options : all_orders()) {
    expect_clean(launch<WarpOperations>(2, {out.device()}, options), options);
    for (std::uint32_t i = 0; i < 128; ++i) {
      const std::uint32_t lane = i % 32, other = lane ^ 1U;
      std::uint32_t thirds = 0;
      for (std::uint32_t l = 0; l < 32; l += 3) thirds |= 1U << l;
      std::uint32_t bits = thirds + (0xffU << lane / 8 * 8);
      if (lane < 16) bits += i / 32 % 2 * 32 + 3 + (lane % 2 == 0 ? 0x5555U : 0xaaaaU);
      EXPECT_EQ(out[i], other * (other + 1) / 2 * 7 + bits + 31 * 32 / 2) << i << " " << options;
    }
  }
}

// Counters, and the last block that takes up what all have left: releases and acquires order the blocks.
struct LastBlock {
  struct Params {
    DevicePtr<std::uint32_t> parts, flags, count, sum;
  };
  static constexpr std::uint32_t kThreads = 32;
  template <class X>
  struct Shared {
    internal::cuda::SharedArray<X, std::uint32_t, 1> lowest;
  };
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (x.thread() == 0) sh.lowest.set(0, 1000);
    x.store(p.parts.get() + x.block() * kThreads + x.thread(), x.thread() + x.block());
    x.sync();
    x.atomic_min(sh.lowest, 0, x.thread() + x.block());
    x.sync();
    if (x.thread() != 0) return;
    x.store_release(p.flags.get() + x.block(), sh.lowest[0] + 1);
    if (x.atomic_add(p.count.get(), 1U) != x.blocks() - 1) return;
    std::uint32_t sum = 0;
    for (std::uint32_t b = 0; b < x.blocks(); ++b) {
      while (x.load_acquire(p.flags.get() + b) != b + 1) {
      }
      for (std::uint32_t i = 0; i < kThreads; ++i) sum += x.load(p.parts.get() + b * kThreads + i);
    }
    x.store(p.sum.get(), sum);
  }
};

TEST(Emulation, LastBlock) {
  constexpr std::uint32_t kBlocks = 5;
  for (const LaunchOptions& options : all_orders()) {
    const std::vector<std::uint32_t> zeros(kBlocks);
    const Buffer<std::uint32_t> parts(kBlocks * 32), flags(zeros), count(zeros), sum(1);
    expect_clean(
        launch<LastBlock>(kBlocks, {parts.device(), flags.device(), count.device(), sum.device()}, options),
        options);
    EXPECT_EQ(sum[0], kBlocks * 31 * 16 + 32 * (0 + 1 + 2 + 3 + 4)) << options;
  }
}

// Waits for a word of the host.
struct Doorbell {
  struct Params {
    MappedPtr<const std::uint32_t> bell, message;
    DevicePtr<std::uint32_t> out;
  };
  static constexpr std::uint32_t kThreads = 32;
  template <class X>
  struct Shared {};
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    if (x.thread() == 0) {
      while (x.load_system(p.bell.get()) == 0) {
      }
    }
    x.sync();
    x.store(p.out.get() + x.thread(), x.load(p.message.get()));
  }
};

TEST(Emulation, WaitsForTheHost) {
  const std::vector<std::uint32_t> zero(1);
  const Buffer<std::uint32_t> bell(zero), message(1), out(32);
  int looks = 0;
  LaunchOptions options;
  options.host = [&] {
    if (++looks < 5) return;
    message[0] = 77;
    bell[0] = 1;
  };
  const DevicePtr<std::uint32_t> to = out.device();
  const Report report = launch<Doorbell>(1, {bell.mapped(), message.mapped(), to}, options);
  expect_clean(report, options);
  EXPECT_EQ(out[31], 77U);
  EXPECT_GE(looks, 5);
}

// Rows through shared memory, one ahead, each read by other threads than copied it.
struct AsyncRing {
  struct Params {
    DevicePtr<const Vec16> in;
    DevicePtr<Vec16> out;
    std::uint32_t rows;
  };
  static constexpr std::uint32_t kThreads = 64;
  template <class X>
  struct Shared {
    internal::cuda::SharedArray<X, Vec16, 2 * kThreads> stage;
  };
  template <class X>
  KVFERRY_KERNEL_FN static void issue(X& x, Shared<X>& sh, const Params& p, std::uint32_t row) {
    if (row < p.rows)
      x.copy_async(sh.stage, row % 2 * kThreads + x.thread(), p.in.get() + row * kThreads + x.thread());
    x.copy_async_commit();
  }
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    issue(x, sh, p, 0);
    for (std::uint32_t row = 0; row < p.rows; ++row) {
      issue(x, sh, p, row + 1);
      x.template copy_async_wait<1>();
      x.sync();
      const std::uint32_t other = kThreads - 1 - x.thread();
      x.store_once(p.out.get() + row * kThreads + other, sh.stage[row % 2 * kThreads + other]);
      x.sync();
    }
  }
};

// The same with one bulk copy a row.
struct BulkRows {
  using Params = AsyncRing::Params;
  static constexpr std::uint32_t kThreads = 64;
  template <class X>
  struct Shared {
    internal::cuda::SharedArray<X, Vec16, kThreads> stage;
    typename X::Mbarrier full;
  };
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    constexpr std::uint32_t kBytes = kThreads * sizeof(Vec16);
    if (x.thread() == 0) x.mbar_init(sh.full, 1);
    x.sync();
    for (std::uint32_t row = 0; row < p.rows; ++row) {
      if (x.thread() == 0) {
        x.mbar_arrive_expect(sh.full, kBytes);
        x.bulk_load(sh.stage, 0, p.in.get() + row * kThreads, kBytes, sh.full);
      }
      x.mbar_wait(sh.full, row % 2);
      x.store_once(p.out.get() + row * kThreads + x.thread(), sh.stage[x.thread()]);
      x.sync();
    }
  }
};

template <class K>
void expect_copies_rows() {
  constexpr std::uint32_t kRows = 5;
  std::vector<Vec16> vectors(kRows * 64);
  for (std::uint32_t i = 0; i < vectors.size(); ++i) vectors[i] = {i, i + 1000, i + 2000, i + 3000};
  const Buffer<Vec16> in(vectors), out(vectors.size());
  for (const LaunchOptions& options : all_orders()) {
    expect_clean(launch<K>(1, {in.device(), out.device(), kRows}, options), options);
    EXPECT_EQ(std::memcmp(out.data(), in.data(), vectors.size() * sizeof(Vec16)), 0) << options;
  }
}

TEST(Emulation, AsyncCopies) {
  expect_copies_rows<AsyncRing>();
}
TEST(Emulation, BulkCopies) {
  expect_copies_rows<BulkRows>();
}

struct Add {
  struct Params {
    DevicePtr<const std::uint32_t> in;
    DevicePtr<std::uint32_t> out;
    std::uint32_t value;
  };
  static constexpr std::uint32_t kThreads = 32;
  template <class X>
  struct Shared {};
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    const std::uint32_t i = x.block() * kThreads + x.thread();
    x.store(p.out.get() + i, x.load_once(p.in.get() + i) + p.value);
  }
};

TEST(Emulation, StreamsRunLate) {
  const std::vector<std::uint32_t> ones(64, 1);
  const Buffer<std::uint32_t> in(ones), middle(64), out(64);
  Stream stream;
  Add::Params params{in.device(), middle.device(), 10};
  stream.launch<Add>(2, params);
  params = {middle.device(), out.device(), 100};
  stream.launch<Add>(2, params);
  params = {};  // kept by value
  in[5] = 2;    // not kept
  expect_clean(stream.synchronize(), {});
  EXPECT_EQ(out[4], 111U);
  EXPECT_EQ(out[5], 112U);
}

// The same seed repeats a launch, whatever happened before.
TEST(Emulation, SeedsRepeat) {
  const std::vector<std::uint32_t> numbers(TreeSum::kThreads, 1);
  const Buffer<std::uint32_t> in(numbers), out(1);
  const auto switches = [&](std::uint64_t seed) {
    const LaunchOptions options{.order = Order::kRandom, .seed = seed, .preempt_per_1024 = 100};
    return launch<TreeSum>(1, {in.device(), out.device()}, options).switches;
  };
  EXPECT_EQ(switches(3), switches(3));
  EXPECT_NE(switches(3), switches(4));
}

// A host pointer is not one of the device, and mapped memory is neither.
static_assert(!std::is_convertible_v<std::uint32_t*, DevicePtr<std::uint32_t>>);
static_assert(!std::is_constructible_v<DevicePtr<std::uint32_t>, std::uint32_t*>);
static_assert(!std::is_convertible_v<MappedPtr<std::uint32_t>, DevicePtr<std::uint32_t>>);
static_assert(!std::is_convertible_v<DevicePtr<const std::uint32_t>, DevicePtr<std::uint32_t>>);
static_assert(std::is_convertible_v<DevicePtr<std::uint32_t>, DevicePtr<const std::uint32_t>>);

}  // namespace
}  // namespace kvferry::emulation
