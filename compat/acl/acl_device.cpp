// SPDX-License-Identifier: Apache-2.0
#include "acl_device.hpp"

#include <fmt/format.h>

#include <map>

namespace kvferry::acl {
namespace {

thread_local std::int32_t current_device = 0;

}  // namespace

const Context& Device::planning_context() {
  const std::lock_guard lock(mutex_);
  if (planning_ == nullptr) planning_ = std::make_unique<const Context>(backend().make_context(id_));
  return *planning_;
}

std::shared_ptr<Stream> Device::find_stream(aclrtStream handle) {
  if (handle != nullptr) return streams.find(handle);
  const std::lock_guard lock(mutex_);
  if (default_ == nullptr) {
    auto made = backend().make_default_stream(id_);
    if (made.ok()) default_ = std::move(made).value();
  }
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

Device& device(std::int32_t id) {
  static auto& mutex = *new std::mutex;
  static auto& devices = *new std::map<std::int32_t, Device>;
  const std::lock_guard lock(mutex);
  return devices.try_emplace(id, id).first->second;
}

Device& device() {
  thread_local Device* current = nullptr;
  if (current == nullptr || current->id() != current_device) current = &device(current_device);
  return *current;
}

Status use_device(std::int32_t id) {
  Status status = backend().use_device(id);
  if (status.ok()) current_device = id;
  return status;
}

std::string no_such(const char* function, const char* kind, const void* handle) {
  return fmt::format("{}: {} {} does not exist: it was destroyed, or is something else", function, kind,
                     handle);
}

}  // namespace kvferry::acl
