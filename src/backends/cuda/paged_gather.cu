// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/launch.cuh"
#include "backends/cuda/launchers.cuh"

namespace kvferry::internal::cuda {

cudaError_t launch_paged_gather(const PagedGather::Params& params, std::uint32_t blocks,
                                cudaStream_t stream) {
  return launch<PagedGather>(params, blocks, stream);
}

}  // namespace kvferry::internal::cuda
