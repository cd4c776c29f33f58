// SPDX-License-Identifier: Apache-2.0
//
// AVX2 copy kernels. The instruction set comes with the function attribute, so the file builds with the flags
// of the rest and runs only behind why_not_avx2(). Those of AVX-512 too: see kernels_x86_64.cpp.
#include <immintrin.h>

#define KVFERRY_TARGET __attribute__((target("avx2")))
#include "backends/cpu/vector_copy.hpp"

namespace kvferry::internal::cpu {
namespace {

struct RegularStore {
  static constexpr bool kStreams = false;
  KVFERRY_TARGET static __m256i get(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  KVFERRY_TARGET static void put(std::byte* p, __m256i v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
  }
};
struct StreamingStore : RegularStore {
  static constexpr bool kStreams = true;
  KVFERRY_TARGET static void put(std::byte* p, __m256i v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), v);
  }
};

void fence() {
  _mm_sfence();
}

}  // namespace

const CopyKernels kAvx2Copy = {vector_pieces<RegularStore, StreamingStore>, copy_rows,
                               vector_transpose<RegularStore, StreamingStore>, fence};

}  // namespace kvferry::internal::cpu
