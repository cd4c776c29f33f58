// SPDX-License-Identifier: Apache-2.0
//
// AVX-512 dequantisation: the arithmetic of dequant_avx2.cpp for 32 values, with masks where that blends.
#include <immintrin.h>

#include <cstring>

#include "backends/cpu/dequant.hpp"

#define KVFERRY_AVX512 __attribute__((target("avx512f,avx512bw")))

namespace kvferry::internal::cpu {
namespace {

// Codes to bfloat16, which has room for all of them.
KVFERRY_AVX512 inline __m512i decode(__m256i codes) {
  const __m512i code = _mm512_cvtepu8_epi16(codes);
  const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi16(0x7f));
  const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
  // 0 to 7 times 2^-9.
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  const __mmask32 is_subnormal = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
  const __m512i value = _mm512_mask_permutexvar_epi16(normal, is_subnormal, magnitude, table);
  const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f));
  const __m512i number = _mm512_mask_mov_epi16(value, is_nan, _mm512_set1_epi16(-1));
  // The sign of the code's byte, in the word's: number | (code << 8 & 0x8000).
  return _mm512_ternarylogic_epi32(number, _mm512_slli_epi16(code, 8), _mm512_set1_epi16(-0x8000), 0xf8);
}

// To nearest even, in the high half of each 32 bits.
KVFERRY_AVX512 inline __m512i round(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_mask_sub_epi32(up, odd, up, _mm512_set1_epi32(-1));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
}

KVFERRY_AVX512 inline __m512i multiply(__m512i bfloat16, __m512 scale) {
  // Even and odd values apart: each is the high half of a float32.
  const __m512i even = _mm512_slli_epi32(bfloat16, 16);
  const __m512i odd = _mm512_and_si512(bfloat16, _mm512_set1_epi32(-0x10000));
  const __m512i low = round(_mm512_mul_ps(_mm512_castsi512_ps(even), scale));
  const __m512i high = round(_mm512_mul_ps(_mm512_castsi512_ps(odd), scale));
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(low, 16), high);
}

template <bool kStreams>
KVFERRY_AVX512 inline void store(std::byte* dst, __m512i value) {
  auto* const to = reinterpret_cast<__m512i*>(dst);
  kStreams ? _mm512_stream_si512(to, value) : _mm512_storeu_si512(to, value);
}

template <bool kStreams>
KVFERRY_AVX512 void dequant_rows(std::byte* dst, std::int64_t dst_step, const std::byte* src,
                                 std::int64_t src_step, std::int64_t count) {
  using Row = DequantRow;
  for (std::int64_t row = 0; row < count; ++row, dst += dst_step, src += src_step) {
    for (std::int64_t group = 0; group < Row::kValues; group += Row::kGroup) {
      float factor = 0;
      std::memcpy(&factor, src + Row::kScalesAt + group / Row::kGroup * 4, sizeof factor);
      const __m512 scale = _mm512_set1_ps(factor);
      for (std::int64_t i = group; i < group + Row::kGroup; i += 32) {
        const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i));
        store<kStreams>(dst + 2 * i, multiply(decode(codes), scale));
      }
    }
    for (std::int64_t i = 0; i < Row::kRopeBytes; i += 64)
      store<kStreams>(dst + 2 * Row::kValues + i, _mm512_loadu_si512(src + Row::kRopeAt + i));
  }
}

}  // namespace

void dequant_rows_avx512(std::byte* dst, std::int64_t dst_step, const std::byte* src, std::int64_t src_step,
                         std::int64_t count, bool nontemporal) {
  if (nontemporal && whole_lines(dst, dst_step))
    return dequant_rows<true>(dst, dst_step, src, src_step, count);
  dequant_rows<false>(dst, dst_step, src, src_step, count);
}

}  // namespace kvferry::internal::cpu
