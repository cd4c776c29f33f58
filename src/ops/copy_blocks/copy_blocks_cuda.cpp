// SPDX-License-Identifier: Apache-2.0
#include "ops/copy_blocks/copy_blocks_plan.hpp"
#include "ops/cuda_implementation.hpp"

namespace kvferry::internal {
namespace {

std::string why_not(const CopyBlocksPlan& plan) {
  return plan.cuda.cannot;
}

Status run(const CopyBlocksPlan& plan, const CopyBlocksBuffers& b, cuda::Queue& queue) {
  return run_block_copy_cuda(plan, {b.caches, b.caches, b.mapping, b.count, b.workspace, b.error_record},
                             queue);
}

}  // namespace

std::span<const CopyBlocksPlan::ImplType> copy_blocks_cuda() {
  return cuda_implementation<CopyBlocksPlan, CopyBlocksBuffers, why_not, run>();
}

}  // namespace kvferry::internal
