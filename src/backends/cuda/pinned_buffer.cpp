// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <new>
#include <string>

#include "core/device_queue.hpp"
#include "kvferry/memory.hpp"

namespace kvferry {

Result<PinnedBuffer> PinnedBuffer::make(std::int64_t bytes, Device device) noexcept {
  try {
    if (bytes < 0)
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("PinnedBuffer: bytes is {}, expected >= 0", bytes));
    if (device.type != DeviceType::kCuda)
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("PinnedBuffer: device is {}, expected cuda:N", to_string(device)));
    PinnedBuffer buffer;
    if (bytes == 0) return buffer;
    Result<internal::PinnedMemory> memory = internal::allocate_pinned(bytes, device.index);
    if (!memory.ok()) {
      const Status& status = memory.status();
      return Status(status.code(), fmt::format("PinnedBuffer: {}", status.message()));
    }
    buffer.memory_ = std::move(memory->host);
    buffer.device_data_ = memory->device;
    buffer.bytes_ = bytes;
    return buffer;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, std::string());
  }
}

}  // namespace kvferry
