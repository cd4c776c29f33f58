// SPDX-License-Identifier: Apache-2.0
//
// The second net: kernels under the real ThreadSanitizer, to which each CUDA thread of each block is a
// thread. It sees what does not go through the context, too. Compiled with -fsanitize=thread in every build.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "tests/cuda_emulation/context.hpp"

namespace kvferry::emulation {
namespace {

using internal::cuda::DevicePtr;

constexpr std::uint32_t kBlock = 64;

// Memory that the context never hears of.
struct Raw {
  struct Params {
    DevicePtr<std::uint32_t> out;  // [blocks, 64] and one
  };
  static constexpr std::uint32_t kThreads = kBlock;
  template <class X>
  struct Shared {
    std::uint32_t words[kBlock];
  };
};

template <class K>
void run(std::uint32_t blocks) {
  const Buffer<std::uint32_t> out(std::size_t{blocks} * kBlock + 1);
  const Report report = launch<K>(blocks, {out.device()});
  if (report.finding) std::cerr << report.finding->text << '\n';
  std::exit(report.finding ? 1 : 0);
}
constexpr int kRaceStatus = 66;

struct RawBarriers : Raw {
  template <class X>
  static void run(X& x, Shared<X>& sh, const Params& p) {
    const std::uint32_t t = x.thread();
    for (std::uint32_t round = 0; round < 3; ++round) {
      sh.words[t] = t + round;
      x.sync();
      p.out.get()[x.block() * kBlock + t] = sh.words[kBlock - 1 - t];
      x.sync();
    }
    sh.words[t] = t;
    x.sync_warp();
    p.out.get()[x.block() * kBlock + t] = sh.words[t ^ 1U] + x.shfl(t, 5);
  }
};
TEST(EmulationTsanDeathTest, IsSilentAboutCorrectKernels) {
  EXPECT_EXIT(run<RawBarriers>(4), testing::ExitedWithCode(0), "^$");
}

struct RawMissingBarrier : Raw {
  template <class X>
  static void run(X& x, Shared<X>& sh, const Params& p) {
    sh.words[x.thread()] = x.thread();
    p.out.get()[x.block() * kBlock + x.thread()] = sh.words[kBlock - 1 - x.thread()];
  }
};
TEST(EmulationTsanDeathTest, SeesAMissingBarrier) {
  EXPECT_EXIT(run<RawMissingBarrier>(1), testing::ExitedWithCode(kRaceStatus), "data race");
}

struct RawWarpBarrier : Raw {
  template <class X>
  static void run(X& x, Shared<X>& sh, const Params& p) {
    sh.words[x.thread()] = x.thread();
    x.sync_warp();
    p.out.get()[x.block() * kBlock + x.thread()] = sh.words[x.thread() ^ 32U];
  }
};
TEST(EmulationTsanDeathTest, SeesAWarpBarrierBetweenWarps) {
  EXPECT_EXIT(run<RawWarpBarrier>(1), testing::ExitedWithCode(kRaceStatus), "data race");
}

struct RawCollision : Raw {
  template <class X>
  static void run(X& x, Shared<X>&, const Params& p) {
    p.out.get()[x.block() * (kBlock - 1) + x.thread()] = 1;
  }
};
TEST(EmulationTsanDeathTest, SeesBlocksThatCollide) {
  EXPECT_EXIT(run<RawCollision>(2), testing::ExitedWithCode(kRaceStatus), "data race");
}

}  // namespace
}  // namespace kvferry::emulation
