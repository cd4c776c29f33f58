// SPDX-License-Identifier: Apache-2.0
//
// Where the work of a context goes that is not for this CPU. What is declared here is defined twice: by the
// CUDA backend (cuda_queue.cpp), and for a build without nvcc (queue_absent.cpp).
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kvferry/context.hpp"
#include "kvferry/status.hpp"

namespace kvferry::internal {

class DeviceQueue {
 public:
  DeviceQueue() = default;
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;
  virtual ~DeviceQueue() = default;

  // kUnavailable in a child of the process that opened the queue: CUDA does not survive fork(), its calls
  // fail or hang there.
  Status check_process() const {
    if (process_ == getpid()) return {};
    return {StatusCode::kUnavailable,
            "the context was made before fork(), which CUDA does not survive: expected a process that is "
            "started anew (spawn, exec), or a fork before CUDA's first use"};
  }

  // Device memory for the one-call forms: the same until more is asked for. Calls on one queue follow each
  // other on its stream, so they may share it. One thread at a time.
  virtual Result<void*> workspace(std::int64_t bytes) = 0;

  // Device memory for the caller to keep, in stream order zero or a copy of `from`. Freed with its last
  // owner, whatever thread that is, once the device is done with it. REQUIRES bytes > 0.
  virtual Result<std::shared_ptr<void>> memory(std::int64_t bytes, const void* from) = 0;

  // Until the work on the stream is done. What went wrong in it is the Status, as CUDA tells it.
  virtual Status wait() = 0;

 private:
  const pid_t process_ = getpid();
};

// The CUDA backend's, or why there is none: this build or this machine has no CUDA, no such device.
Result<std::shared_ptr<DeviceQueue>> open_cuda_queue(const ContextOptions& options);

// "cuda:0 NVIDIA H200 (sm_90, 132 SMs)", more devices behind "; ". Or why there is none, without a prefix.
Result<std::string> describe_cuda();

// Host memory that is pinned, portable and mapped. Freed with its last owner.
struct PinnedMemory {
  std::shared_ptr<void> host;
  void* device = nullptr;  // its address there
};
// REQUIRES bytes > 0.
Result<PinnedMemory> allocate_pinned(std::int64_t bytes, std::int32_t index);

}  // namespace kvferry::internal
