// SPDX-License-Identifier: Apache-2.0
#include "ops/copy_blocks/copy_blocks_plan.hpp"
#include "ops/cpu_implementations.hpp"

namespace kvferry::internal {
namespace {

Status run(const CopyBlocksPlan& plan, const CopyBlocksBuffers& b, ContextState& context,
           const cpu::CpuKernels& kernels) {
  return run_block_copy(plan, {b.caches, b.caches, b.mapping, b.count, b.workspace, b.error_record}, context,
                        kernels.copy);
}

}  // namespace

std::span<const CopyBlocksPlan::ImplType> copy_blocks_cpu() {
  return cpu_implementations<CopyBlocksPlan, CopyBlocksBuffers, run>();
}

}  // namespace kvferry::internal
