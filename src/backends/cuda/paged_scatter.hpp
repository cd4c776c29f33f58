// SPDX-License-Identifier: Apache-2.0
//
// Contiguous rows to slots of a paged cache: the kernel of the scatter.
#pragma once

#include <cstdint>

#include "backends/cuda/indices.hpp"
#include "backends/cuda/kernel.hpp"
#include "backends/cuda/mover.hpp"

namespace kvferry::internal::cuda {

// One of K and V, in bytes.
struct PagedScatterSide {
  DevicePtr<const std::uint8_t> rows;
  DevicePtr<std::uint8_t> cache;
  std::int64_t slots;
  std::int64_t block_step;
  DeviceNest nest;  // a row to a slot
};

// A task is 2^task_shift tokens in a row, wherever their slots are. Blocks take tasks in turns, those of K
// and V apart. REQUIRES tasks of less than 2 GiB.
struct PagedScatter {
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kMinBlocks = 4;
  static constexpr std::uint32_t kMostTokens = kThreads;  // of a task: a thread looks up one

  struct Params {
    Indices slots;
    std::int64_t tokens, block_size;
    std::uint32_t task_shift;
    std::int64_t side_count;
    PagedScatterSide sides[2];
  };

  // Twice, so that the slots of the next task are on their way while the bytes of this one move.
  template <class X>
  struct Shared {
    SharedArray<X, std::int64_t, 2 * kMostTokens> places;
  };

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    const std::int64_t items = (((p.tokens - 1) >> p.task_shift) + 1) * p.side_count;
    std::uint32_t now = 0;
    for (std::int64_t item = x.block();; item += x.blocks(), now ^= kMostTokens) {
      const bool there = item < items && x.thread() < task_of(p, item).tokens;
      const std::int64_t slot = there ? load_index(x, p.slots, task_of(p, item).first + x.thread()) : -1;
      if (item >= x.blocks()) move(x, sh, p, task_of(p, item - x.blocks()), now ^ kMostTokens);
      if (item >= items) return;
      if (there) sh.places.set(now + x.thread(), place_of(p, p.sides[task_of(p, item).side], slot));
      x.sync();
    }
  }

 private:
  static constexpr std::int64_t kNowhere = -0x7fffffffffffffff - 1;

  struct Task {
    std::int64_t side, first;
    std::uint32_t tokens;
  };
  KVFERRY_KERNEL_FN static Task task_of(const Params& p, std::int64_t item) {
    const bool both = p.side_count == 2;
    const std::int64_t first = (both ? item / 2 : item) << p.task_shift;
    const std::int64_t tokens = least(p.tokens - first, std::int64_t{1} << p.task_shift);
    return {both ? item % 2 : 0, first, static_cast<std::uint32_t>(tokens)};
  }

  // From the start of the cache.
  KVFERRY_KERNEL_FN static std::int64_t place_of(const Params& p, const PagedScatterSide& side,
                                                 std::int64_t slot) {
    if (slot < 0 || slot >= side.slots) return kNowhere;
    const std::int64_t block = slot / p.block_size;
    return block * side.block_step + (slot - block * p.block_size) * side.nest.dst_token_step;
  }

  template <class X>
  KVFERRY_KERNEL_FN static void move(X& x, const Shared<X>& sh, const Params& p, const Task& task,
                                     std::uint32_t places) {
    const PagedScatterSide& side = p.sides[task.side];
    using Mover = BlockMover<kThreads>;
    Mover::move_each(x, side.nest, task.tokens, [&](std::uint32_t t) {
      const std::int64_t place = sh.places[places + t];
      return typename Mover::Token{place == kNowhere ? nullptr : side.cache.get() + place,
                                   side.rows.get() + (task.first + t) * side.nest.src_token_step};
    });
  }
};

}  // namespace kvferry::internal::cuda
