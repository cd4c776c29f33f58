// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one instruction set, all that operators need of it. A new kind of kernel is a member here
// and an entry in each kernels_<architecture>.cpp; a set without one of its own takes the generic one.
#pragma once

#include <span>
#include <string>

#include "backends/cpu/copy.hpp"
#include "backends/cpu/dequant.hpp"
#include "backends/cpu/ids.hpp"

namespace kvferry::internal::cpu {

struct CpuKernels {
  const CopyKernels& copy;
  DequantRows dequant_rows;
  const IdKernels& ids;
};

struct InstructionSet {
  const char* name;           // of the implementation: "avx2"
  std::string (*why_not)();   // empty: this CPU and its operating system can run it
  const CpuKernels& kernels;  // REQUIRES why_not().empty() to be used
};

// Those of this build, best first; the last is "generic" and can always run. Which ones they are is decided
// by the source file that the build takes: kernels_x86_64.cpp or kernels_other.cpp.
std::span<const InstructionSet> instruction_sets() noexcept;
// No build has more.
inline constexpr std::size_t kMostInstructionSets = 3;

std::string why_not_generic();
extern const CpuKernels kGenericKernels;

}  // namespace kvferry::internal::cpu
