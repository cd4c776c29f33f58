// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu_implementations.hpp"
#include "ops/swap_blocks/swap_blocks_plan.hpp"

namespace kvferry::internal {
namespace {

Status run(const SwapBlocksPlan& plan, const SwapBlocksBuffers& b, ContextState& context,
           const cpu::CopyKernels& kernels) {
  return run_block_copy(plan, {b.src, b.dst, b.mapping, b.count, b.workspace, b.error_record}, context,
                        kernels);
}

}  // namespace

std::span<const SwapBlocksPlan::ImplType> swap_blocks_cpu() {
  return kCpuImplementations<SwapBlocksPlan, SwapBlocksBuffers, run>;
}

}  // namespace kvferry::internal
