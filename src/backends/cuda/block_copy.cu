// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/block_copy.hpp"
#include "backends/cuda/launch.cuh"

namespace kvferry::internal::cuda {

template cudaError_t launch<BlockCopy>(const BlockCopy::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<BlockCopyGiven>(const BlockCopyGiven::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<BlockReport>(const BlockReport::Params&, std::uint32_t, cudaStream_t);

}  // namespace kvferry::internal::cuda
