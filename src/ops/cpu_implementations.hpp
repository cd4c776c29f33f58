// SPDX-License-Identifier: Apache-2.0
//
// The CPU's table of implementations, the same for every operator: an operator is written once against
// CopyKernels, a row picks the kernels.
#pragma once

#include <string>

#include "backends/cpu/copy.hpp"
#include "backends/cpu/features.hpp"
#include "core/impl.hpp"

namespace kvferry::internal {

template <class PlanT, class Buffers,
          Status (*Run)(const PlanT&, const Buffers&, ContextState&, const cpu::CopyKernels&)>
inline constexpr Impl<PlanT, Buffers> kCpuImplementations[] = {
    {"avx2", [](const PlanT&) { return cpu::why_no_avx2(); },
     [](const PlanT& p, const Buffers& b, ContextState& c) { return Run(p, b, c, *cpu::avx2_copy()); }},
    {"generic", [](const PlanT&) { return std::string(); },
     [](const PlanT& p, const Buffers& b, ContextState& c) { return Run(p, b, c, cpu::kGenericCopy); }},
};

}  // namespace kvferry::internal
