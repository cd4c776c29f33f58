// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/content.hpp"

#include <array>
#include <cstring>

#include "tools/replay/numbers.hpp"

namespace kvferry::replay {
namespace {

struct Table {
  alignas(64) std::array<std::uint64_t, kMaxRowBytes / 8> words;
  Table() {
    harness::Random random(0x6b76);
    for (std::uint64_t& w : words) w = random.next();
  }
};
const Table kTable;

// Vectors by the compiler's extension: at -O2 g++ 12 leaves a loop of unknown length scalar.
template <std::size_t n>
using Words __attribute__((vector_size(n))) = std::uint64_t;

template <class V>
__attribute__((always_inline)) inline void load(V& v, const void* at) {
  std::memcpy(&v, at, sizeof v);
}

template <std::size_t n>
__attribute__((always_inline)) inline void fill(std::byte* to, std::int64_t row_bytes, std::uint64_t stream,
                                                std::int64_t first, std::int64_t rows) {
  const std::byte* table = reinterpret_cast<const std::byte*>(kTable.words.data());
  const std::size_t bytes = usize(row_bytes), body = bytes / n * n;
  for (std::int64_t r = 0; r < rows; ++r, to += bytes) {
    const std::uint64_t seed = row_seed(stream, first + r);
    for (std::size_t i = 0; i < body; i += n) {
      Words<n> v;
      load(v, table + i);
      v ^= seed;
      std::memcpy(to + i, &v, n);
    }
    if (body < bytes) {
      Words<16> v;
      load(v, table + body);
      v ^= seed;
      std::memcpy(to + body, &v, 16);
    }
  }
}

template <std::size_t n>
__attribute__((always_inline)) inline std::int64_t good(const std::byte* from, std::int64_t row_bytes,
                                                        std::uint64_t stream, std::int64_t first,
                                                        std::int64_t rows) {
  const std::byte* table = reinterpret_cast<const std::byte*>(kTable.words.data());
  const std::size_t bytes = usize(row_bytes), body = bytes / n * n;
  for (std::int64_t r = 0; r < rows; ++r, from += bytes) {
    const std::uint64_t seed = row_seed(stream, first + r);
    Words<n> difference{};
    for (std::size_t i = 0; i < body; i += n) {
      Words<n> v, w;
      load(v, from + i);
      load(w, table + i);
      difference |= (v ^ w) ^ seed;
    }
    std::uint64_t any = 0;
    for (std::size_t i = 0; i < n / 8; ++i) any |= difference[i];
    if (body < bytes) {
      Words<16> v, w;
      load(v, from + body);
      load(w, table + body);
      v ^= w ^ seed;
      any |= v[0] | v[1];
    }
    if (any != 0) return r;
  }
  return rows;
}

struct Kernels {
  decltype(&fill_rows) fill;
  decltype(&good_rows) good;
};

void fill_generic(std::byte* to, std::int64_t row_bytes, std::uint64_t stream, std::int64_t first,
                  std::int64_t rows) {
  fill<16>(to, row_bytes, stream, first, rows);
}
std::int64_t good_generic(const std::byte* from, std::int64_t row_bytes, std::uint64_t stream,
                          std::int64_t first, std::int64_t rows) {
  return good<16>(from, row_bytes, stream, first, rows);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void fill_avx2(std::byte* to, std::int64_t row_bytes, std::uint64_t stream,
                                               std::int64_t first, std::int64_t rows) {
  fill<32>(to, row_bytes, stream, first, rows);
}
__attribute__((target("avx2"))) std::int64_t good_avx2(const std::byte* from, std::int64_t row_bytes,
                                                       std::uint64_t stream, std::int64_t first,
                                                       std::int64_t rows) {
  return good<32>(from, row_bytes, stream, first, rows);
}
const Kernels kKernels =
    __builtin_cpu_supports("avx2") ? Kernels{fill_avx2, good_avx2} : Kernels{fill_generic, good_generic};
#else
const Kernels kKernels{fill_generic, good_generic};
#endif

}  // namespace

void fill_rows(std::byte* rows_at, std::int64_t row_bytes, std::uint64_t stream, std::int64_t first,
               std::int64_t rows) {
  kKernels.fill(rows_at, row_bytes, stream, first, rows);
}

std::int64_t good_rows(const std::byte* rows_at, std::int64_t row_bytes, std::uint64_t stream,
                       std::int64_t first, std::int64_t rows) {
  return kKernels.good(rows_at, row_bytes, stream, first, rows);
}

void expected_row(std::byte* row, std::int64_t row_bytes, std::uint64_t stream, std::int64_t position) {
  fill_generic(row, row_bytes, stream, position, 1);
}

}  // namespace kvferry::replay
