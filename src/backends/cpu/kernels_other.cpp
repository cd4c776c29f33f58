// SPDX-License-Identifier: Apache-2.0
//
// The instruction sets of an architecture that has no kernels of its own.
#include "backends/cpu/kernels.hpp"

namespace kvferry::internal::cpu {

std::span<const InstructionSet> instruction_sets() noexcept {
  static constexpr InstructionSet kSets[] = {{"generic", why_not_generic, kGenericKernels}};
  return kSets;
}

}  // namespace kvferry::internal::cpu
