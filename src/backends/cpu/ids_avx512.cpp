// SPDX-License-Identifier: Apache-2.0
//
// AVX-512 id kernels: 16 ids a step, looked up by gathers, what is kept compressed in a register and stored
// whole (compressing stores are microcoded on Zen 4).
#include <immintrin.h>

#include "backends/cpu/ids.hpp"

#define KVFERRY_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

namespace kvferry::internal::cpu {
namespace {

constexpr std::int32_t kLanes = 16;

KVFERRY_AVX512 inline __mmask16 first_lanes(std::int32_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffff : (1U << count) - 1);
}
KVFERRY_AVX512 inline std::int32_t store_some(std::int32_t* p, __mmask16 lanes, __m512i values) {
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(lanes, values));
  return __builtin_popcount(lanes);
}

KVFERRY_AVX512 std::int32_t find(const IdTable<std::uint16_t>& table, const IdSearch& search,
                                 std::int32_t* index, std::int32_t* place) {
  const IdSearch s = search;
  const __m512i multiplier =
      _mm512_set1_epi32(static_cast<std::int32_t>(IdTable<std::uint16_t>::kMultiplier));
  const __m512i last_entry = _mm512_set1_epi32(static_cast<std::int32_t>(0xffffffffU >> table.shift()));
  const __m512i low_half = _mm512_set1_epi32(0xffff), one = _mm512_set1_epi32(1);
  const __m512i below = _mm512_set1_epi32(s.below), except = _mm512_set1_epi32(s.except);
  const __m128i shift = _mm_cvtsi32_si128(table.shift());
  __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  std::int32_t found = 0;
  for (std::int32_t i = 0; i < s.count; i += kLanes) {
    const __mmask16 there = first_lanes(s.count - i);
    const __m512i ids = _mm512_maskz_loadu_epi32(there, s.ids + i);
    __mmask16 open =
        _mm512_mask_cmplt_epi32_mask(_mm512_mask_cmpneq_epi32_mask(there, places, except), ids, below);
    __m512i at = _mm512_srl_epi32(_mm512_mullo_epi32(ids, multiplier), shift);
    __m512i indices = _mm512_setzero_si512();
    __mmask16 match = 0;
    while (open != 0) {
      const __m512i entries = _mm512_and_si512(
          _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), open, at, table.entries(), 2), low_half);
      open = _mm512_mask_test_epi32_mask(open, entries, entries);
      const __m512i keys = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), open, entries, s.keys - 1, 4);
      const __mmask16 equal = _mm512_mask_cmpeq_epi32_mask(open, keys, ids);
      indices = _mm512_mask_mov_epi32(indices, equal, entries);
      match |= equal;
      open = static_cast<__mmask16>(open & ~equal);
      at = _mm512_and_si512(_mm512_add_epi32(at, one), last_entry);
    }
    store_some(place + found, match, places);
    found += store_some(index + found, match, _mm512_sub_epi32(indices, one));
    places = _mm512_add_epi32(places, _mm512_set1_epi32(kLanes));
  }
  return found;
}

KVFERRY_AVX512 std::int32_t outside(const std::int32_t* values, std::int32_t count, std::int32_t limit,
                                    std::int32_t* places) {
  const __m512i bound = _mm512_set1_epi32(limit);
  __m512i at = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  std::int32_t found = 0;
  for (std::int32_t i = 0; i < count; i += kLanes) {
    const __mmask16 there = first_lanes(count - i);
    const __m512i v = _mm512_maskz_loadu_epi32(there, values + i);
    found += store_some(places + found, _mm512_mask_cmpge_epu32_mask(there, v, bound), at);
    at = _mm512_add_epi32(at, _mm512_set1_epi32(kLanes));
  }
  return found;
}

}  // namespace

const IdKernels kAvx512Ids = {find, outside};

}  // namespace kvferry::internal::cpu
