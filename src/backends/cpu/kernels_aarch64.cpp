// SPDX-License-Identifier: Apache-2.0
//
// The instruction sets of aarch64.
#include "backends/cpu/kernels.hpp"

namespace kvferry::internal::cpu {
namespace {

// Part of the architecture.
std::string why_not_neon() {
  return {};
}

constexpr CpuKernels kNeonKernels = {kNeonCopy, dequant_rows_generic, kGenericIds};

}  // namespace

std::span<const InstructionSet> instruction_sets() noexcept {
  static constexpr InstructionSet kSets[] = {
      {"neon", why_not_neon, kNeonKernels},
      {"generic", why_not_generic, kGenericKernels},
  };
  static_assert(std::size(kSets) <= kMostInstructionSets);
  return kSets;
}

}  // namespace kvferry::internal::cpu
