// SPDX-License-Identifier: Apache-2.0
//
// In the place of the CUDA runtime: what cuda_queue.cpp calls of it, with the rules that the documentation
// has for each call. It keeps a record of the calls that do something, with the device that was current.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvferry::fake {

struct Stream {
  int device = 0;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
};

struct Copy {
  void* dst;
  const void* src;
  std::size_t bytes;
};

struct Machine {
  int driver = 13000;  // 0: none
  int devices = 2;

  std::map<std::string, cudaError_t> fails;  // by the function's name: what it returns from now on
  std::map<const void*, cudaPointerAttributes> pointers;

  std::vector<int> current;  // the calling thread's stack of contexts, by device
  cudaError_t last_error = cudaSuccess;
  std::map<int, int> retained;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  std::map<void*, std::size_t> device_memory, host_memory;

  std::vector<std::string> calls;    // "launch PagedGather on 1"
  std::vector<const void*> streams;  // of launches and copies
  std::vector<Copy> copies;
  std::vector<std::size_t> batches;  // copies in each

  // Calls since the last take.
  std::vector<std::string> take();
};

// Of this process.
Machine& machine();

}  // namespace kvferry::fake
