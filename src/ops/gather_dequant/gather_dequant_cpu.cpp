// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cfenv>
#include <cstring>

#include "backends/cpu/move.hpp"
#include "backends/cpu/parallel_for.hpp"
#include "ops/cpu_implementations.hpp"
#include "ops/gather_dequant/gather_dequant_plan.hpp"

namespace kvferry::internal {
namespace {

using PlanT = GatherDequantPlan;
using Buffers = GatherDequantBuffers;
using Row = cpu::DequantRow;

// The calling thread may round differently or flush subnormals to zero, as engines like to.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() noexcept {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&callers_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t callers_;
};

// Output rows: dense ones are written in place, others by the element.
void convert(const PlanT& plan, cpu::DequantRows rows, const std::byte* src, std::byte* dst,
             std::int64_t tokens, bool nontemporal) {
  if (plan.element_step == 2) return rows(dst, plan.row_step, src, plan.slot_step, tokens, nontemporal);
  for (; tokens > 0; --tokens, src += plan.slot_step, dst += plan.row_step) {
    std::array<std::byte, Row::kOutBytes> dense;
    rows(dense.data(), 0, src, 0, 1, false);
    for (std::int64_t j = 0; j < Row::kOutBytes / 2; ++j)
      std::memcpy(dst + j * plan.element_step, dense.data() + 2 * j, 2);
  }
}

void zero(const PlanT& plan, std::byte* dst, std::int64_t tokens) {
  for (; tokens > 0; --tokens, dst += plan.row_step) {
    if (plan.element_step == 2) {
      std::memset(dst, 0, Row::kOutBytes);
      continue;
    }
    for (std::int64_t j = 0; j < Row::kOutBytes / 2; ++j) std::memset(dst + j * plan.element_step, 0, 2);
  }
}

Status run(const PlanT& plan, const Buffers& buffers, ContextState& context, const cpu::CpuKernels& kernels) {
  if (plan.nothing_to_do()) return {};
  const std::span sequences(aligned<GatherSequence>(buffers.workspace),
                            static_cast<std::size_t>(plan.reads.batches));
  std::int64_t all = 0;
  if (Status status = resolve_reads(plan.reads, {buffers.block_tables, buffers.seq_lens, buffers.seq_offset},
                                    plan.op, buffers.error_record, sequences, all);
      !status.ok()) {
    return status;
  }
  const std::byte* cache = static_cast<const std::byte*>(buffers.cache) + plan.cache_base;
  std::byte* out = static_cast<std::byte*>(buffers.out) + plan.out_base;
  const cpu::Split split = cpu::split(all, Row::kOutBytes, context.threads);
  const bool nontemporal = cpu::use_nontemporal(split.bytes, context.options.streaming);
  cpu::parallel_for(context, split.claims, [&](std::int64_t claim) {
    const DefaultFloatEnvironment environment;
    const std::int64_t begin = claim * split.units_per_claim;
    for_each_run(plan.reads, buffers.block_tables, sequences, begin,
                 std::min(begin + split.units_per_claim, all),
                 [&](std::int64_t id, std::int64_t slot, std::int64_t row, std::int64_t tokens) {
                   std::byte* dst = out + row * plan.row_step;
                   if (id >= 0 && id < plan.blocks) {
                     convert(plan, kernels.dequant_rows, cache + id * plan.block_step + slot * plan.slot_step,
                             dst, tokens, nontemporal);
                   } else {
                     zero(plan, dst, tokens);
                   }
                 });
    if (nontemporal) kernels.copy.fence();  // its stores are visible before the claim counts as done
  });
  return {};
}

}  // namespace

std::span<const GatherDequantPlan::ImplType> gather_dequant_cpu() {
  return cpu_implementations<PlanT, Buffers, run>();
}

}  // namespace kvferry::internal
