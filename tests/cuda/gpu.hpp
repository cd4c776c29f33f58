// SPDX-License-Identifier: Apache-2.0
//
// What the checks on a real GPU share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvferry::gpu {

class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw CudaError(std::string(what) + ": " + cudaGetErrorString(error));
}

// Bytes of the device.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::int64_t bytes) {
    require(cudaMalloc(&data_, static_cast<std::size_t>(bytes)), "cudaMalloc");
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// Gathers from and scatters to blocks above 4 GiB of a cache in device memory. Empty, or what was wrong.
// Throws CudaError.
std::string check_large_offsets(cudaStream_t stream);

}  // namespace kvferry::gpu
