// SPDX-License-Identifier: Apache-2.0
//
// A build without nvcc.
#include <fmt/format.h>

#include "core/device_queue.hpp"

namespace kvferry::internal {
namespace {

constexpr const char* kReason = "this build has no CUDA backend (it was made without nvcc)";

Status absent(std::int32_t device) {
  return {StatusCode::kUnavailable, fmt::format("cuda:{}: {}", device, kReason)};
}

}  // namespace

Result<std::shared_ptr<DeviceQueue>> open_cuda_queue(const ContextOptions& options) {
  return absent(options.device.index);
}

Result<std::string> describe_cuda() {
  return Status(StatusCode::kUnavailable, kReason);
}

Result<PinnedMemory> allocate_pinned(std::int64_t /*bytes*/, std::int32_t index) {
  return absent(index);
}

}  // namespace kvferry::internal
