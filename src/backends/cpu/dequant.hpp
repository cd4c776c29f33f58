// SPDX-License-Identifier: Apache-2.0
//
// Dequantisation kernels, one for each instruction set. REQUIRES the default floating-point environment:
// round to nearest, subnormals kept.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvferry::internal::cpu {

// The row of gather_dequant: 512 float8_e4m3fn, 4 float32 scales, 64 bfloat16.
struct DequantRow {
  static constexpr std::int64_t kValues = 512;
  static constexpr std::int64_t kGroup = 128;  // values of one scale
  static constexpr std::int64_t kScalesAt = kValues;
  static constexpr std::int64_t kRopeAt = kScalesAt + kValues / kGroup * 4;
  static constexpr std::int64_t kRopeBytes = 128;
  static constexpr std::int64_t kBytes = kRopeAt + kRopeBytes;
  static constexpr std::int64_t kOutBytes = 2 * kValues + kRopeBytes;
};
static_assert(DequantRow::kBytes == 656 && DequantRow::kOutBytes == 1152);

// `count` rows at fixed steps to dense rows of bfloat16, any alignment. With `nontemporal` the caller calls
// CopyKernels::fence() of the same set before it publishes the result.
using DequantRows = void (*)(std::byte* dst, std::int64_t dst_step, const std::byte* src,
                             std::int64_t src_step, std::int64_t count, bool nontemporal);

// True if these rows can be streamed. Streaming stores REQUIRE the alignment of their vector, up to 64 bytes;
// and a line that two rows share could not be combined.
//
// The time of regular stores over that of streaming ones, one thread, output that is not read after (Zen 4):
// AVX2 256 KiB 1.07, 1 MiB 1.10, 8 MiB 1.14, 31 MiB 1.18, 64 MiB 1.18; AVX-512 1.07, 1.10, 1.15, 1.16, 1.22.
inline bool whole_lines(const std::byte* dst, std::int64_t dst_step) {
  return (reinterpret_cast<std::uintptr_t>(dst) | static_cast<std::uintptr_t>(dst_step)) % 64 == 0;
}
static_assert(DequantRow::kOutBytes % 64 == 0);

void dequant_rows_generic(std::byte* dst, std::int64_t dst_step, const std::byte* src, std::int64_t src_step,
                          std::int64_t count, bool nontemporal);
// dequant_avx2.cpp and dequant_avx512.cpp, on x86-64 only.
void dequant_rows_avx2(std::byte* dst, std::int64_t dst_step, const std::byte* src, std::int64_t src_step,
                       std::int64_t count, bool nontemporal);
void dequant_rows_avx512(std::byte* dst, std::int64_t dst_step, const std::byte* src, std::int64_t src_step,
                         std::int64_t count, bool nontemporal);

}  // namespace kvferry::internal::cpu
