// SPDX-License-Identifier: Apache-2.0
//
// Correct kernels: right in every order, and nothing to report.
#include <numeric>

#include "tests/cuda_emulation/clean_kernels.hpp"
#include "tests/cuda_emulation/emulation_testing.hpp"
#include "tests/cuda_emulation/stream.hpp"

namespace kvferry::emulation {
namespace {

using namespace internal::cuda;

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
