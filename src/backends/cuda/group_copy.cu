// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/group_copy.hpp"
#include "backends/cuda/launch.cuh"

namespace kvferry::internal::cuda {

template cudaError_t launch<GroupCopy>(const GroupCopy::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<GroupSums>(const GroupSums::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<GroupCopySized>(const GroupCopySized::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<GroupCopyGiven>(const GroupCopyGiven::Params&, std::uint32_t, cudaStream_t);

}  // namespace kvferry::internal::cuda
