// SPDX-License-Identifier: Apache-2.0
//
// The instruction sets of x86-64.
#include "backends/cpu/kernels.hpp"

namespace kvferry::internal::cpu {
namespace {

// __builtin_cpu_supports also asks whether the operating system saves the registers.
std::string why_not_avx2() {
  return __builtin_cpu_supports("avx2") ? std::string() : "this CPU has no AVX2";
}

std::string why_not_avx512() {
  const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return has ? std::string() : "this CPU has no AVX-512 (F, BW, VL, DQ)";
}

constexpr CpuKernels kAvx2Kernels = {kAvx2Copy, dequant_rows_avx2, kGenericIds};
// Copies with 64-byte vectors gain nothing (Zen 4, GB/s, AVX2 / AVX-512): random pieces of 128 B 13.1 / 12.5,
// 1 KiB 11.8 / 12.2, 8 KiB 14.0 / 14.1, 32 KiB 15.3 / 15.9, 256 KiB 18.9 / 18.7, contiguous 20.9 / 19.5;
// regular stores 32 KiB 12.5 / 11.6, in L1 62 / 64; FRACTAL_NZ gather 17.1 / 16.8, scatter b16 14.1 / 13.5.
constexpr CpuKernels kAvx512Kernels = {kAvx2Copy, dequant_rows_avx512, kAvx512Ids};

}  // namespace

std::span<const InstructionSet> instruction_sets() noexcept {
  static constexpr InstructionSet kSets[] = {
      {"avx512", why_not_avx512, kAvx512Kernels},
      {"avx2", why_not_avx2, kAvx2Kernels},
      {"generic", why_not_generic, kGenericKernels},
  };
  static_assert(std::size(kSets) <= kMostInstructionSets);
  return kSets;
}

}  // namespace kvferry::internal::cpu
