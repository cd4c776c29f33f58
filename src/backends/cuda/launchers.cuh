// SPDX-License-Identifier: Apache-2.0
//
// The kernels that the library launches, each compiled in a file of its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backends/cuda/paged_gather.hpp"

namespace kvferry::internal::cuda {

// On the caller's stream and current device. Nothing is left for cudaGetLastError.
cudaError_t launch_paged_gather(const PagedGather::Params& params, std::uint32_t blocks, cudaStream_t stream);

}  // namespace kvferry::internal::cuda
