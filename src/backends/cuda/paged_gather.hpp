// SPDX-License-Identifier: Apache-2.0
//
// Pages of a cache to contiguous rows: the kernel of the gathers.
#pragma once

#include <cstdint>

#include "backends/cuda/kernel.hpp"
#include "backends/cuda/mover.hpp"
#include "backends/cuda/paged_reads.hpp"

namespace kvferry::internal::cuda {

// One of K and V, in bytes.
struct PagedGatherSide {
  DevicePtr<const std::uint8_t> cache;
  DevicePtr<std::uint8_t> rows;
  std::int64_t blocks;
  std::int64_t block_step;
  DeviceNest nest;  // a slot to a row
};

// Blocks take tasks in turns, those of K and V apart. REQUIRES tasks of less than 2 GiB.
struct PagedGather {
  // More batches take a planning pass, PagedCut.
  static constexpr std::uint32_t kMostBatches = 256;

  struct Params {
    ReadsParams reads;
    // [batches + 1] by PagedCut; null with at most kMostBatches, which each block cuts for itself: two
    // launches would cost more.
    DevicePtr<const PagedSequence> sequences;
    std::int64_t side_count;
    PagedGatherSide sides[2];
  };
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kMinBlocks = 4;
  static_assert(kMostBatches <= kThreads);

  // Twice, so that the next task is looked up while the bytes of this one move.
  template <class X>
  struct Shared {
    ScanShared<X, kThreads> scan;
    SharedArray<X, PagedSequence, kMostBatches + 1> sequences;
    SharedArray<X, std::int64_t, 2> id, slot, row;
    SharedArray<X, std::uint32_t, 2> tokens;
  };

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (p.sequences.get() == nullptr) cut(x, sh, p);
    const std::int64_t items = first_task(x, sh, p, p.reads.batches) * p.side_count;
    std::uint32_t now = 0;
    for (std::int64_t item = x.block();; item += x.blocks(), now ^= 1) {
      if (x.thread() == 0 && item < items) look_up(x, sh, p, p.side_count == 2 ? item / 2 : item, now);
      if (item >= x.blocks()) {  // the one before
        const PagedGatherSide& side = p.sides[p.side_count == 2 ? (item - x.blocks()) % 2 : 0];
        move(x, side, sh.id[now ^ 1], sh.slot[now ^ 1], sh.row[now ^ 1], sh.tokens[now ^ 1]);
      }
      if (item >= items) return;
      x.sync();
    }
  }

 private:
  template <class X>
  KVFERRY_KERNEL_FN static void cut(X& x, Shared<X>& sh, const Params& p) {
    std::int64_t lengths = 0, tasks = 0;
    const PagedSequence s = PagedTasks::cut<kThreads>(x, sh.scan, p.reads, 0, lengths, tasks);
    if (x.thread() < p.reads.batches) sh.sequences.set(x.thread(), s);
    if (x.thread() == 0) {
      PagedSequence end{};
      end.first_task = tasks;
      sh.sequences.set(static_cast<std::uint32_t>(p.reads.batches), end);
    }
    x.sync();
  }

  template <class X>
  KVFERRY_KERNEL_FN static std::int64_t first_task(X& x, const Shared<X>& sh, const Params& p,
                                                   std::int64_t batch) {
    const PagedSequence* sequences = p.sequences.get();
    return sequences != nullptr ? x.load(&sequences[batch].first_task)
                                : sh.sequences[static_cast<std::uint32_t>(batch)].first_task;
  }

  template <class X>
  KVFERRY_KERNEL_FN static void look_up(X& x, Shared<X>& sh, const Params& p, std::int64_t task,
                                        std::uint32_t to) {
    std::int64_t batch = 0, end = p.reads.batches;  // first_task of batch <= task < first_task of end
    while (end - batch > 1) {
      const std::int64_t middle = batch + (end - batch) / 2;
      if (first_task(x, sh, p, middle) <= task) {
        batch = middle;
      } else {
        end = middle;
      }
    }
    const PagedSequence* sequences = p.sequences.get();
    const PagedSequence s =
        sequences != nullptr ? x.load(sequences + batch) : sh.sequences[static_cast<std::uint32_t>(batch)];
    // Parts of pages, from the page of the first token on; positions are slots from there on.
    const std::int64_t block_size = p.reads.block_size;
    const std::uint32_t shift = p.reads.task_shift;
    const std::int64_t parts = PagedTasks::parts_of(block_size, shift);
    const std::int64_t part = (s.slot >> shift) + task - s.first_task, page = part / parts;
    const std::int64_t page_begin = page * block_size, page_end = page_begin + block_size;
    const std::int64_t part_begin = page_begin + ((part - page * parts) << shift);
    const std::int64_t first = most(part_begin, s.slot);
    const std::int64_t part_end = part_begin + (std::int64_t{1} << shift);
    const std::int64_t last = least(least(part_end, page_end), s.slot + s.tokens);
    const std::int64_t column = s.column + page;
    const bool there = column >= 0 && column < p.reads.table_width;
    sh.id.set(to, there ? load_index(x, p.reads.table, batch, column) : -1);
    sh.slot.set(to, first - page_begin);
    sh.row.set(to, s.row + first - s.slot);
    sh.tokens.set(to, static_cast<std::uint32_t>(last - first));
  }

  // A run of tokens inside one page; zero for an id that names no block.
  template <class X>
  KVFERRY_KERNEL_FN static void move(X& x, const PagedGatherSide& side, std::int64_t id, std::int64_t slot,
                                     std::int64_t row, std::uint32_t tokens) {
    const std::uint8_t* src = nullptr;
    if (id >= 0 && id < side.blocks)
      src = side.cache.get() + id * side.block_step + slot * side.nest.src_token_step;
    BlockMover<kThreads>::move(x, side.nest, side.rows.get() + row * side.nest.dst_token_step, src, tokens);
  }
};

}  // namespace kvferry::internal::cuda
