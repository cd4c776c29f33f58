// SPDX-License-Identifier: Apache-2.0
//
// The loop of the kernels that read pages: which run of tokens a block moves next. What it does with one is
// the kernel's.
#pragma once

#include <cstdint>

#include "backends/cuda/kernel.hpp"
#include "backends/cuda/paged_reads.hpp"

namespace kvferry::internal::cuda {

// More batches take a planning pass, PagedCut.
inline constexpr std::uint32_t kMostOwnBatches = 256;

struct PagedLoopParams {
  ReadsParams reads;
  // [batches + 1] by PagedCut; null with at most kMostOwnBatches, which each block cuts for itself: two
  // launches would cost more.
  DevicePtr<const PagedSequence> sequences;
};

// A run of tokens inside one page, to rows [row, row + tokens). An id outside the table is -1.
struct PagedRun {
  std::int64_t id, slot, row;
  std::uint32_t tokens;
};

// Runs twice, so that the next task is looked up while the bytes of this one move.
template <class X, std::uint32_t Threads>
struct PagedLoopShared {
  ScanShared<X, Threads> scan;
  SharedArray<X, PagedSequence, kMostOwnBatches + 1> sequences;
  SharedArray<X, PagedRun, 2> runs;
};

template <std::uint32_t Threads>
class PagedLoop {
  static_assert(kMostOwnBatches <= Threads);
  template <class X>
  using Shared = PagedLoopShared<X, Threads>;

 public:
  // Blocks take tasks in turns, those of the sides (K and V) apart: calls move(side, run) by all threads.
  template <class X, class Move>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const PagedLoopParams& p, std::int64_t sides,
                                    Move move) {
    if (p.sequences.get() == nullptr) cut(x, sh, p);
    const std::int64_t items = first_task(x, sh, p, p.reads.batches) * sides;
    std::uint32_t now = 0;
    for (std::int64_t item = x.block();; item += x.blocks(), now ^= 1) {
      if (x.thread() == 0 && item < items) sh.runs.set(now, look_up(x, sh, p, sides == 2 ? item / 2 : item));
      if (item >= x.blocks())  // the one before
        move(sides == 2 ? (item - x.blocks()) % 2 : 0, sh.runs[now ^ 1]);
      if (item >= items) return;
      x.sync();
    }
  }

 private:
  template <class X>
  KVFERRY_KERNEL_FN static void cut(X& x, Shared<X>& sh, const PagedLoopParams& p) {
    std::int64_t lengths = 0, tasks = 0;
    const PagedSequence s = PagedTasks::cut<Threads>(x, sh.scan, p.reads, 0, lengths, tasks);
    if (x.thread() < p.reads.batches) sh.sequences.set(x.thread(), s);
    if (x.thread() == 0) {
      PagedSequence end{};
      end.first_task = tasks;
      sh.sequences.set(static_cast<std::uint32_t>(p.reads.batches), end);
    }
    x.sync();
  }

  template <class X>
  KVFERRY_KERNEL_FN static std::int64_t first_task(X& x, const Shared<X>& sh, const PagedLoopParams& p,
                                                   std::int64_t batch) {
    const PagedSequence* sequences = p.sequences.get();
    return sequences != nullptr ? x.load(&sequences[batch].first_task)
                                : sh.sequences[static_cast<std::uint32_t>(batch)].first_task;
  }

  template <class X>
  KVFERRY_KERNEL_FN static PagedRun look_up(X& x, const Shared<X>& sh, const PagedLoopParams& p,
                                            std::int64_t task) {
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
    return {there ? load_index(x, p.reads.table, batch, column) : -1, first - page_begin,
            s.row + first - s.slot, static_cast<std::uint32_t>(last - first)};
  }
};

}  // namespace kvferry::internal::cuda
