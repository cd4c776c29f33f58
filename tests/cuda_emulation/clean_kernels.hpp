// SPDX-License-Identifier: Apache-2.0
//
// Correct kernels that use all that a context has: run by the emulation, and compiled by nvcc where there is
// one.
#pragma once

#include <cstdint>

#include "backends/cuda/kernel.hpp"

namespace kvferry::internal::cuda {

// The sum of a block's numbers, by a tree in shared memory.
struct TreeSum {
  struct Params {
    DevicePtr<const std::uint32_t> in;
    DevicePtr<std::uint32_t> out;
  };
  static constexpr std::uint32_t kThreads = 256, kMinBlocks = 1;
  template <class X>
  struct Shared {
    SharedArray<X, std::uint32_t, kThreads> sums;
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

// Everything that a warp can do.
struct WarpOperations {
  struct Params {
    DevicePtr<std::uint32_t> out;
  };
  static constexpr std::uint32_t kThreads = 64, kMinBlocks = 1;
  template <class X>
  struct Shared {
    SharedArray<X, std::uint32_t, kThreads> words;
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

// Counters, and the last block that takes up what all have left: releases and acquires order the blocks.
struct LastBlock {
  struct Params {
    DevicePtr<std::uint32_t> parts, flags, count, sum;
  };
  static constexpr std::uint32_t kThreads = 32, kMinBlocks = 1;
  template <class X>
  struct Shared {
    SharedArray<X, std::uint32_t, 1> lowest;
  };
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (x.thread() == 0) sh.lowest.set(0, 1000);
    x.store(p.parts.get() + x.block() * kThreads + x.thread(), x.thread() + x.block());
    x.sync();
    x.atomic_cas(sh.lowest, 0, 1000U, 999U);
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

// Waits for a word of the host.
struct Doorbell {
  struct Params {
    MappedPtr<const std::uint32_t> bell, message;
    DevicePtr<std::uint32_t> out;
  };
  static constexpr std::uint32_t kThreads = 32, kMinBlocks = 1;
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

// Rows through shared memory, one ahead, each read by other threads than copied it.
struct AsyncRing {
  struct Params {
    DevicePtr<const Vec16> in;
    DevicePtr<Vec16> out;
    std::uint32_t rows;
  };
  static constexpr std::uint32_t kThreads = 64, kMinBlocks = 1;
  template <class X>
  struct Shared {
    SharedArray<X, Vec16, 2 * kThreads> stage;
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
  static constexpr std::uint32_t kThreads = 64, kMinBlocks = 1;
  template <class X>
  struct Shared {
    SharedArray<X, Vec16, kThreads> stage;
    typename X::Mbarrier full;
  };
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if constexpr (!X::kHasBulkCopy) return;
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

struct Add {
  struct Params {
    DevicePtr<const std::uint32_t> in;
    DevicePtr<std::uint32_t> out;
    std::uint32_t value;
  };
  static constexpr std::uint32_t kThreads = 32, kMinBlocks = 1;
  template <class X>
  struct Shared {};
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    const std::uint32_t i = x.block() * kThreads + x.thread();
    x.store(p.out.get() + i, x.load_once(p.in.get() + i) + p.value);
  }
};

}  // namespace kvferry::internal::cuda
