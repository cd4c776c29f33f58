// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu_implementations.hpp"
#include "ops/swap_blocks/swap_blocks_plan.hpp"

namespace kvferry::internal {
namespace {

Status run(const SwapBlocksPlan& plan, const SwapBlocksBuffers& b, ContextState& context,
           const cpu::CpuKernels& kernels) {
  return run_block_copy(plan, {b.src, b.dst, b.mapping, b.count, b.workspace, b.error_record}, context,
                        kernels.copy);
}

}  // namespace

std::span<const SwapBlocksPlan::ImplType> swap_blocks_cpu() {
  return cpu_implementations<SwapBlocksPlan, SwapBlocksBuffers, run>();
}

}  // namespace kvferry::internal
