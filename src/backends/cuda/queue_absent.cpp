// SPDX-License-Identifier: Apache-2.0
//
// A build without nvcc.
#include "core/device_queue.hpp"

namespace kvferry::internal {

Result<std::shared_ptr<DeviceQueue>> open_cuda_queue(const ContextOptions& /*options*/) {
  return Status(StatusCode::kUnavailable, "cuda: this build has no CUDA backend (it was made without nvcc)");
}

}  // namespace kvferry::internal
