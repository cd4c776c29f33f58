// SPDX-License-Identifier: Apache-2.0
//
// Copies from a table of addresses: the kernels of group_memcpy.
#pragma once

#include <cstdint>

#include "backends/cuda/indices.hpp"
#include "backends/cuda/kernel.hpp"
#include "backends/cuda/mover.hpp"
#include "backends/cuda/scan.hpp"
#include "backends/cuda/turns.hpp"

namespace kvferry::internal::cuda {

// Addresses are numbers in the table: this is where they become pointers.
struct GroupPair {
  std::uint64_t src, dst;

  KVFERRY_KERNEL_FN bool has_null() const { return src == 0 || dst == 0; }
  KVFERRY_KERNEL_FN const std::uint8_t* from() const { return reinterpret_cast<const std::uint8_t*>(src); }
  KVFERRY_KERNEL_FN std::uint8_t* to() const { return reinterpret_cast<std::uint8_t*>(dst); }
};

// addr_table and count in memory that the device reads.
struct GroupTable {
  Indices addresses, count;
  std::int64_t most;  // pairs
  bool has_count, skip_null;

  template <class X>
  KVFERRY_KERNEL_FN std::int64_t pairs(X& x) const {
    return load_count(x, count, has_count, most);
  }
  template <class X>
  KVFERRY_KERNEL_FN GroupPair pair(X& x, std::int64_t p) const {
    return {static_cast<std::uint64_t>(load_index(x, addresses, p, 0)),
            static_cast<std::uint64_t>(load_index(x, addresses, p, 1))};
  }
};

// Pairs of one size: a pair, or a part of a long one, by `ranks` threads.
struct GroupCopy {
  struct Params {
    GroupTable table;
    std::int64_t bytes;
    std::int64_t parts;  // of a pair, the last one short
    std::uint32_t part_bytes;
    std::uint32_t ranks;  // a power of two, at most kThreads
  };
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kMinBlocks = 4;

  template <class X>
  struct Shared {};

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& /*sh*/, const Params& p) {
    const std::int64_t pairs = p.table.pairs(x);
    for (Turns turns(x, p.parts, p.ranks); turns.outer() < pairs;) {
      const GroupPair pair = p.table.pair(x, turns.outer());
      if (pair.src == pair.dst || (p.table.skip_null && pair.has_null())) {
        turns.skip();
        continue;
      }
      const std::int64_t at = turns.inner() * p.part_bytes;
      const auto bytes = static_cast<std::uint32_t>(least(std::int64_t{p.part_bytes}, p.bytes - at));
      BlockMover<kThreads>::move_line(x, pair.to() + at, pair.from() + at, bytes, x.thread() % p.ranks,
                                      p.ranks);
      turns.next();
    }
  }
};

// Sizes to prefix sums; those of null pairs that are skipped count 0. One block.
struct GroupSums {
  struct Params {
    GroupTable table;
    Indices sizes;
    // [table.most + 1]: the bytes before each pair that there is, and at the end of all. The sum is 0, and
    // what is before it has no meaning, if a size is negative or the sum has more than 63 bits.
    DevicePtr<std::int64_t> ends;
  };
  static constexpr std::uint32_t kThreads = 512;
  static constexpr std::uint32_t kMinBlocks = 1;
  static constexpr std::uint32_t kEach = 4;  // pairs of a thread

  template <class X>
  struct Shared {
    ScanShared<X, kThreads> scan;
  };

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    const std::int64_t pairs = p.table.pairs(x);
    // In halves, whose sums cannot wrap.
    std::int64_t high = 0, low = 0;
    for (std::int64_t first = 0; first < pairs && high < kTooHigh; first += std::int64_t{kThreads} * kEach) {
      std::int64_t highs[kEach], lows[kEach], high_sum = 0, low_sum = 0, total = 0;
      for (std::uint32_t i = 0; i < kEach; ++i) {
        const std::int64_t size = counted_size(x, p, first + std::int64_t{x.thread()} * kEach + i, pairs);
        highs[i] = high_sum;
        lows[i] = low_sum;
        high_sum += size < 0 ? kTooHigh : size >> 32;
        low_sum += size & 0xffffffff;
      }
      const std::int64_t high_before = high + scan<kThreads>(x, sh.scan, high_sum, total);
      high += total;
      const std::int64_t low_before = low + scan<kThreads>(x, sh.scan, low_sum, total);
      low += total;
      for (std::uint32_t i = 0; i < kEach; ++i) {
        const std::int64_t pair = first + x.thread() * kEach + i;
        if (pair < pairs) x.store(p.ends.get() + pair, joined(high_before + highs[i], low_before + lows[i]));
      }
      high += low >> 32;
      low &= 0xffffffff;
    }
    if (x.thread() == 0) x.store(p.ends.get() + p.table.most, high < kTooHigh ? joined(high, low) : 0);
  }

 private:
  static constexpr std::int64_t kTooHigh = std::int64_t{1} << 31;

  template <class X>
  KVFERRY_KERNEL_FN static std::int64_t counted_size(X& x, const Params& p, std::int64_t pair,
                                                     std::int64_t pairs) {
    if (pair >= pairs) return 0;
    const std::int64_t size = load_index(x, p.sizes, pair);
    return size > 0 && p.table.skip_null && p.table.pair(x, pair).has_null() ? 0 : size;
  }
  KVFERRY_KERNEL_FN static std::int64_t joined(std::int64_t high, std::int64_t low) {
    return static_cast<std::int64_t>((static_cast<std::uint64_t>(high) << 32) +
                                     static_cast<std::uint64_t>(low));
  }
};

// Pairs of any sizes, which follow each other in one run of bytes: each warp takes a stretch of it. `Pairs`
// has total(), pairs(), pair(p) and begin(p), the bytes before pair p.
template <std::uint32_t Threads>
class GroupWalk {
 public:
  template <class X, class Pairs>
  KVFERRY_KERNEL_FN static void run(X& x, const Pairs& p) {
    const std::int64_t total = p.total(x), pairs = p.pairs(x);
    constexpr std::uint32_t kWarps = Threads / kWarp;
    const std::int64_t warps = std::int64_t{x.blocks()} * kWarps;
    const std::int64_t span = most((total - 1) / warps / kLine * kLine + kLine, kLeastSpan);
    const auto begin = static_cast<std::uint64_t>(std::int64_t{x.block()} * kWarps + x.warp()) *
                       static_cast<std::uint64_t>(span);
    if (begin >= static_cast<std::uint64_t>(total)) return;
    std::int64_t at = static_cast<std::int64_t>(begin);
    const std::int64_t stop = at + least(span, total - at);

    // The last pair that begins at or before the stretch.
    std::int64_t first = 0;
    for (std::int64_t end = pairs; end - first > 1;) {
      const std::int64_t middle = first + (end - first) / 2;
      if (p.begin(x, middle) <= at) {
        first = middle;
      } else {
        end = middle;
      }
    }
    while (at < stop) {
      const std::int64_t mine = first + x.lane();
      const std::int64_t end = mine + 1 < pairs ? least(p.begin(x, mine + 1), stop) : stop;
      const std::int64_t below = x.shfl_up(end, 1);
      const Stretch stretch{x.lane() == 0 ? at : below, end};
      const std::uint32_t large = x.ballot(stretch.end - stretch.begin > kSmall);
      std::uint32_t count = 1;
      if ((large & 1) != 0) {
        const std::int64_t first_end = x.shfl(end, 0);
        move(x, p, first, {at, first_end}, x.lane(), kWarp);
      } else {
        count = large == 0 ? kWarp : index_of(lowest_bit(large));
        move_small(x, p, first, stretch, count);
      }
      at = x.shfl(end, count - 1);
      first += count;
    }
  }

 private:
  static constexpr std::int64_t kLine = 128;
  static constexpr std::int64_t kLeastSpan = 512;
  // Of a pair that is moved beside others: two vectors a lane of half a warp.
  static constexpr std::int64_t kLaneBytes = 32, kSmall = 16 * kLaneBytes;
  struct Stretch {
    std::int64_t begin, end;
  };

  // The pairs of the first `count` lanes, by as many lanes each as the largest wants.
  template <class X, class Pairs>
  KVFERRY_KERNEL_FN static void move_small(X& x, const Pairs& p, std::int64_t first, Stretch stretch,
                                           std::uint32_t count) {
    const std::int64_t bytes = x.lane() < count ? stretch.end - stretch.begin : 0;
    std::uint32_t ranks = 1;
    while (ranks < 16 && x.ballot(bytes > kLaneBytes * ranks) != 0) ranks *= 2;
    for (std::uint32_t i = 0; i < count; i += kWarp / ranks) {
      const std::uint32_t lane = i + x.lane() / ranks;
      const std::int64_t begin = x.shfl(stretch.begin, lane), end = x.shfl(stretch.end, lane);
      if (lane < count) move(x, p, first + lane, {begin, end}, x.lane() % ranks, ranks);
    }
  }

  template <class X, class Pairs>
  KVFERRY_KERNEL_FN static void move(X& x, const Pairs& p, std::int64_t which, Stretch stretch,
                                     std::uint32_t rank, std::uint32_t ranks) {
    constexpr std::int64_t kMost = 1 << 30;  // bytes are counted in 32 bits
    if (stretch.begin >= stretch.end) return;
    const GroupPair pair = p.pair(x, which);
    if (pair.src == pair.dst) return;
    const std::int64_t before = p.begin(x, which);
    while (stretch.begin < stretch.end) {
      const auto bytes = static_cast<std::uint32_t>(least(stretch.end - stretch.begin, kMost));
      const std::int64_t at = stretch.begin - before;
      BlockMover<Threads>::move_line(x, pair.to() + at, pair.from() + at, bytes, rank, ranks);
      stretch.begin += bytes;
    }
  }

  // Of one bit.
  KVFERRY_KERNEL_FN static std::uint32_t index_of(std::uint32_t bit) {
    return ((bit & 0xaaaaaaaaU) != 0 ? 1U : 0U) | ((bit & 0xccccccccU) != 0 ? 2U : 0U) |
           ((bit & 0xf0f0f0f0U) != 0 ? 4U : 0U) | ((bit & 0xff00ff00U) != 0 ? 8U : 0U) |
           ((bit & 0xffff0000U) != 0 ? 16U : 0U);
  }
};

// Behind GroupSums.
struct GroupCopySized {
  struct Params {
    GroupTable table;
    DevicePtr<const std::int64_t> ends;

    template <class X>
    KVFERRY_KERNEL_FN std::int64_t total(X& x) const {
      return x.load(ends.get() + table.most);
    }
    template <class X>
    KVFERRY_KERNEL_FN std::int64_t pairs(X& x) const {
      return table.pairs(x);
    }
    template <class X>
    KVFERRY_KERNEL_FN GroupPair pair(X& x, std::int64_t p) const {
      return table.pair(x, p);
    }
    template <class X>
    KVFERRY_KERNEL_FN std::int64_t begin(X& x, std::int64_t p) const {
      return x.load(ends.get() + p);
    }
  };
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kMinBlocks = 4;

  template <class X>
  struct Shared {};

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& /*sh*/, const Params& p) {
    GroupWalk<kThreads>::run(x, p);
  }
};

// A table that the host read: all of it stands in the parameters.
struct GroupCopyGiven {
  static constexpr std::int64_t kWords = 480;
  static constexpr std::int64_t kMostPairs = kWords / 2, kMostSizedPairs = kWords / 3;

  struct Params {
    std::int64_t all_bytes, count;
    std::int64_t pair_bytes;  // 0: behind the addresses stand the bytes before each pair
    std::uint64_t words[kWords];

    template <class X>
    KVFERRY_KERNEL_FN std::int64_t total(X& /*x*/) const {
      return all_bytes;
    }
    template <class X>
    KVFERRY_KERNEL_FN std::int64_t pairs(X& /*x*/) const {
      return count;
    }
    template <class X>
    KVFERRY_KERNEL_FN GroupPair pair(X& /*x*/, std::int64_t p) const {
      return {words[2 * p], words[2 * p + 1]};
    }
    template <class X>
    KVFERRY_KERNEL_FN std::int64_t begin(X& /*x*/, std::int64_t p) const {
      return pair_bytes != 0 ? p * pair_bytes : static_cast<std::int64_t>(words[2 * count + p]);
    }
  };
  static_assert(sizeof(Params) <= kMostParameterBytes);
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kMinBlocks = 4;

  template <class X>
  struct Shared {};

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& /*sh*/, const Params& p) {
    GroupWalk<kThreads>::run(x, p);
  }
};

}  // namespace kvferry::internal::cuda
