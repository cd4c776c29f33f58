// SPDX-License-Identifier: Apache-2.0
//
// Pages of a cache to contiguous rows: the kernel of the gathers. It knows neither dtype nor layout, as the
// movers of the CPU: a token is a loop nest around contiguous pieces (core/layout.hpp).
#pragma once

#include <cstdint>

#include "backends/cuda/kernel.hpp"

namespace kvferry::internal::cuda {

// One batch after the cut at N: `tokens` tokens from (column, slot) on, to rows [row, row + tokens).
struct PagedSequence {
  std::int64_t row;
  std::int64_t column;  // may lie outside the table
  std::int64_t slot;
  std::int64_t tokens;
  std::int64_t first_task;  // tasks of the batches before
};

// int32 or int64 of any stride and alignment.
struct PagedTable {
  DevicePtr<const std::uint8_t> data;
  std::int64_t step0, step1;  // bytes
  std::int64_t width;
  bool wide;
};

// One of K and V, in bytes.
struct PagedGatherSide {
  static constexpr std::uint32_t kLoops = 3;
  struct Loop {
    std::uint32_t count;
    std::int64_t src_step, dst_step;
  };
  DevicePtr<const std::uint8_t> cache;
  DevicePtr<std::uint8_t> rows;
  std::int64_t blocks;
  std::int64_t block_step, slot_step, row_step;
  std::uint32_t piece;
  bool joined;  // the pieces of neighbouring tokens join up on both sides: MoveKind kDense and kPlanes
  std::uint32_t loop_count;
  Loop loops[kLoops];  // outermost first
};

// A task is at most 2^task_shift tokens of one page, so that long pages spread over blocks; the blocks take
// tasks in turns, those of K and V apart. REQUIRES tasks of less than 2 GiB: inside a task 32 bits count.
struct PagedGather {
  struct Params {
    DevicePtr<const PagedSequence> sequences;  // [batches + 1]; of the last only first_task: all tasks
    std::int64_t batches;
    PagedTable table;
    std::int64_t block_size;
    std::uint32_t task_shift;  // a task has at most 2^task_shift tokens
    std::int64_t side_count;
    PagedGatherSide sides[2];
  };
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kMinBlocks = 4;

  // Twice, so that the next task is looked up while the bytes of this one move.
  template <class X>
  struct Shared {
    SharedArray<X, std::int64_t, 2> id, slot, row;
    SharedArray<X, std::uint32_t, 2> tokens;
  };

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

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    const std::int64_t items = x.load(&p.sequences.get()[p.batches].first_task) * p.side_count;
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
  static constexpr std::uint32_t kInFlight = 4;  // loads of a thread
  static constexpr std::uint32_t kVector = sizeof(Vec16);
  struct Offsets {
    std::int64_t src, dst;
  };

  template <class X>
  KVFERRY_KERNEL_FN static std::int64_t load_id(X& x, const PagedTable& table, std::int64_t batch,
                                                std::int64_t column) {
    const std::uint8_t* at = table.data.get() + batch * table.step0 + column * table.step1;
    const std::uint32_t bytes = table.wide ? 8 : 4;
    if (reinterpret_cast<std::uintptr_t>(at) % bytes == 0) {
      return table.wide ? x.load(reinterpret_cast<const std::int64_t*>(at))
                        : x.load(reinterpret_cast<const std::int32_t*>(at));
    }
    std::uint64_t bits = 0;
    for (std::uint32_t i = 0; i < bytes; ++i) bits |= static_cast<std::uint64_t>(x.load(at + i)) << 8 * i;
    return table.wide ? static_cast<std::int64_t>(bits) : static_cast<std::int32_t>(bits);
  }

  template <class X>
  KVFERRY_KERNEL_FN static void look_up(X& x, Shared<X>& sh, const Params& p, std::int64_t task,
                                        std::uint32_t to) {
    const PagedSequence* sequences = p.sequences.get();
    std::int64_t batch = 0, end = p.batches;  // first_task of batch <= task < first_task of end
    while (end - batch > 1) {
      const std::int64_t middle = batch + (end - batch) / 2;
      if (x.load(&sequences[middle].first_task) <= task) {
        batch = middle;
      } else {
        end = middle;
      }
    }
    const PagedSequence s = x.load(sequences + batch);
    // Parts of pages, from the page of the first token on; positions are slots from there on.
    const std::int64_t parts = parts_of(p.block_size, p.task_shift);
    const std::int64_t part = (s.slot >> p.task_shift) + task - s.first_task, page = part / parts;
    const std::int64_t page_begin = page * p.block_size, page_end = page_begin + p.block_size;
    const std::int64_t part_begin = page_begin + ((part - page * parts) << p.task_shift);
    const std::int64_t first = most(part_begin, s.slot);
    const std::int64_t part_end = part_begin + (std::int64_t{1} << p.task_shift);
    const std::int64_t last = least(least(part_end, page_end), s.slot + s.tokens);
    const std::int64_t column = s.column + page;
    sh.id.set(to, column >= 0 && column < p.table.width ? load_id(x, p.table, batch, column) : -1);
    sh.slot.set(to, first - page_begin);
    sh.row.set(to, s.row + first - s.slot);
    sh.tokens.set(to, static_cast<std::uint32_t>(last - first));
  }

  // Where line `line` of a run of tokens starts: tokens outermost, for the writes to go forward.
  KVFERRY_KERNEL_FN static Offsets line_start(const PagedGatherSide& side, std::uint32_t line) {
    Offsets at{0, 0};
    for (std::uint32_t l = side.loop_count; l-- > 0;) {
      const PagedGatherSide::Loop& loop = side.loops[l];
      const std::uint32_t outer = line / loop.count, i = line - outer * loop.count;
      at.src += i * loop.src_step;
      at.dst += i * loop.dst_step;
      line = outer;
    }
    at.src += line * side.slot_step;
    at.dst += line * side.row_step;
    return at;
  }

  // Vectors by threads `rank` of `ranks`, from src or zero.
  template <class V, class X>
  KVFERRY_KERNEL_FN static void move_vectors(X& x, std::uint8_t* dst, const std::uint8_t* src, bool zero,
                                             std::uint32_t bytes, std::uint32_t rank, std::uint32_t ranks) {
    V* const to = reinterpret_cast<V*>(dst);
    const V* const from = reinterpret_cast<const V*>(src);
    const std::uint32_t count = bytes / static_cast<std::uint32_t>(sizeof(V));
    for (std::uint32_t i = rank; i < count; i += kInFlight * ranks) {
      V values[kInFlight] = {};
      for (std::uint32_t u = 0; u < kInFlight; ++u) {
        if (i + u * ranks < count && !zero) values[u] = x.load_once(from + i + u * ranks);
      }
      for (std::uint32_t u = 0; u < kInFlight; ++u) {
        if (i + u * ranks < count) x.store_once(to + i + u * ranks, values[u]);
      }
    }
  }

  // Any bytes, in the widest vectors that source and destination share, behind a start of single bytes.
  template <class X>
  KVFERRY_KERNEL_FN static void move_line(X& x, std::uint8_t* dst, const std::uint8_t* src, bool zero,
                                          std::uint32_t bytes, std::uint32_t rank, std::uint32_t ranks) {
    const auto to = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(dst));
    const auto from = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(src));
    const std::uint32_t width = zero ? kVector : lowest_bit((to ^ from) | kVector);
    const std::uint32_t head = least((0U - to) % width, bytes);
    const std::uint32_t body = (bytes - head) / width * width, tail = bytes - head - body;
    move_vectors<std::uint8_t>(x, dst, src, zero, head, rank, ranks);
    dst += head;
    if (!zero) src += head;
    if (width == 16) {
      move_vectors<Vec16>(x, dst, src, zero, body, rank, ranks);
    } else if (width == 8) {
      move_vectors<std::uint64_t>(x, dst, src, zero, body, rank, ranks);
    } else if (width == 4) {
      move_vectors<std::uint32_t>(x, dst, src, zero, body, rank, ranks);
    } else if (width == 2) {
      move_vectors<std::uint16_t>(x, dst, src, zero, body, rank, ranks);
    } else {
      move_vectors<std::uint8_t>(x, dst, src, zero, body, rank, ranks);
    }
    move_vectors<std::uint8_t>(x, dst + body, zero ? src : src + body, zero, tail, rank, ranks);
  }

  // A run of tokens inside one page; zero for an id that names no block.
  template <class X>
  KVFERRY_KERNEL_FN static void move(X& x, const PagedGatherSide& side, std::int64_t id, std::int64_t slot,
                                     std::int64_t row, std::uint32_t tokens) {
    const bool zero = id < 0 || id >= side.blocks;
    const std::uint8_t* src = side.cache.get();  // null where there is no block
    if (!zero) src += id * side.block_step + slot * side.slot_step;
    std::uint8_t* dst = side.rows.get() + row * side.row_step;
    const std::uint32_t line_bytes = side.joined ? side.piece * tokens : side.piece;
    std::uint32_t lines = side.joined ? 1 : tokens;
    for (std::uint32_t l = 0; l < side.loop_count; ++l) lines *= side.loops[l].count;
    // The block takes one line, or groups of lanes one each: as few as have enough loads in flight.
    std::uint32_t ranks = kThreads;
    if (lines > 1) {
      for (ranks = 1; ranks < kWarp && ranks * kInFlight * kVector < line_bytes;) ranks *= 2;
    }
    for (std::uint32_t line = x.thread() / ranks; line < lines; line += kThreads / ranks) {
      const Offsets at = line_start(side, line);
      move_line(x, dst + at.dst, zero ? src : src + at.src, zero, line_bytes, x.thread() % ranks, ranks);
    }
  }
};

}  // namespace kvferry::internal::cuda
