// SPDX-License-Identifier: Apache-2.0
//
// Carries out a schedule of gather_selection_kv_cache on the caches of one layer.
#pragma once

#include <cstdint>

#include "backends/cuda/kernel.hpp"
#include "backends/cuda/mover.hpp"
#include "backends/cuda/selection_schedule.hpp"

namespace kvferry::internal::cuda {

// One of kv and rope, in bytes.
struct SelectionCopySide {
  DevicePtr<const std::uint8_t> full;
  DevicePtr<std::uint8_t> selection;
  std::int64_t full_page_step, full_block_step, selection_page_step, selection_block_step;
  DeviceNest fetch, move;
};

// A warp takes a part of a block: blocks are a few KB, and nobody waits for anybody outside of a warp.
// REQUIRES parts of less than 2 GiB.
struct SelectionCopy {
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kMinBlocks = 2;  // enough loads in flight; with 3 it spills on sm_80
  static constexpr std::uint32_t kWarps = kThreads / kWarp;
  // The sums of more rows are made by SelectionFinish.
  static constexpr std::uint32_t kMostRows = 256;

  struct Params {
    SelectionSchedule schedule;
    DevicePtr<const std::int64_t> ends;  // [rows + 1]; null with at most kMostRows
    std::int64_t rows, rows_per_batch;
    std::uint64_t plan_id;
    std::uint32_t k, block_tokens, task_shift;  // a part is at most 2^task_shift tokens
    std::uint32_t side_count;
    SelectionCopySide sides[2];
  };

  template <class X>
  struct Shared {
    ScanShared<X, kThreads> scan;
    SharedArray<X, std::int64_t, kMostRows + 1> ends;
  };

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    // The host cannot look: copy() without this plan's schedule does nothing.
    if (x.load(static_cast<const std::uint64_t*>(p.schedule.plan_id.get())) != p.plan_id) return;
    if (p.ends.get() == nullptr) {
      sum_counts<kThreads>(
          x, sh.scan, static_cast<const std::int32_t*>(p.schedule.counts.get()), p.rows,
          [&](std::int64_t row, std::int64_t sum) { sh.ends.set(static_cast<std::uint32_t>(row), sum); });
      x.sync();
    }
    const std::int64_t parts = ((p.block_tokens - 1) >> p.task_shift) + 1;
    const std::int64_t tasks = end_of(x, sh, p, p.rows) * parts;
    for (std::int64_t task = std::int64_t{x.warp()} * x.blocks() + x.block(); task < tasks;
         task += std::int64_t{kWarps} * x.blocks()) {
      const std::int64_t copy = task / parts;
      run_task(x, sh, p, copy, static_cast<std::uint32_t>(task - copy * parts));
    }
  }

 private:
  // Tokens of a block.
  struct Range {
    std::uint32_t begin, end;
  };

  template <class X>
  KVFERRY_KERNEL_FN static std::int64_t end_of(X& x, const Shared<X>& sh, const Params& p, std::int64_t row) {
    const std::int64_t* const ends = p.ends.get();
    return ends != nullptr ? x.load(ends + row) : sh.ends[static_cast<std::uint32_t>(row)];
  }

  // By all lanes of a warp, which see the same: a part of a copy, and of those that follow it.
  template <class X>
  KVFERRY_KERNEL_FN static void run_task(X& x, const Shared<X>& sh, const Params& p, std::int64_t index,
                                         std::uint32_t part) {
    std::int64_t row = 0, above = p.rows;  // end_of(row) <= index < end_of(above)
    while (above - row > 1) {
      const std::int64_t middle = row + (above - row) / 2;
      if (end_of(x, sh, p, middle) <= index) {
        row = middle;
      } else {
        above = middle;
      }
    }
    const std::int64_t first_row = row - row % p.rows_per_batch;
    const ScheduledCopy* const list = p.schedule.copies.get() + first_row * p.k;
    const auto head = static_cast<std::uint32_t>((row - first_row) * p.k + index - end_of(x, sh, p, row));
    const Range range{part << p.task_shift, least((part + 1) << p.task_shift, p.block_tokens)};
    // One place that copies, and what can be loaded again is, for the registers.
    bool emptied = false;
    for (std::uint32_t at = head;;) {
      ScheduledCopy copy = x.load(list + at);
      if (at == head && (copy.tokens == 0 || (copy.flags & kFollows) != 0)) return;
      const std::int32_t next = copy.next;
      // What a row has in slot n-1 goes before the slot is written; mostly it is nothing.
      const bool empties = (copy.flags & kLastSlotCopy) != 0 && !emptied;
      if (empties) {
        copy = x.load(static_cast<const ScheduledCopy*>(p.schedule.leaving.get() + first_row + at / p.k));
      } else if (at != head && (copy.flags & kZeroCopy) == 0) {
        // Read from the full cache once: the others take what has arrived. The head has the most tokens.
        copy.src_page = x.load(&list[head].dst_page);
        copy.src_block = x.load(&list[head].dst_block);
        copy.flags |= kMoveCopy;
      }
      copy_range(x, p, copy, range);
      emptied = empties;
      if (!empties && next < 0) return;
      x.sync_warp();
      if (!empties) at = static_cast<std::uint32_t>(next);
    }
  }

  template <class X>
  KVFERRY_KERNEL_FN static void copy_range(X& x, const Params& p, const ScheduledCopy& copy,
                                           const Range& range) {
    const std::uint32_t end = least(range.end, static_cast<std::uint32_t>(copy.tokens));
    if (range.begin >= end) return;
    const std::uint32_t tokens = end - range.begin;
    for (std::uint32_t s = 0; s < p.side_count; ++s) {
      const SelectionCopySide& side = p.sides[s];
      const bool moves = (copy.flags & kMoveCopy) != 0;
      const DeviceNest& nest = moves ? side.move : side.fetch;
      std::uint8_t* const dst = side.selection.get() + copy.dst_page * side.selection_page_step +
                                copy.dst_block * side.selection_block_step +
                                range.begin * nest.dst_token_step;
      if (moves) {
        const std::uint8_t* const src = side.selection.get() + copy.src_page * side.selection_page_step +
                                        copy.src_block * side.selection_block_step +
                                        range.begin * nest.src_token_step;
        BlockMover<kWarp, false>::move_as(x, nest, dst, src, tokens, x.lane());
      } else {
        const std::uint8_t* src = nullptr;
        if ((copy.flags & kZeroCopy) == 0) {
          src = side.full.get() + copy.src_page * side.full_page_step +
                copy.src_block * side.full_block_step + range.begin * nest.src_token_step;
        }
        BlockMover<kWarp>::move_as(x, nest, dst, src, tokens, x.lane());
      }
    }
  }
};

}  // namespace kvferry::internal::cuda
