// SPDX-License-Identifier: Apache-2.0
//
// The schedule of gather_selection_kv_cache on the device: what SelectionPlanner leaves for SelectionCopy.
#pragma once

#include <cstdint>

#include "backends/cuda/kernel.hpp"
#include "backends/cuda/scan.hpp"

namespace kvferry::internal::cuda {

inline constexpr std::uint32_t kZeroCopy = 1, kMoveCopy = 2;  // neither: from the full cache
inline constexpr std::uint32_t kLastSlotCopy = 4;  // to slot n-1: what the row has there leaves it first
inline constexpr std::uint32_t kFollows = 8;       // behind another row's copy of the same id

// One block: places are a page and a block of it.
struct alignas(16) ScheduledCopy {
  std::int32_t src_page, src_block, dst_page, dst_block;
  std::int32_t tokens;  // 0: nothing to copy
  std::uint32_t flags;
  std::int32_t next;  // who follows, in the batch's list; -1: nobody
  std::uint32_t unused;
};

// Row r has the copies [r * k, r * k + counts[r]). A list of them all would take a launch more.
struct SelectionSchedule {
  DevicePtr<std::uint64_t> plan_id;  // whose schedule it is
  DevicePtr<ScheduledCopy> leaving;  // [rows]: out of slot n-1, before it is overwritten
  DevicePtr<ScheduledCopy> copies;   // [rows][k]
  DevicePtr<std::int32_t> counts;    // [rows]
};

// The sums of counts, [rows + 1]: to(i, sum) for each. By all threads of the block; ends without a barrier.
template <std::uint32_t Threads, class X, class To>
KVFERRY_KERNEL_FN void sum_counts(X& x, ScanShared<X, Threads>& sh, const std::int32_t* counts,
                                  std::int64_t rows, To to) {
  std::int64_t before = 0, total = 0;
  for (std::int64_t first = 0; first < rows; first += Threads) {
    const std::int64_t row = first + x.thread();
    const std::int64_t count = row < rows ? x.load(counts + row) : 0;
    const std::int64_t sum = before + scan<Threads>(x, sh, count, total);
    if (row < rows) to(row, sum);
    before += total;
  }
  if (x.thread() == 0) to(rows, before);
}

}  // namespace kvferry::internal::cuda
