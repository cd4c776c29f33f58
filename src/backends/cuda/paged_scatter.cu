// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/launch.cuh"
#include "backends/cuda/paged_scatter.hpp"

namespace kvferry::internal::cuda {

template cudaError_t launch<PagedScatter>(const PagedScatter::Params&, std::uint32_t, cudaStream_t);

}  // namespace kvferry::internal::cuda
