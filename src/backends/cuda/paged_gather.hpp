// SPDX-License-Identifier: Apache-2.0
//
// Pages of a cache to contiguous rows: the kernel of the gathers.
#pragma once

#include <cstdint>

#include "backends/cuda/kernel.hpp"
#include "backends/cuda/mover.hpp"
#include "backends/cuda/paged_loop.hpp"

namespace kvferry::internal::cuda {

// One of K and V, in bytes.
struct PagedGatherSide {
  DevicePtr<const std::uint8_t> cache;
  DevicePtr<std::uint8_t> rows;
  std::int64_t blocks;
  std::int64_t block_step;
  DeviceNest nest;  // a slot to a row
};

// REQUIRES tasks of less than 2 GiB.
struct PagedGather {
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kMinBlocks = 4;

  struct Params {
    PagedLoopParams loop;
    std::int64_t side_count;
    PagedGatherSide sides[2];
  };

  template <class X>
  struct Shared {
    PagedLoopShared<X, kThreads> loop;
  };

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    PagedLoop<kThreads>::run(x, sh.loop, p.loop, p.side_count,
                             [&](std::int64_t side, const PagedRun& run) { move(x, p.sides[side], run); });
  }

 private:
  // Zeros for an id that names no block.
  template <class X>
  KVFERRY_KERNEL_FN static void move(X& x, const PagedGatherSide& side, const PagedRun& run) {
    const std::uint8_t* src = nullptr;
    if (run.id >= 0 && run.id < side.blocks)
      src = side.cache.get() + run.id * side.block_step + run.slot * side.nest.src_token_step;
    BlockMover<kThreads>::move(x, side.nest, side.rows.get() + run.row * side.nest.dst_token_step, src,
                               run.tokens);
  }
};

}  // namespace kvferry::internal::cuda
