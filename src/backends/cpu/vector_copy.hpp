// SPDX-License-Identifier: Apache-2.0
//
// The copy kernels of every instruction set with vectors, but for the vectors. Only copy_<set>.cpp includes
// it, having defined KVFERRY_TARGET, the function attribute of the set, and passes two kinds of store:
//
//   struct Store {
//     static constexpr bool kStreams;
//     static Vector get(const std::byte* p);   // p[0..32), any alignment
//     static void put(std::byte* p, Vector v);
//   };
//
// Regular stores are for data that a CPU reads soon; streaming ones go past the caches and REQUIRE 32-byte
// alignment.
//
// Why one stream with its own prefetching: the prefetcher of the CPU restarts at every 4 KiB page and every
// jump, which costs most of a small piece. A second cursor that runs ahead over the list of pieces knows
// where the next ones are. Two classes (docs/performance.md has the measurements): pieces from random places
// are fetched into L2, far ahead; long ones and those that follow on in memory only need a nudge, into L1.
#pragma once

#include <algorithm>
#include <utility>

#include "backends/cpu/copy.hpp"
#include "backends/cpu/small_copy.hpp"
#include "backends/cpu/tuning.hpp"

namespace kvferry::internal::cpu {

inline constexpr std::int64_t kLine = 64;
inline constexpr std::int64_t kStep = 256;
inline constexpr std::int64_t kUnit = 32;

// Localities of __builtin_prefetch.
inline constexpr int kIntoL1 = 0, kIntoL2 = 2;

template <class Store>
KVFERRY_TARGET inline void copy_step(std::byte* dst, const std::byte* src) {
  for (std::int64_t i = 0; i < kStep; i += 128) {
    const auto a = Store::get(src + i), b = Store::get(src + i + 32);
    const auto c = Store::get(src + i + 64), d = Store::get(src + i + 96);
    Store::put(dst + i, a);
    Store::put(dst + i + 32, b);
    Store::put(dst + i + 64, c);
    Store::put(dst + i + 96, d);
  }
}

template <class Store>
KVFERRY_TARGET inline void copy_line(std::byte* dst, const std::byte* src) {
  const auto a = Store::get(src), b = Store::get(src + 32);
  Store::put(dst, a);
  Store::put(dst + 32, b);
}

inline std::int64_t to_line(const std::byte* p) {
  return static_cast<std::int64_t>((0 - reinterpret_cast<std::uintptr_t>(p)) & (kLine - 1));
}

// A cursor that prefetches in front of the copy, across the borders of pieces. A regular store reads its line
// first, so these are fetched too where they come from random places: scatter of 1 KB 1.79x memcpy, 1.19x
// without. In order, the CPU sees them coming, and asking costs a gather of 4 KiB pieces 8 %.
template <int kLocality, bool kBothSides>
class Ahead {
 public:
  Ahead(const Piece* pieces, std::int64_t count, std::int64_t bytes) : piece_(pieces), end_(pieces + count) {
    for (std::int64_t i = 0; i < bytes; i += kStep) step();
  }
  // The next kStep bytes, but not a line beyond their piece.
  void step() {
    if (piece_ == end_) return;
    const std::int64_t stop = std::min(at_ + kStep, piece_->bytes);
    for (; at_ < stop; at_ += kLine) {
      __builtin_prefetch(piece_->src + at_, 0, kLocality);
      if constexpr (kBothSides) __builtin_prefetch(piece_->dst + at_, 0, kLocality);
    }
    if (at_ < piece_->bytes) return;
    ++piece_;
    at_ = 0;
  }

 private:
  const Piece* piece_;
  const Piece* end_;
  std::int64_t at_ = 0;
};

// All pieces as one stream of whole destination lines.
template <class Store, int kLocality, bool kBothSides = false>
KVFERRY_TARGET void copy_stream(const Piece* pieces, std::int64_t count, std::int64_t ahead_bytes) {
  Ahead<kLocality, kBothSides> ahead(pieces, count, ahead_bytes);
  for (const Piece* piece = pieces; piece != pieces + count; ++piece) {
    std::byte* dst = piece->dst;
    const std::byte* src = piece->src;
    std::int64_t left = piece->bytes;
    if (const std::int64_t head = std::min(to_line(dst), left); head > 0) {
      std::memcpy(dst, src, static_cast<std::size_t>(head));
      dst += head;
      src += head;
      left -= head;
    }
    for (; left >= kStep; left -= kStep, dst += kStep, src += kStep) {
      ahead.step();
      copy_step<Store>(dst, src);
    }
    ahead.step();
    for (; left >= kLine; left -= kLine, dst += kLine, src += kLine) copy_line<Store>(dst, src);
    if (left > 0) std::memcpy(dst, src, static_cast<std::size_t>(left));
  }
}

// libc's memcpy for each piece: the fastest way to fill whole lines with regular stores. It starts slowly, so
// the beginning of the next piece is fetched meanwhile.
inline void copy_each(const Piece* pieces, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t next = i + 1 < count ? std::min(pieces[i + 1].bytes, kTuning.near_bytes) : 0;
    for (std::int64_t at = 0; at < next; at += kLine) __builtin_prefetch(pieces[i + 1].src + at, 0, kIntoL2);
    std::memcpy(pieces[i].dst, pieces[i].src, static_cast<std::size_t>(pieces[i].bytes));
  }
}

// Where one piece ends and the next begins: the prefetcher of the CPU goes on by itself.
inline bool sources_follow_on(const Piece* pieces, std::int64_t count) {
  return count > 1 && pieces[1].src == pieces[0].src + pieces[0].bytes;
}
inline bool destinations_follow_on(const Piece* pieces, std::int64_t count) {
  return count > 1 && pieces[1].dst == pieces[0].dst + pieces[0].bytes;
}

template <class Store>
void copy_pieces(const Piece* pieces, std::int64_t count) {
  while (count > 0) {
    // Neighbours of one class together. They come from one call, so mostly this is all of them.
    const bool large = pieces->bytes >= kTuning.large_piece_bytes;
    std::int64_t n = 1;
    while (n < count && (pieces[n].bytes >= kTuning.large_piece_bytes) == large) ++n;
    const bool scatters = !destinations_follow_on(pieces, n);
    const std::int64_t least_for_libc = scatters ? kTuning.libc_scattered_bytes : kTuning.libc_piece_bytes;
    if (!Store::kStreams && pieces->bytes >= least_for_libc) {
      copy_each(pieces, n);
    } else if (large || (pieces->bytes >= kTuning.near_piece_bytes && sources_follow_on(pieces, n))) {
      copy_stream<Store, kIntoL1>(pieces, n, kTuning.near_bytes);
    } else if (!Store::kStreams && scatters) {
      copy_stream<Store, kIntoL2, true>(pieces, n, kTuning.far_bytes);
    } else {
      copy_stream<Store, kIntoL2>(pieces, n, kTuning.far_bytes);
    }
    pieces += n;
    count -= n;
  }
}

template <class Regular, class Streaming>
void vector_pieces(const Piece* pieces, std::int64_t count, bool nontemporal) {
  nontemporal ? copy_pieces<Streaming>(pieces, count) : copy_pieces<Regular>(pieces, count);
}

// A source of `rows` x `columns` units, column by column in memory.
struct Columns {
  const std::byte* src;
  std::int64_t pitch, rows, columns;
  const std::byte* next;  // the src of the next such source, or null
};

// Ahead of a transpose: column after column, and on into the next source.
template <int kLocality>
class AheadOfColumns {
 public:
  AheadOfColumns(const Columns& source, std::int64_t bytes)
      : source_(source), lines_((source.rows * kUnit + kLine - 1) / kLine) {
    const std::int64_t lines = bytes / kLine;
    column_ = lines / lines_;
    line_ = lines % lines_;
    if (column_ >= source.columns) enter_next();
    at_ = source_.src + column_ * source.pitch + line_ * kLine;
  }
  void step() {
    if (at_ == nullptr) return;
    __builtin_prefetch(at_, 0, kLocality);
    at_ += kLine;
    if (++line_ < lines_) return;
    line_ = 0;
    if (++column_ == source_.columns) return enter_next();
    at_ = source_.src + column_ * source_.pitch;
  }

 private:
  void enter_next() {
    at_ = source_.src = std::exchange(source_.next, nullptr);
    line_ = column_ = 0;
  }

  Columns source_;
  const std::int64_t lines_;  // of a column
  std::int64_t line_ = 0, column_ = 0;
  const std::byte* at_ = nullptr;  // null: behind all
};

// Whole 64-byte lines on both sides: two rows x two columns a step, no scratch. `group` columns at a time, so
// that the source is read nearly in order and group / 2 lines of each row are written together.
template <class Store, int kLocality>
KVFERRY_TARGET void transpose_groups(std::byte* dst, std::int64_t dst_pitch, const Columns& source,
                                     std::int64_t group, std::int64_t ahead_bytes) {
  const auto [src, src_pitch, rows, columns, next] = source;
  const std::int64_t even_rows = rows & ~std::int64_t{1}, even_columns = columns & ~std::int64_t{1};
  // Before the end of its first column a group has used the beginning of its last.
  AheadOfColumns<kLocality> ahead(source, group * rows * kUnit + ahead_bytes);
  for (std::int64_t c = 0; c < even_columns; c += group) {
    const std::int64_t end = std::min(c + group, even_columns);
    for (std::int64_t r = 0; r < even_rows; r += 2) {
      for (std::int64_t i = c; i < end; i += 2) {
        const std::byte* s = src + i * src_pitch + r * kUnit;
        std::byte* d = dst + r * dst_pitch + i * kUnit;
        ahead.step();
        ahead.step();
        const auto a0 = Store::get(s), a1 = Store::get(s + kUnit);
        const auto b0 = Store::get(s + src_pitch), b1 = Store::get(s + src_pitch + kUnit);
        Store::put(d, a0);
        Store::put(d + kUnit, b0);
        Store::put(d + dst_pitch, a1);
        Store::put(d + dst_pitch + kUnit, b1);
      }
    }
  }
  if (rows != even_rows)
    copy_rows(dst + even_rows * dst_pitch, kUnit, src + even_rows * kUnit, src_pitch, columns, kUnit);
  if (columns != even_columns) {
    copy_rows(dst + even_columns * kUnit, dst_pitch, src + even_columns * src_pitch, kUnit, even_rows, kUnit);
  }
}

template <class Regular, class Streaming>
void vector_transpose(std::byte* dst, std::int64_t dst_pitch, const std::byte* src, std::int64_t src_pitch,
                      std::int64_t rows, std::int64_t columns, bool nontemporal, const std::byte* next) {
  // A line that is stored in halves that straddle two lines cannot be combined: stream only when every line
  // is whole.
  const bool streams = nontemporal && to_line(dst) == 0 && dst_pitch % kLine == 0;
  const bool near = rows * columns * kUnit >= kTuning.large_piece_bytes || next == src + columns * src_pitch;
  // A part of the rows at a time, so that a group of columns fits into L1.
  for (std::int64_t r = 0; r < rows; r += kTuning.transpose_rows) {
    const std::int64_t n = std::min(rows - r, kTuning.transpose_rows);
    const Columns part{src + r * kUnit, src_pitch, n, columns, r + n < rows ? src + (r + n) * kUnit : next};
    std::byte* d = dst + r * dst_pitch;
    if (!streams) {
      transpose_groups<Regular, kIntoL2>(d, dst_pitch, part, kTuning.transpose_columns, kTuning.far_bytes);
    } else if (near) {
      transpose_groups<Streaming, kIntoL1>(d, dst_pitch, part, kTuning.transpose_columns_streaming,
                                           kTuning.transpose_near_bytes);
    } else {
      transpose_groups<Streaming, kIntoL2>(d, dst_pitch, part, kTuning.transpose_columns_streaming,
                                           kTuning.far_bytes);
    }
  }
}

}  // namespace kvferry::internal::cpu
