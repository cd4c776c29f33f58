// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "kvferry/ops/swap_blocks.hpp"
#include "ops/block_copy.hpp"

namespace kvferry::internal {

struct SwapBlocksPlan final : BlockCopyPlan {
  using ImplType = Impl<SwapBlocksPlan, SwapBlocksBuffers>;

  SwapBlocksPlan() : BlockCopyPlan(Operator::kSwapBlocks) {}
  Status check(const SwapBlocksBuffers& buffers) const;

  const ImplType* impl = nullptr;
};

// Implementations in order of preference.
std::span<const SwapBlocksPlan::ImplType> swap_blocks_cpu();
std::span<const SwapBlocksPlan::ImplType> swap_blocks_cuda();

}  // namespace kvferry::internal
