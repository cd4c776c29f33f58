// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "kvferry/ops/copy_blocks.hpp"
#include "ops/block_copy.hpp"

namespace kvferry::internal {

struct CopyBlocksPlan final : BlockCopyPlan {
  using ImplType = Impl<CopyBlocksPlan, CopyBlocksBuffers>;

  CopyBlocksPlan() : BlockCopyPlan(Operator::kCopyBlocks) {}
  Status check(const CopyBlocksBuffers& buffers) const;

  const ImplType* impl = nullptr;
};

// Implementations in order of preference.
std::span<const CopyBlocksPlan::ImplType> copy_blocks_cpu();
std::span<const CopyBlocksPlan::ImplType> copy_blocks_cuda();

}  // namespace kvferry::internal
