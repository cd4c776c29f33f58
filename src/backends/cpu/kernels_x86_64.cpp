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

constexpr CpuKernels kAvx2Kernels = {kAvx2Copy, dequant_rows_avx2};

}  // namespace

std::span<const InstructionSet> instruction_sets() noexcept {
  static constexpr InstructionSet kSets[] = {
      {"avx2", why_not_avx2, kAvx2Kernels},
      {"generic", why_not_generic, kGenericKernels},
  };
  static_assert(std::size(kSets) <= kMostInstructionSets);
  return kSets;
}

}  // namespace kvferry::internal::cpu
