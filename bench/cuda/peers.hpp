// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvferry::bench::gpu {

// cub::DeviceMemcpy::Batched; tables in device memory. Without `temporary` it only says how much of that it
// wants.
cudaError_t cub_batched_memcpy(void* temporary, std::size_t& temporary_bytes, const void* const* sources,
                               void* const* destinations, const std::int64_t* sizes, std::int64_t count,
                               cudaStream_t stream);

}  // namespace kvferry::bench::gpu
