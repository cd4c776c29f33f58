// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/launch.cuh"
#include "backends/cuda/paged_dequant.hpp"

namespace kvferry::internal::cuda {

template cudaError_t launch<PagedDequant>(const PagedDequant::Params&, std::uint32_t, cudaStream_t);

}  // namespace kvferry::internal::cuda
