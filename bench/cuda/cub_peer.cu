// SPDX-License-Identifier: Apache-2.0
//
// The one place that sees CUB: what people use for many copies in one launch.
#include <cub/device/device_memcpy.cuh>

#include "bench/cuda/peers.hpp"

namespace kvferry::bench::gpu {

cudaError_t cub_batched_memcpy(void* temporary, std::size_t& temporary_bytes, const void* const* sources,
                               void* const* destinations, const std::int64_t* sizes, std::int64_t count,
                               cudaStream_t stream) {
  return cub::DeviceMemcpy::Batched(temporary, temporary_bytes, sources, destinations, sizes, count, stream);
}

}  // namespace kvferry::bench::gpu
