// SPDX-License-Identifier: Apache-2.0
//
// AVX2 copy kernels. The instruction set comes with the function attribute, so the file builds with the flags
// of the rest and runs only behind why_no_avx2().
//
// Why one stream with its own prefetching: the prefetcher of the CPU restarts at every 4 KiB page and every
// jump, which costs most of a small piece. A second cursor that runs ahead over the list of pieces knows
// where the next ones are. Two classes (docs/performance.md has the measurements): pieces from random places
// are fetched into L2, far ahead; long ones and those that follow on in memory only need a nudge, into L1.
// AVX-512 gains nothing here.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "backends/cpu/copy.hpp"
#include "backends/cpu/features.hpp"
#include "backends/cpu/small_copy.hpp"
#include "backends/cpu/tuning.hpp"

#define KVFERRY_AVX2 __attribute__((target("avx2")))

namespace kvferry::internal::cpu {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kStep = 256;

// 32 bytes at p[0..32): the two kinds of store that the kernels choose between. Streaming REQUIRES 32-byte
// alignment.
struct RegularStore {
  KVFERRY_AVX2 static void put(std::byte* p, __m256i v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
  }
};
struct StreamingStore {
  KVFERRY_AVX2 static void put(std::byte* p, __m256i v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), v);
  }
};

KVFERRY_AVX2 inline __m256i get(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

template <class Store>
KVFERRY_AVX2 inline void copy_step(std::byte* dst, const std::byte* src) {
  for (std::int64_t i = 0; i < kStep; i += 128) {
    const __m256i a = get(src + i), b = get(src + i + 32), c = get(src + i + 64), d = get(src + i + 96);
    Store::put(dst + i, a);
    Store::put(dst + i + 32, b);
    Store::put(dst + i + 64, c);
    Store::put(dst + i + 96, d);
  }
}

template <class Store>
KVFERRY_AVX2 inline void copy_line(std::byte* dst, const std::byte* src) {
  const __m256i a = get(src), b = get(src + 32);
  Store::put(dst, a);
  Store::put(dst + 32, b);
}

inline std::int64_t to_line(const std::byte* p) {
  return static_cast<std::int64_t>((0 - reinterpret_cast<std::uintptr_t>(p)) & (kLine - 1));
}

// Localities of __builtin_prefetch: PREFETCHNTA and PREFETCHT1.
constexpr int kIntoL1 = 0, kIntoL2 = 2;

// A cursor that prefetches in front of the copy, across the borders of pieces. A regular store reads its line
// first, so far ahead these are fetched too.
template <class Store, int kLocality>
class Ahead {
  static constexpr bool kBothSides = std::is_same_v<Store, RegularStore> && kLocality == kIntoL2;

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
template <class Store, int kLocality>
KVFERRY_AVX2 void copy_stream(const Piece* pieces, std::int64_t count, std::int64_t ahead_bytes) {
  Ahead<Store, kLocality> ahead(pieces, count, ahead_bytes);
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

// libc's memcpy for each piece: its rep movsb writes whole lines without reading them first, which no regular
// store does. It starts slowly, so the beginning of the next piece is fetched meanwhile.
void copy_each(const Piece* pieces, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t next = i + 1 < count ? std::min(pieces[i + 1].bytes, kTuning.near_bytes) : 0;
    for (std::int64_t at = 0; at < next; at += kLine) __builtin_prefetch(pieces[i + 1].src + at, 0, kIntoL2);
    std::memcpy(pieces[i].dst, pieces[i].src, static_cast<std::size_t>(pieces[i].bytes));
  }
}

// Where one piece ends and the next begins: the prefetcher of the CPU goes on by itself.
bool sources_follow_on(const Piece* pieces, std::int64_t count) {
  return count > 1 && pieces[1].src == pieces[0].src + pieces[0].bytes;
}
bool destinations_follow_on(const Piece* pieces, std::int64_t count) {
  return count > 1 && pieces[1].dst == pieces[0].dst + pieces[0].bytes;
}

template <class Store>
void copy_pieces(const Piece* pieces, std::int64_t count) {
  while (count > 0) {
    // Neighbours of one class together. They come from one call, so mostly this is all of them.
    const bool large = pieces->bytes >= kTuning.large_piece_bytes;
    std::int64_t n = 1;
    while (n < count && (pieces[n].bytes >= kTuning.large_piece_bytes) == large) ++n;
    const std::int64_t least_each =
        destinations_follow_on(pieces, n) ? kTuning.libc_piece_bytes : kTuning.libc_scattered_bytes;
    if (std::is_same_v<Store, RegularStore> && pieces->bytes >= least_each) {
      copy_each(pieces, n);
    } else if (large || (pieces->bytes >= kTuning.near_piece_bytes && sources_follow_on(pieces, n))) {
      copy_stream<Store, kIntoL1>(pieces, n, kTuning.near_bytes);
    } else {
      copy_stream<Store, kIntoL2>(pieces, n, kTuning.far_bytes);
    }
    pieces += n;
    count -= n;
  }
}

void pieces(const Piece* pieces, std::int64_t count, bool nontemporal) {
  nontemporal ? copy_pieces<StreamingStore>(pieces, count) : copy_pieces<RegularStore>(pieces, count);
}

// Whole 64-byte lines on both sides: two rows x two columns a step, no scratch. Columns outside: the source
// is read in order, and written lines may come in any.
template <class Store>
KVFERRY_AVX2 void transpose_pairs(std::byte* dst, std::int64_t dst_pitch, const std::byte* src,
                                  std::int64_t src_pitch, std::int64_t rows, std::int64_t columns,
                                  const std::byte* next) {
  const std::int64_t even_rows = rows & ~std::int64_t{1}, even_columns = columns & ~std::int64_t{1};
  // Pairs of columns that are kTuning.far_bytes ahead, in this run or in the next.
  const std::int64_t ahead =
      std::max<std::int64_t>(2, kTuning.far_bytes / std::max<std::int64_t>(rows * 32, 1) & ~1);
  for (std::int64_t c = 0; c < even_columns; c += 2) {
    const std::byte* s0 = src + c * src_pitch;
    const std::byte* s1 = s0 + src_pitch;
    std::byte* d = dst + c * 32;
    const std::int64_t then = c + ahead;
    const std::byte* p0 = then + 1 < columns ? src + then * src_pitch
                          : next != nullptr && then >= columns && then - columns + 1 < columns
                              ? next + (then - columns) * src_pitch
                              : s0;
    const std::byte* p1 = p0 + src_pitch;
    for (std::int64_t r = 0; r < even_rows; r += 2, d += 2 * dst_pitch) {
      __builtin_prefetch(p0 + r * 32, 0, kIntoL2);
      __builtin_prefetch(p1 + r * 32, 0, kIntoL2);
      const __m256i a0 = get(s0 + r * 32), a1 = get(s0 + r * 32 + 32);
      const __m256i b0 = get(s1 + r * 32), b1 = get(s1 + r * 32 + 32);
      Store::put(d, a0);
      Store::put(d + 32, b0);
      Store::put(d + dst_pitch, a1);
      Store::put(d + dst_pitch + 32, b1);
    }
  }
  if (rows != even_rows)
    copy_rows(dst + even_rows * dst_pitch, 32, src + even_rows * 32, src_pitch, columns, 32);
  if (columns != even_columns)
    copy_rows(dst + even_columns * 32, dst_pitch, src + even_columns * src_pitch, 32, even_rows, 32);
}

void transpose(std::byte* dst, std::int64_t dst_pitch, const std::byte* src, std::int64_t src_pitch,
               std::int64_t rows, std::int64_t columns, bool nontemporal, const std::byte* next) {
  // A line that is stored in halves that straddle two lines cannot be combined: stream only when every line
  // is whole.
  const bool aligned = to_line(dst) == 0 && dst_pitch % kLine == 0;
  nontemporal&& aligned ? transpose_pairs<StreamingStore>(dst, dst_pitch, src, src_pitch, rows, columns, next)
                        : transpose_pairs<RegularStore>(dst, dst_pitch, src, src_pitch, rows, columns, next);
}

void fence() {
  _mm_sfence();
}

constexpr CopyKernels kAvx2Copy = {pieces, copy_rows, transpose, fence};

}  // namespace

std::string why_no_avx2() {
  // Also asks whether the operating system saves the registers.
  return __builtin_cpu_supports("avx2") ? std::string() : "this CPU has no AVX2";
}

const CopyKernels* avx2_copy() noexcept {
  return &kAvx2Copy;
}

}  // namespace kvferry::internal::cpu
