// SPDX-License-Identifier: Apache-2.0
//
// Bytes, as the movers of the CPU see them: neither dtype nor layout, a token (or a block) is a loop nest
// around contiguous pieces (core/layout.hpp).
#pragma once

#include <cstdint>

#include "backends/cuda/kernel.hpp"

namespace kvferry::internal::cuda {

struct DeviceNest {
  static constexpr std::uint32_t kLoops = 3;
  struct Loop {
    std::uint32_t count;
    std::int64_t src_step, dst_step;
  };
  std::int64_t src_token_step, dst_token_step;
  std::uint32_t piece;
  bool joined;  // the pieces of neighbouring tokens join up on both sides: MoveKind kDense and kPlanes
  std::uint32_t loop_count;
  Loop loops[kLoops];  // outermost first
};

// Moves by the `Threads` threads of a block, or of another team, together. Every call may be made by all of
// them only, and ends without a barrier. With `Once` the source may not be written by the launch
// (DeviceContext::load_once).
template <std::uint32_t Threads, bool Once = true>
class BlockMover {
 public:
  // `tokens` tokens from src, or zeros where it is null. REQUIRES less than 2 GiB: inside 32 bits count.
  template <class X>
  KVFERRY_KERNEL_FN static void move(X& x, const DeviceNest& nest, std::uint8_t* dst, const std::uint8_t* src,
                                     std::uint32_t tokens) {
    move_as(x, nest, dst, src, tokens, x.thread());
  }

  // The part of thread `me` of a team of `Threads`.
  template <class X>
  KVFERRY_KERNEL_FN static void move_as(X& x, const DeviceNest& nest, std::uint8_t* dst,
                                        const std::uint8_t* src, std::uint32_t tokens, std::uint32_t me) {
    const std::uint32_t line_bytes = nest.joined ? nest.piece * tokens : nest.piece;
    std::uint32_t lines = nest.joined ? 1 : tokens;
    for (std::uint32_t l = 0; l < nest.loop_count; ++l) lines *= nest.loops[l].count;
    // The team takes one line, or groups of lanes one each: as few as have enough loads in flight.
    std::uint32_t ranks = Threads;
    if (lines > 1) {
      for (ranks = 1; ranks < kWarp && ranks * kInFlight * kVector < line_bytes;) ranks *= 2;
    }
    for (std::uint32_t line = me / ranks; line < lines; line += Threads / ranks) {
      const Offsets at = line_start(nest, line);
      move_line(x, dst + at.dst, src == nullptr ? src : src + at.src, line_bytes, me % ranks, ranks);
    }
  }

  // Any bytes by threads `rank` of `ranks`, in the widest vectors that source and destination share, behind a
  // start of single bytes.
  template <class X>
  KVFERRY_KERNEL_FN static void move_line(X& x, std::uint8_t* dst, const std::uint8_t* src,
                                          std::uint32_t bytes, std::uint32_t rank, std::uint32_t ranks) {
    const auto to = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(dst));
    const auto from = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(src));
    const std::uint32_t width = src == nullptr ? kVector : lowest_bit((to ^ from) | kVector);
    const std::uint32_t head = least((0U - to) % width, bytes);
    const std::uint32_t body = (bytes - head) / width * width, tail = bytes - head - body;
    move_vectors<std::uint8_t>(x, dst, src, head, rank, ranks);
    dst += head;
    if (src != nullptr) src += head;
    if (width == 16) {
      move_vectors<Vec16>(x, dst, src, body, rank, ranks);
    } else if (width == 8) {
      move_vectors<std::uint64_t>(x, dst, src, body, rank, ranks);
    } else if (width == 4) {
      move_vectors<std::uint32_t>(x, dst, src, body, rank, ranks);
    } else if (width == 2) {
      move_vectors<std::uint16_t>(x, dst, src, body, rank, ranks);
    } else {
      move_vectors<std::uint8_t>(x, dst, src, body, rank, ranks);
    }
    move_vectors<std::uint8_t>(x, dst + body, src == nullptr ? src : src + body, tail, rank, ranks);
  }

 private:
  static constexpr std::uint32_t kInFlight = 4;  // loads of a thread
  static constexpr std::uint32_t kVector = sizeof(Vec16);
  struct Offsets {
    std::int64_t src, dst;
  };

  // Where line `line` of a run of tokens starts: tokens outermost, for the writes to go forward.
  KVFERRY_KERNEL_FN static Offsets line_start(const DeviceNest& nest, std::uint32_t line) {
    Offsets at{0, 0};
    for (std::uint32_t l = nest.loop_count; l-- > 0;) {
      const DeviceNest::Loop& loop = nest.loops[l];
      const std::uint32_t outer = line / loop.count, i = line - outer * loop.count;
      at.src += i * loop.src_step;
      at.dst += i * loop.dst_step;
      line = outer;
    }
    at.src += line * nest.src_token_step;
    at.dst += line * nest.dst_token_step;
    return at;
  }

  template <class V, class X>
  KVFERRY_KERNEL_FN static void move_vectors(X& x, std::uint8_t* dst, const std::uint8_t* src,
                                             std::uint32_t bytes, std::uint32_t rank, std::uint32_t ranks) {
    V* const to = reinterpret_cast<V*>(dst);
    const V* const from = reinterpret_cast<const V*>(src);
    const std::uint32_t count = bytes / static_cast<std::uint32_t>(sizeof(V));
    for (std::uint32_t i = rank; i < count; i += kInFlight * ranks) {
      V values[kInFlight] = {};
      for (std::uint32_t u = 0; u < kInFlight; ++u) {
        if (i + u * ranks < count && src != nullptr) {
          if constexpr (Once) {
            values[u] = x.load_once(from + i + u * ranks);
          } else {
            values[u] = x.load(from + i + u * ranks);
          }
        }
      }
      for (std::uint32_t u = 0; u < kInFlight; ++u) {
        if (i + u * ranks < count) x.store_once(to + i + u * ranks, values[u]);
      }
    }
  }
};

}  // namespace kvferry::internal::cuda
