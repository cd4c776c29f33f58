// SPDX-License-Identifier: Apache-2.0
//
// What a kernel's .cu file instantiates, for those who launch it and are not compiled by nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvferry::internal::cuda {

// Kernel K on the caller's stream and current device. The error is the value alone: none stays behind for a
// later cudaGetLastError of the caller. No blocks: the kernel is loaded onto the device, which may wait for
// what runs there, and is not to happen at the first launch.
template <class K>
cudaError_t launch(const typename K::Params& params, std::uint32_t blocks, cudaStream_t stream);

}  // namespace kvferry::internal::cuda
