// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda_implementation.hpp"
#include "ops/swap_blocks/swap_blocks_plan.hpp"

namespace kvferry::internal {
namespace {

std::string why_not(const SwapBlocksPlan& plan) {
  return plan.cuda.cannot;
}

Status run(const SwapBlocksPlan& plan, const SwapBlocksBuffers& b, cuda::Queue& queue) {
  return run_block_copy_cuda(plan, {b.src, b.dst, b.mapping, b.count, b.workspace, b.error_record}, queue);
}

}  // namespace

std::span<const SwapBlocksPlan::ImplType> swap_blocks_cuda() {
  return cuda_implementation<SwapBlocksPlan, SwapBlocksBuffers, why_not, run>();
}

}  // namespace kvferry::internal
