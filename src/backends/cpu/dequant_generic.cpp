// SPDX-License-Identifier: Apache-2.0
//
// Plain C++ for every machine: a table of the 256 values, and a loop per group that compilers vectorise.
#include <array>
#include <bit>
#include <cstring>

#include "backends/cpu/dequant.hpp"

namespace kvferry::internal::cpu {
namespace {

// float8_e4m3fn: sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity, NaN is all ones.
constexpr float decode(unsigned code) {
  const unsigned sign = code >> 7, exponent = code >> 3 & 15U, mantissa = code & 7U;
  if ((code & 0x7fU) == 0x7fU) return std::bit_cast<float>(0x7fc00000U);
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) / 512.0F
                                        : std::bit_cast<float>((exponent + 120U) << 23 | mantissa << 20);
  return sign != 0 ? -magnitude : magnitude;
}

constexpr std::array<float, 256> make_table() {
  std::array<float, 256> table{};
  for (unsigned code = 0; code < table.size(); ++code) table[code] = decode(code);
  return table;
}
constexpr std::array<float, 256> kTable = make_table();

// To nearest even; the carry into the exponent makes infinity of what is too large.
std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(nan ? 0x7fc0U : rounded);
}

}  // namespace

void dequant_rows_generic(std::byte* dst, std::int64_t dst_step, const std::byte* src, std::int64_t src_step,
                          std::int64_t count, bool /*nontemporal*/) {
  using Row = DequantRow;
  for (std::int64_t row = 0; row < count; ++row, dst += dst_step, src += src_step) {
    for (std::int64_t group = 0; group < Row::kValues / Row::kGroup; ++group) {
      float scale = 0;
      std::memcpy(&scale, src + Row::kScalesAt + group * 4, sizeof scale);
      std::array<float, Row::kGroup> products;
      std::array<std::uint16_t, Row::kGroup> results;
      const std::byte* codes = src + group * Row::kGroup;
      for (std::size_t i = 0; i < products.size(); ++i)
        products[i] = kTable[std::to_integer<std::size_t>(codes[i])] * scale;
      for (std::size_t i = 0; i < results.size(); ++i) results[i] = to_bfloat16(products[i]);
      std::memcpy(dst + group * Row::kGroup * 2, results.data(), sizeof results);
    }
    std::memcpy(dst + 2 * Row::kValues, src + Row::kRopeAt, Row::kRopeBytes);
  }
}

}  // namespace kvferry::internal::cpu
