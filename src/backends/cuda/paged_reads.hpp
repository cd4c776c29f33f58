// SPDX-License-Identifier: Apache-2.0
//
// Which token of a paged cache goes to which row: ops/paged_reads.hpp on the device.
#pragma once

#include <cstdint>

#include "backends/cuda/indices.hpp"
#include "backends/cuda/kernel.hpp"
#include "backends/cuda/scan.hpp"

namespace kvferry::internal::cuda {

// One batch after the cut at N: `tokens` tokens from (column, slot) on, to rows [row, row + tokens).
struct PagedSequence {
  std::int64_t row;
  std::int64_t column;  // may lie outside the table
  std::int64_t slot;
  std::int64_t tokens;
  std::int64_t first_task;  // tasks of the batches before
};

// A task is at most 2^task_shift tokens of one page, so that long pages spread over blocks.
struct ReadsParams {
  Indices table, lengths, offsets;
  std::int64_t table_width, batches, rows, block_size;
  std::uint32_t task_shift;
  bool cumsum, has_offsets;
};

class PagedTasks {
 public:
  // Tasks of one page, and of a batch with tokens.
  KVFERRY_KERNEL_FN static std::int64_t parts_of(std::int64_t block_size, std::uint32_t task_shift) {
    return ((block_size - 1) >> task_shift) + 1;
  }
  KVFERRY_KERNEL_FN static std::int64_t tasks_of(std::int64_t slot, std::int64_t tokens,
                                                 std::int64_t block_size, std::uint32_t task_shift) {
    const std::int64_t last = slot + tokens - 1;
    return last / block_size * parts_of(block_size, task_shift) + (last % block_size >> task_shift) -
           (slot >> task_shift) + 1;
  }

  // The sequences of batches [first, first + Threads), one a thread, and the sums that go on to the next:
  // lengths and tasks. By all threads of the block.
  template <std::uint32_t Threads, class X>
  KVFERRY_KERNEL_FN static PagedSequence cut(X& x, ScanShared<X, Threads>& sh, const ReadsParams& r,
                                             std::int64_t first, std::int64_t& length_sum,
                                             std::int64_t& task_sum) {
    const std::int64_t batch = first + x.thread();
    const bool there = batch < r.batches;
    // Clamped at N: nothing behind it is written, and the sums must not wrap.
    std::int64_t length = 0, total = 0;
    if (there && !r.cumsum) length = least(most(load_index(x, r.lengths, batch), std::int64_t{0}), r.rows);
    const std::int64_t before = length_sum + scan<Threads>(x, sh, length, total);
    length_sum = least(length_sum + total, r.rows);
    PagedSequence s{};
    if (there) s = cut_one(x, r, batch, before, length);
    const std::int64_t tasks = s.tokens > 0 ? tasks_of(s.slot, s.tokens, r.block_size, r.task_shift) : 0;
    s.first_task = task_sum + scan<Threads>(x, sh, tasks, total);
    task_sum += total;
    return s;
  }

 private:
  template <class X>
  KVFERRY_KERNEL_FN static PagedSequence cut_one(X& x, const ReadsParams& r, std::int64_t batch,
                                                 std::int64_t before, std::int64_t length) {
    constexpr std::int64_t kFarColumn = std::int64_t{1} << 62;
    PagedSequence s{};
    std::int64_t begin = least(before, r.rows), end = before + length;
    if (r.cumsum) {
      begin = load_index(x, r.lengths, batch);
      end = load_index(x, r.lengths, batch + 1);
    }
    end = least(end, r.rows);
    s.row = most(begin, std::int64_t{0});
    if (begin >= end || s.row >= end) return PagedSequence{};
    s.tokens = end - s.row;
    // Tokens whose row is negative are skipped; there may be 2^63.
    const std::uint64_t skipped = begin < 0 ? 0 - static_cast<std::uint64_t>(begin) : 0;
    const auto block_size = static_cast<std::uint64_t>(r.block_size);
    const std::int64_t shift = r.has_offsets ? load_index(x, r.offsets, batch) / r.block_size : 0;
    std::uint64_t column = static_cast<std::uint64_t>(shift) + skipped / block_size;
    if (shift >= 0) column = least(column, static_cast<std::uint64_t>(kFarColumn));
    s.column = least(most(static_cast<std::int64_t>(column), -kFarColumn), kFarColumn);
    s.slot = static_cast<std::int64_t>(skipped % block_size);
    return s;
  }
};

// A cache that the ids of the table name blocks of.
struct NamedCache {
  std::int64_t blocks;
  std::uint32_t bit;  // of a record
};

// The sequences of all batches, and the record of IndexPolicy::kReport: one block.
struct PagedCut {
  struct Params {
    ReadsParams reads;
    DevicePtr<PagedSequence> sequences;  // [batches + 1]; of the last only first_task: all tasks
    DevicePtr<Record> record;            // null: none
    NamedCache caches[2];
    std::uint32_t cache_count;
    std::uint32_t op;
  };
  static constexpr std::uint32_t kThreads = 512;
  static constexpr std::uint32_t kMinBlocks = 1;

  template <class X>
  struct Shared {
    ScanShared<X, kThreads> scan;
    FoundShared<X> found;
  };

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    PagedSequence* sequences = p.sequences.get();
    std::int64_t lengths = 0, tasks = 0;
    for (std::int64_t first = 0; first < p.reads.batches; first += kThreads) {
      const PagedSequence s = PagedTasks::cut<kThreads>(x, sh.scan, p.reads, first, lengths, tasks);
      if (first + x.thread() < p.reads.batches) x.store(sequences + first + x.thread(), s);
    }
    if (x.thread() == 0) x.store(&sequences[p.reads.batches].first_task, tasks);
    if (p.record.get() == nullptr) return;
    x.sync();
    report(x, sh, p);
  }

 private:
  struct Entry {
    std::int64_t id;
    std::uint32_t bits;
  };

  template <class X>
  KVFERRY_KERNEL_FN static Entry look_up(X& x, const Params& p, std::int64_t batch, std::int64_t column) {
    Entry entry{0, 0};
    const bool outside = column < 0 || column >= p.reads.table_width;
    if (outside) {
      entry.bits = kColumnBit;
    } else {
      entry.id = load_index(x, p.reads.table, batch, column);
    }
    for (std::uint32_t c = 0; c < p.cache_count; ++c) {
      if (outside || entry.id < 0 || entry.id >= p.caches[c].blocks) entry.bits |= p.caches[c].bit;
    }
    return entry;
  }

  template <class X>
  KVFERRY_KERNEL_FN static void report(X& x, Shared<X>& sh, const Params& p) {
    Found found;
    for (std::int64_t batch = x.warp(); batch < p.reads.batches; batch += kThreads / kWarp) {
      const PagedSequence s = x.load(static_cast<const PagedSequence*>(p.sequences.get()) + batch);
      if (s.tokens == 0) continue;
      const std::int64_t columns = (s.slot + s.tokens - 1) / p.reads.block_size + 1;
      for (std::int64_t c = x.lane(); c < columns; c += kWarp) {
        const std::uint32_t bits = look_up(x, p, batch, s.column + c).bits;
        const std::uint32_t pairs = (bits & kKeyBit) + (bits & kValueBit) / kValueBit;
        if (pairs != 0) found.add(batch, s.column + c, pairs);
      }
    }
    if (!found.gather(x, sh.found)) return;
    const std::int64_t batch = sh.found.batch[0], column = sh.found.column[0];
    const Entry entry = look_up(x, p, batch, column);
    add_to_record(x, p.record.get(), {sh.found.bad[0], batch, column, entry.id, entry.bits, p.op});
  }
};

}  // namespace kvferry::internal::cuda
