// SPDX-License-Identifier: Apache-2.0
//
// AVX2 copy kernels. The instruction set comes with the function attribute, so the file builds with the flags
// of the rest and runs only behind why_no_avx2().
//
// Why lanes: one copy stream is bound by the L1 miss buffers, and the hardware prefetcher restarts at every 4
// KiB page and every jump. Several pieces copied concurrently, 256 bytes from each in turn, with the next
// group's bytes prefetched (NTA), run 1.2 to 2.1 times as fast as memcpy per piece (docs/performance.md).
// AVX-512 gains nothing here.
#include <immintrin.h>

#include <algorithm>
#include <array>

#include "backends/cpu/copy.hpp"
#include "backends/cpu/features.hpp"
#include "backends/cpu/small_copy.hpp"
#include "backends/cpu/tuning.hpp"

#define KVFERRY_AVX2 __attribute__((target("avx2")))

namespace kvferry::internal::cpu {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kStep = 256;  // bytes of one lane's turn
constexpr std::int64_t kChunk = 4096;
constexpr int kMaxLanes = 8;

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

inline void prefetch_step(const std::byte* src) {
  for (std::int64_t i = 0; i < kStep; i += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(src + i), _MM_HINT_NTA);
  }
}

inline std::int64_t to_line(const std::byte* p) {
  return static_cast<std::int64_t>((0 - reinterpret_cast<std::uintptr_t>(p)) & (kLine - 1));
}

// The pieces as chunks of at most kChunk bytes. A chunk ends where a line of the destination ends, so that
// only the first one of a piece starts inside a line.
class Chunks {
 public:
  Chunks(const Piece* pieces, std::int64_t count) : piece_(pieces), end_(pieces + count) {}

  // Fills up to `lanes` chunks; returns how many.
  int next(Piece* chunks, int lanes) {
    int n = 0;
    while (n < lanes && piece_ != end_) {
      std::byte* const dst = piece_->dst + at_;
      const std::int64_t whole = kChunk - (to_line(dst) == 0 ? 0 : kLine - to_line(dst));
      const std::int64_t bytes = std::min(whole, piece_->bytes - at_);
      if (bytes > 0) chunks[n++] = {piece_->src + at_, dst, bytes};
      at_ += bytes;
      if (at_ >= piece_->bytes) {
        ++piece_;
        at_ = 0;
      }
    }
    return n;
  }

 private:
  const Piece* piece_;
  const Piece* end_;
  std::int64_t at_ = 0;
};

template <class Store>
KVFERRY_AVX2 void copy_lanes(const Piece* pieces, std::int64_t count, int lanes) {
  Chunks chunks(pieces, count);
  std::array<std::array<Piece, kMaxLanes>, 2> groups;
  int now = 0;
  int n = chunks.next(groups[0].data(), lanes);
  while (n > 0) {
    Piece* group = groups[static_cast<std::size_t>(now)].data();
    Piece* ahead = groups[static_cast<std::size_t>(1 - now)].data();
    const int n_ahead = chunks.next(ahead, lanes);
    std::int64_t longest = 0;
    for (int i = 0; i < n; ++i) {
      Piece& p = group[i];
      if constexpr (std::is_same_v<Store, StreamingStore>) {
        const std::int64_t head = std::min(to_line(p.dst), p.bytes);
        std::memcpy(p.dst, p.src, static_cast<std::size_t>(head));
        p = {p.src + head, p.dst + head, p.bytes - head};
      }
      longest = std::max(longest, p.bytes);
    }
    std::int64_t at = 0;
    for (; at + kStep <= longest; at += kStep) {
      for (int i = 0; i < n; ++i) {
        if (at + kStep <= group[i].bytes) copy_step<Store>(group[i].dst + at, group[i].src + at);
      }
      for (int i = 0; i < n_ahead; ++i) {
        if (at + kStep <= ahead[i].bytes) prefetch_step(ahead[i].src + at);
      }
    }
    for (int i = 0; i < n; ++i) {
      const std::int64_t whole = group[i].bytes / kStep * kStep;
      std::memcpy(group[i].dst + whole, group[i].src + whole,
                  static_cast<std::size_t>(group[i].bytes - whole));
    }
    now = 1 - now;
    n = n_ahead;
  }
}

// One long piece. Prefetching 2 KiB ahead covers the prefetcher's restart at each page.
template <class Store>
KVFERRY_AVX2 void copy_long(const Piece& piece) {
  constexpr std::int64_t kAhead = 2048;
  const std::int64_t head = std::min(to_line(piece.dst), piece.bytes);
  std::memcpy(piece.dst, piece.src, static_cast<std::size_t>(head));
  std::int64_t at = head;
  for (; at + kAhead + kStep <= piece.bytes; at += kStep) {
    prefetch_step(piece.src + at + kAhead);
    copy_step<Store>(piece.dst + at, piece.src + at);
  }
  for (; at + kStep <= piece.bytes; at += kStep) copy_step<Store>(piece.dst + at, piece.src + at);
  std::memcpy(piece.dst + at, piece.src + at, static_cast<std::size_t>(piece.bytes - at));
}

template <class Store>
void copy_pieces(const Piece* pieces, std::int64_t count) {
  while (count > 0) {
    if (pieces->bytes >= kTuning.stream_bytes) {
      copy_long<Store>(*pieces++);
      --count;
      continue;
    }
    // Neighbours of one class together. They come from one call, so mostly this is all of them.
    const bool wide = pieces->bytes <= kTuning.wide_lane_bytes;
    std::int64_t n = 1;
    while (n < count && pieces[n].bytes < kTuning.stream_bytes &&
           (pieces[n].bytes <= kTuning.wide_lane_bytes) == wide) {
      ++n;
    }
    copy_lanes<Store>(pieces, n, wide ? 8 : 4);
    pieces += n;
    count -= n;
  }
}

void pieces(const Piece* pieces, std::int64_t count, bool nontemporal) {
  nontemporal ? copy_pieces<StreamingStore>(pieces, count) : copy_pieces<RegularStore>(pieces, count);
}

// Whole 64-byte lines on both sides: two rows x two columns a step, no scratch. Four row pairs stay in
// flight.
template <class Store>
KVFERRY_AVX2 void transpose_pairs(std::byte* dst, std::int64_t dst_pitch, const std::byte* src,
                                  std::int64_t src_pitch, std::int64_t rows, std::int64_t columns) {
  const std::int64_t even_rows = rows & ~std::int64_t{1}, even_columns = columns & ~std::int64_t{1};
  for (std::int64_t r = 0; r < even_rows; r += 2) {
    std::byte* d0 = dst + r * dst_pitch;
    std::byte* d1 = d0 + dst_pitch;
    const std::byte* s = src + r * 32;
    for (std::int64_t c = 0; c < even_columns; c += 2) {
      const std::byte* s0 = s + c * src_pitch;
      const std::byte* s1 = s0 + src_pitch;
      const __m256i a0 = get(s0), a1 = get(s0 + 32), b0 = get(s1), b1 = get(s1 + 32);
      Store::put(d0 + c * 32, a0);
      Store::put(d0 + c * 32 + 32, b0);
      Store::put(d1 + c * 32, a1);
      Store::put(d1 + c * 32 + 32, b1);
    }
    if (columns != even_columns) {
      const std::byte* s0 = s + even_columns * src_pitch;
      RegularStore::put(d0 + even_columns * 32, get(s0));
      RegularStore::put(d1 + even_columns * 32, get(s0 + 32));
    }
  }
  if (rows != even_rows)
    copy_rows(dst + even_rows * dst_pitch, 32, src + even_rows * 32, src_pitch, columns, 32);
}

void transpose(std::byte* dst, std::int64_t dst_pitch, const std::byte* src, std::int64_t src_pitch,
               std::int64_t rows, std::int64_t columns, bool nontemporal) {
  // A line that is stored in halves that straddle two lines cannot be combined: stream only when every line
  // is whole.
  const bool aligned = to_line(dst) == 0 && dst_pitch % kLine == 0;
  nontemporal&& aligned ? transpose_pairs<StreamingStore>(dst, dst_pitch, src, src_pitch, rows, columns)
                        : transpose_pairs<RegularStore>(dst, dst_pitch, src, src_pitch, rows, columns);
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
