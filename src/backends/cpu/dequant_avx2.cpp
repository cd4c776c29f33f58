// SPDX-License-Identifier: Apache-2.0
//
// AVX2 dequantisation. No table: a gather costs a load a value, this arithmetic 12 operations for eight.
#include <immintrin.h>

#include <cstring>

#include "backends/cpu/dequant.hpp"

#define KVFERRY_AVX2 __attribute__((target("avx2")))

namespace kvferry::internal::cpu {
namespace {

// Eight codes in 32 bits each to float32. The mantissa moves to its place and the exponent's bias from 7 to
// 127. Subnormal codes are read one exponent too high, with the hidden bit that they do not have, and lose it
// in a subtraction that is exact. NaN becomes all ones.
KVFERRY_AVX2 inline __m256 decode(__m256i code) {
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
  const __m256i subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), magnitude);
  const __m256i exponent = _mm256_sub_epi32(_mm256_set1_epi32(120 << 23), _mm256_slli_epi32(subnormal, 23));
  const __m256i shifted = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), exponent);
  const __m256 hidden = _mm256_and_ps(_mm256_castsi256_ps(subnormal), _mm256_set1_ps(0x1p-6F));
  const __m256 value = _mm256_sub_ps(_mm256_castsi256_ps(shifted), hidden);
  const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(code, 7), 31);
  const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
  return _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_or_si256(sign, nan)));
}

// To nearest even, in the low half of each 32 bits.
KVFERRY_AVX2 inline __m256i to_bfloat16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
}

KVFERRY_AVX2 void dequant_rows(std::byte* dst, std::int64_t dst_step, const std::byte* src,
                               std::int64_t src_step, std::int64_t count) {
  using Row = DequantRow;
  for (std::int64_t row = 0; row < count; ++row, dst += dst_step, src += src_step) {
    for (std::int64_t group = 0; group < Row::kValues; group += Row::kGroup) {
      float factor = 0;
      std::memcpy(&factor, src + Row::kScalesAt + group / Row::kGroup * 4, sizeof factor);
      const __m256 scale = _mm256_set1_ps(factor);
      for (std::int64_t i = group; i < group + Row::kGroup; i += 16) {
        const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i));
        const __m256i low = to_bfloat16(_mm256_mul_ps(decode(_mm256_cvtepu8_epi32(codes)), scale));
        const __m256i high =
            to_bfloat16(_mm256_mul_ps(decode(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(codes, codes))), scale));
        // Packing works in halves of 128 bits: the middle quarters change places.
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + 2 * i), packed);
      }
    }
    std::memcpy(dst + 2 * Row::kValues, src + Row::kRopeAt, Row::kRopeBytes);
  }
}

}  // namespace

DequantRows dequant_rows_avx2() noexcept {
  return dequant_rows;
}

}  // namespace kvferry::internal::cpu
