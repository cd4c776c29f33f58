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
  // Where a token is and goes. dst null: it stays. src null: zeros.
  struct Token {
    std::uint8_t* dst;
    const std::uint8_t* src;
  };

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
    move_lines(
        x, nest, nest.joined ? nest.piece * tokens : nest.piece, nest.joined ? 1 : tokens, me,
        [&](std::uint32_t t) {
          return Token{dst + t * nest.dst_token_step, src == nullptr ? src : src + t * nest.src_token_step};
        });
  }

  // `tokens` tokens, each on its own: place(t) is the Token of t. REQUIRES less than 2 GiB.
  template <class X, class Place>
  KVFERRY_KERNEL_FN static void move_each(X& x, const DeviceNest& nest, std::uint32_t tokens, Place place) {
    move_lines(x, nest, nest.piece, tokens, x.thread(), place);
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
  struct Line {
    std::uint32_t token;
    std::int64_t src, dst;  // from the start of the token
  };

  template <class X, class Place>
  KVFERRY_KERNEL_FN static void move_lines(X& x, const DeviceNest& nest, std::uint32_t line_bytes,
                                           std::uint32_t tokens, std::uint32_t me, Place place) {
    std::uint32_t lines = tokens;
    for (std::uint32_t l = 0; l < nest.loop_count; ++l) lines *= nest.loops[l].count;
    // The block takes one line, or groups of lanes one each: as few as have enough loads in flight.
    std::uint32_t ranks = Threads;
    if (lines > 1) {
      for (ranks = 1; ranks < kWarp && ranks * kInFlight * kVector < line_bytes;) ranks *= 2;
    }
    for (std::uint32_t i = me / ranks; i < lines; i += Threads / ranks) {
      const Line line = line_at(nest, i);
      const Token token = place(line.token);
      if (token.dst == nullptr) continue;
      move_line(x, token.dst + line.dst, token.src == nullptr ? token.src : token.src + line.src, line_bytes,
                me % ranks, ranks);
    }
  }

  // Line `i` of a run of tokens: tokens outermost, for the writes to go forward.
  KVFERRY_KERNEL_FN static Line line_at(const DeviceNest& nest, std::uint32_t i) {
    Line line{i, 0, 0};
    for (std::uint32_t l = nest.loop_count; l-- > 0;) {
      const DeviceNest::Loop& loop = nest.loops[l];
      const std::uint32_t outer = line.token / loop.count, inner = line.token - outer * loop.count;
      line.src += inner * loop.src_step;
      line.dst += inner * loop.dst_step;
      line.token = outer;
    }
    return line;
  }

  template <class V, class X>
  KVFERRY_KERNEL_FN static void move_vectors(X& x, std::uint8_t* dst, const std::uint8_t* src,
                                             std::uint32_t bytes, std::uint32_t rank, std::uint32_t ranks) {
    V* const to = reinterpret_cast<V*>(dst);
    const V* const from = reinterpret_cast<const V*>(src);
    const std::uint32_t count = bytes / static_cast<std::uint32_t>(sizeof(V));
    // The first lane starts at a multiple of 64 bytes of the source, in front of it where need be: requests
    // of a warp across such a multiple take two turns, on the link to the host above all. Lanes in front have
    // wrapped around to indices beyond the count.
    std::uint32_t skew = 0;
    if (sizeof(V) == kVector)
      skew = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(src) / kVector) % (64 / kVector);
    for (std::uint32_t i = rank; i < count + skew; i += kInFlight * ranks) {
      V values[kInFlight] = {};
      for (std::uint32_t u = 0; u < kInFlight; ++u) {
        const std::uint32_t at = i + u * ranks - skew;
        if (at < count && src != nullptr) {
          if constexpr (Once) {
            values[u] = x.load_once(from + at);
          } else {
            values[u] = x.load(from + at);
          }
        }
      }
      for (std::uint32_t u = 0; u < kInFlight; ++u) {
        const std::uint32_t at = i + u * ranks - skew;
        if (at < count) x.store_once(to + at, values[u]);
      }
    }
  }
};

}  // namespace kvferry::internal::cuda
