// SPDX-License-Identifier: Apache-2.0
#include "acl_device.hpp"

#include <fmt/format.h>

namespace kvferry::acl {

std::shared_ptr<Stream> Device::find_stream(aclrtStream handle) {
  if (handle != nullptr) return streams.find(handle);
  const std::lock_guard lock(mutex_);
  if (default_ == nullptr) default_ = std::make_shared<Stream>();
  return default_;
}

std::vector<std::shared_ptr<Stream>> Device::all_streams() {
  std::vector<std::shared_ptr<Stream>> all = streams.all();
  const std::lock_guard lock(mutex_);
  if (default_ != nullptr) all.push_back(default_);
  return all;
}

void Device::reset() {
  const auto destroyed = streams.take_all();
  std::shared_ptr<Stream> destroyed_default;
  {
    const std::lock_guard lock(mutex_);
    destroyed_default.swap(default_);
  }
  // Not left to the destructors: a thread in aclrtSynchronizeDevice may have the last reference.
  for (const auto& [serial, stream] : destroyed) static_cast<void>(stream->wait());
  if (destroyed_default != nullptr) static_cast<void>(destroyed_default->wait());
}

Device& device() {
  static auto& the_device = *new Device;
  return the_device;
}

std::string no_such(const char* function, const char* kind, const void* handle) {
  return fmt::format("{}: {} {} does not exist: it was destroyed, or is something else", function, kind,
                     handle);
}

}  // namespace kvferry::acl
