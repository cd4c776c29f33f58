// SPDX-License-Identifier: Apache-2.0
//
// The CPU's table of implementations, the same for every operator: an operator is written once against
// CpuKernels, and each instruction set of the build is a row.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "backends/cpu/kernels.hpp"
#include "core/impl.hpp"

namespace kvferry::internal {

template <class PlanT, class Buffers,
          Status (*Run)(const PlanT&, const Buffers&, ContextState&, const cpu::CpuKernels&)>
std::span<const Impl<PlanT, Buffers>> cpu_implementations() {
  static const auto rows = []<std::size_t... I>(std::index_sequence<I...>) {
    const auto sets = cpu::instruction_sets();
    return std::array{
        Impl<PlanT, Buffers>{sets[std::min(I, sets.size() - 1)].name,
                             [](const PlanT&) { return cpu::instruction_sets()[I].why_not(); },
                             [](const PlanT& plan, const Buffers& buffers, ContextState& context) {
                               return Run(plan, buffers, context, cpu::instruction_sets()[I].kernels);
                             }}...};
  }
  (std::make_index_sequence<cpu::kMostInstructionSets>());
  return std::span(rows).first(cpu::instruction_sets().size());
}

}  // namespace kvferry::internal
