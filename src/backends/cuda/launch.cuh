// SPDX-License-Identifier: Apache-2.0
//
// The way of every kernel to the GPU.
#pragma once

#include "backends/cuda/device_context.cuh"
#include "backends/cuda/launcher.cuh"

namespace kvferry::internal::cuda {

template <class K>
__global__ void __launch_bounds__(K::kThreads, K::kMinBlocks)
    entry(const __grid_constant__ typename K::Params params) {
  __shared__ typename K::template Shared<DeviceContext> shared;
  DeviceContext x;
  K::run(x, shared, params);
}

// More shared memory than a kernel may have without asking.
template <class K>
__global__ void __launch_bounds__(K::kThreads, K::kMinBlocks)
    entry_dynamic(const __grid_constant__ typename K::Params params) {
  extern __shared__ __align__(128) unsigned char shared[];
  DeviceContext x;
  K::run(x, *reinterpret_cast<typename K::template Shared<DeviceContext>*>(shared), params);
}

template <class K>
cudaError_t launch(const typename K::Params& params, std::uint32_t blocks, cudaStream_t stream) {
  constexpr std::size_t kShared = sizeof(typename K::template Shared<DeviceContext>);
  constexpr bool kDynamic = kShared > 48 * 1024;
  const void* function = nullptr;
  if constexpr (kDynamic) {
    function = reinterpret_cast<const void*>(&entry_dynamic<K>);
    // At each launch: it holds for the current device only, and costs less than remembering which have it.
    const cudaError_t error =
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (error != cudaSuccess) {
      cudaGetLastError();
      return error;
    }
  } else {
    function = reinterpret_cast<const void*>(&entry<K>);
  }
  if (blocks == 0) {
    cudaFuncAttributes loaded;
    const cudaError_t error = cudaFuncGetAttributes(&loaded, function);
    if (error != cudaSuccess) cudaGetLastError();
    return error;
  }
  void* arguments[] = {const_cast<typename K::Params*>(&params)};
  const cudaError_t error =
      cudaLaunchKernel(function, dim3(blocks), dim3(K::kThreads), arguments, kDynamic ? kShared : 0, stream);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

}  // namespace kvferry::internal::cuda
