// SPDX-License-Identifier: Apache-2.0
//
// Sums over the threads of a block.
#pragma once

#include <cstdint>

#include "backends/cuda/kernel.hpp"

namespace kvferry::internal::cuda {

template <class X, std::uint32_t Threads>
struct ScanShared {
  SharedArray<X, std::int64_t, Threads / kWarp> sums;
};

// The sum of `value` over the threads before this one; `total` is that of all. By all threads of the block.
template <std::uint32_t Threads, class X>
KVFERRY_KERNEL_FN std::int64_t scan(X& x, ScanShared<X, Threads>& sh, std::int64_t value,
                                    std::int64_t& total) {
  std::int64_t sum = value;
  for (std::uint32_t by = 1; by < kWarp; by *= 2) {
    const std::int64_t below = x.shfl_up(sum, by);
    if (x.lane() >= by) sum += below;
  }
  if (x.lane() == kWarp - 1) sh.sums.set(x.warp(), sum);
  x.sync();
  std::int64_t before = 0;
  total = 0;
  for (std::uint32_t w = 0; w < Threads / kWarp; ++w) {
    const std::int64_t one = sh.sums[w];
    if (w < x.warp()) before += one;
    total += one;
  }
  x.sync();  // the sums may be written again
  return before + sum - value;
}

}  // namespace kvferry::internal::cuda
