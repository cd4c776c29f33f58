// SPDX-License-Identifier: Apache-2.0
//
// The definition of gather_dequant: the rows of the gather's oracle, and the arithmetic on real numbers,
// which a double holds exactly before each of the two roundings. Nothing of the library is used here.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "harness/array.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_oracle.hpp"

namespace kvferry::harness {

// A float of any format from its fields.
inline double from_fields(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const auto mantissa = static_cast<double>(bits & ((1U << mantissa_bits) - 1));
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1U << exponent_bits) - 1));
  const double sign = (bits >> (exponent_bits + mantissa_bits) & 1U) != 0 ? -1.0 : 1.0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + std::ldexp(1.0, mantissa_bits), exponent - bias - mantissa_bits);
}

inline double e4m3fn_value(std::uint8_t code) {
  const bool nan = (code & 0x7f) == 0x7f;  // the only codes that are no numbers
  return nan ? std::numeric_limits<double>::quiet_NaN() : from_fields(code, 4, 3);
}

inline double float32_value(std::uint32_t bits) {
  if ((bits & 0x7f800000U) != 0x7f800000U) return from_fields(bits, 8, 23);
  if ((bits & 0x007fffffU) != 0) return std::numeric_limits<double>::quiet_NaN();
  return (bits >> 31) != 0 ? -std::numeric_limits<double>::infinity()
                           : std::numeric_limits<double>::infinity();
}

// The nearest number of `digits` binary digits with the exponents of float32, ties to even.
inline double round_to(double value, int digits) {
  if (!std::isfinite(value) || value == 0) return value;
  int exponent = 0;
  (void)std::frexp(value, &exponent);                  // |value| in [2^(exponent-1), 2^exponent)
  const int unit = std::max(exponent, -125) - digits;  // below 2^-126 the steps stay as they are
  const double steps = std::ldexp(std::fabs(value), -unit);
  double whole = std::floor(steps);
  const double rest = steps - whole;
  if (rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) != 0)) whole += 1;
  const double rounded = std::ldexp(whole, unit);
  const double magnitude = rounded >= 0x1p128 ? std::numeric_limits<double>::infinity() : rounded;
  return std::copysign(magnitude, value);
}

// Of a number that bfloat16 has.
inline std::uint16_t bfloat16_bits(double value) {
  if (std::isnan(value)) return 0x7fc0;
  const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | 0x7f80U);
  if (value == 0) return static_cast<std::uint16_t>(sign);
  int exponent = 0;
  (void)std::frexp(value, &exponent);
  const int field = std::max(exponent + 126, 0);  // 0: subnormal
  const auto mantissa =
      static_cast<std::uint32_t>(std::ldexp(std::fabs(value), field == 0 ? 133 : 8 - exponent));
  return static_cast<std::uint16_t>(sign | (static_cast<std::uint32_t>(field) << 7) | (mantissa & 0x7fU));
}

inline std::uint16_t dequantised(std::uint8_t code, std::uint32_t scale) {
  return bfloat16_bits(round_to(round_to(e4m3fn_value(code) * float32_value(scale), 24), 8));
}

// A row of 656 bytes to one of 576 values of bfloat16.
inline void dequantise_row(const Array& cache, const Array& out, std::int64_t id, std::int64_t slot,
                           std::int64_t row) {
  const auto byte = [&](std::int64_t i) { return std::to_integer<std::uint32_t>(*cache.at({id, slot, i})); };
  for (std::int64_t j = 0; j < 576; ++j) {
    std::uint16_t value = 0;
    if (j < 512) {
      std::uint32_t scale = 0;
      for (std::int64_t i = 4; i-- > 0;) scale = scale << 8 | byte(512 + j / 128 * 4 + i);
      value = dequantised(static_cast<std::uint8_t>(byte(j)), scale);
    } else {
      value = static_cast<std::uint16_t>(byte(528 + 2 * (j - 512)) | byte(529 + 2 * (j - 512)) << 8);
    }
    const std::uint8_t bytes[2] = {static_cast<std::uint8_t>(value & 0xff),
                                   static_cast<std::uint8_t>(value >> 8)};
    std::memcpy(out.at({row, j}), bytes, 2);
  }
}

// The gather's oracle over one cache whose tokens are converted. The second pair is empty.
inline GatherOracle gather_dequant_oracle(const Array& cache, const Array& out) {
  GatherOracle oracle;
  oracle.key_cache = cache;
  oracle.key = out;
  oracle.value_cache = oracle.value = {nullptr, 1, {0, 0}, {1, 1}};
  oracle.convert = dequantise_row;
  return oracle;
}

}  // namespace kvferry::harness
