// SPDX-License-Identifier: Apache-2.0
//
// Blocks of many caches to other blocks: the kernels of copy_blocks and swap_blocks.
#pragma once

#include <cstdint>

#include "backends/cuda/first_use.hpp"
#include "backends/cuda/indices.hpp"
#include "backends/cuda/kernel.hpp"
#include "backends/cuda/mover.hpp"
#include "backends/cuda/turns.hpp"

namespace kvferry::internal::cuda {

// A block of one cache: a loop nest around pieces, which are cut into lines where they are long. A part is
// some lines, what `ranks` threads take at once, by groups of `line_ranks`. REQUIRES lines, and parts of all
// caches of a launch, below 2^31.
struct BlockShape {
  static constexpr std::uint32_t kLoops = 7;
  struct Loop {
    std::uint32_t count;
    std::int64_t src_step, dst_step;
  };
  std::int64_t src_step, dst_step;  // from block to block
  std::int64_t piece;
  std::uint32_t line_bytes;  // the last line of a piece may be short
  std::uint32_t lines_of_piece, lines, lines_of_part, parts;
  std::uint32_t ranks, line_ranks;  // powers of two
  std::uint32_t loop_count;
  Loop loops[kLoops];  // outermost first

  template <std::uint32_t Threads, class X>
  KVFERRY_KERNEL_FN void move_part(X& x, std::uint8_t* dst, const std::uint8_t* src,
                                   std::uint32_t part) const {
    const std::uint32_t first = part * lines_of_part, end = least(first + lines_of_part, lines);
    const std::uint32_t rank = x.thread() % ranks;
    for (std::uint32_t line = first + rank / line_ranks; line < end; line += ranks / line_ranks) {
      std::uint32_t piece_index = line / lines_of_piece;
      const std::int64_t inside = std::int64_t{line - piece_index * lines_of_piece} * line_bytes;
      std::int64_t src_at = inside, dst_at = inside;
      for (std::uint32_t l = loop_count; l-- > 0;) {
        const std::uint32_t outer = piece_index / loops[l].count, i = piece_index - outer * loops[l].count;
        src_at += i * loops[l].src_step;
        dst_at += i * loops[l].dst_step;
        piece_index = outer;
      }
      const auto bytes = static_cast<std::uint32_t>(least(std::int64_t{line_bytes}, piece - inside));
      BlockMover<Threads>::move_line(x, dst + dst_at, src + src_at, bytes, rank % line_ranks, line_ranks);
    }
  }
};

struct BlockCache {
  DevicePtr<const std::uint8_t> src;
  DevicePtr<std::uint8_t> dst;
};

struct BlockPair {
  std::int64_t src, dst;
};

// mapping and count in memory that the device reads.
struct BlockMapping {
  Indices entries, count;
  std::int64_t most;  // pairs
  std::int64_t src_blocks, dst_blocks;
  bool has_count, one_pool;

  template <class X>
  KVFERRY_KERNEL_FN std::int64_t pairs(X& x) const {
    return load_count(x, count, has_count, most);
  }
  template <class X>
  KVFERRY_KERNEL_FN BlockPair pair(X& x, std::int64_t p) const {
    return {load_index(x, entries, p, 0), load_index(x, entries, p, 1)};
  }
  KVFERRY_KERNEL_FN static bool is_padding(BlockPair pair) { return pair.src < 0 || pair.dst < 0; }
  // Bits of a record.
  KVFERRY_KERNEL_FN std::uint32_t out_of_range(BlockPair pair) const {
    return (pair.src >= src_blocks ? kSourceBit : 0) | (pair.dst >= dst_blocks ? kDestinationBit : 0);
  }
  // Bytes move.
  KVFERRY_KERNEL_FN bool is_active(BlockPair pair) const {
    return !is_padding(pair) && out_of_range(pair) == 0 && !(one_pool && pair.src == pair.dst);
  }
};

// Caches whose blocks have one shape.
struct BlockCopy {
  static constexpr std::uint32_t kMostCaches = 224;

  struct Params {
    BlockMapping mapping;
    BlockShape shape;
    std::uint32_t cache_count;
    BlockCache caches[kMostCaches];
  };
  static_assert(sizeof(Params) <= kMostParameterBytes);
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kMinBlocks = 4;

  template <class X>
  struct Shared {};

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& /*sh*/, const Params& p) {
    const std::int64_t pairs = p.mapping.pairs(x);
    for (Turns turns(x, std::int64_t{p.cache_count} * p.shape.parts, p.shape.ranks); turns.outer() < pairs;) {
      const BlockPair pair = p.mapping.pair(x, turns.outer());
      if (!p.mapping.is_active(pair)) {
        turns.skip();
        continue;
      }
      move(x, p, pair, static_cast<std::uint32_t>(turns.inner()));
      turns.next();
    }
  }

  template <class X, class Params>
  KVFERRY_KERNEL_FN static void move(X& x, const Params& p, BlockPair pair, std::uint32_t item) {
    const std::uint32_t cache = item / p.shape.parts;
    p.shape.template move_part<kThreads>(x, p.caches[cache].dst.get() + pair.dst * p.shape.dst_step,
                                         p.caches[cache].src.get() + pair.src * p.shape.src_step,
                                         item - cache * p.shape.parts);
  }
};

// A mapping that the host read: the pairs that move bytes stand in the parameters.
struct BlockCopyGiven {
  static constexpr std::uint32_t kMostCaches = 96;
  static constexpr std::uint32_t kMostPairs = 128;

  struct Params {
    BlockShape shape;
    std::uint32_t cache_count, pair_count;
    BlockCache caches[kMostCaches];
    BlockPair pairs[kMostPairs];
  };
  static_assert(sizeof(Params) <= kMostParameterBytes);
  static constexpr std::uint32_t kThreads = BlockCopy::kThreads;
  static constexpr std::uint32_t kMinBlocks = 4;

  template <class X>
  struct Shared {};

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& /*sh*/, const Params& p) {
    Turns turns(x, std::int64_t{p.cache_count} * p.shape.parts, p.shape.ranks);
    for (; turns.outer() < p.pair_count; turns.next())
      BlockCopy::move(x, p, p.pairs[turns.outer()], static_cast<std::uint32_t>(turns.inner()));
  }
};

// The record of IndexPolicy::kReport: report() of ops/block_copy.cpp. One block.
struct BlockReport {
  struct Params {
    BlockMapping mapping;
    FirstUse destinations;
    DevicePtr<Record> record;
    std::uint32_t op;
  };
  static constexpr std::uint32_t kThreads = 512;
  static constexpr std::uint32_t kMinBlocks = 1;

  template <class X>
  struct Shared {
    FoundShared<X> found;
  };

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    const std::int64_t pairs = p.mapping.pairs(x);
    p.destinations.clear(x);
    x.sync();
    for (std::int64_t i = x.thread(); i < pairs; i += kThreads) {
      const BlockPair pair = p.mapping.pair(x, i);
      if (p.mapping.is_active(pair)) p.destinations.add(x, pair.dst, i);
    }
    x.sync();
    Found found;
    for (std::int64_t i = x.thread(); i < pairs; i += kThreads) {
      if (judge(x, p, i, p.mapping.pair(x, i)) != 0) found.add(i, 0, 1);
    }
    if (!found.gather(x, sh.found)) return;
    const std::int64_t first = sh.found.batch[0];
    const BlockPair pair = p.mapping.pair(x, first);
    const std::uint32_t bits = judge(x, p, first, pair);
    add_to_record(x, p.record.get(),
                  {sh.found.bad[0], first, 0, (bits & kSourceBit) != 0 ? pair.src : pair.dst, bits, p.op});
  }

 private:
  template <class X>
  KVFERRY_KERNEL_FN static std::uint32_t judge(X& x, const Params& p, std::int64_t i, BlockPair pair) {
    if (BlockMapping::is_padding(pair)) return 0;
    if (!p.mapping.is_active(pair)) return p.mapping.out_of_range(pair);
    std::uint32_t bits = 0;
    if (p.mapping.one_pool && p.destinations.first(x, pair.src) != FirstUse::kNoEntry) bits |= kSourceBit;
    if (p.destinations.first(x, pair.dst) < i) bits |= kDestinationBit;
    return bits != 0 ? bits | kDuplicateBit : 0;
  }
};

}  // namespace kvferry::internal::cuda
