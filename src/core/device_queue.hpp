// SPDX-License-Identifier: Apache-2.0
//
// Where the work of a context goes that is not for this CPU.
#pragma once

#include <cstdint>
#include <memory>

#include "kvferry/context.hpp"
#include "kvferry/status.hpp"

namespace kvferry::internal {

struct DeviceQueue {
  DeviceQueue() = default;
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;
  virtual ~DeviceQueue() = default;

  // Device memory for the one-call forms: the same until more is asked for. Calls on one queue follow each
  // other on its stream, so they may share it.
  virtual Result<void*> workspace(std::int64_t bytes) = 0;
};

// The CUDA backend's, or why there is none: this build or this machine has no CUDA, no such device.
Result<std::shared_ptr<DeviceQueue>> open_cuda_queue(const ContextOptions& options);

}  // namespace kvferry::internal
