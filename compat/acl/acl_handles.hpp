// SPDX-License-Identifier: Apache-2.0
//
// Handles: objects by serial number. A number is used once in the life of the process, whatever the kind: a
// handle that was destroyed, or is one of another kind, is found in no table, and never leads to freed
// memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvferry::acl {

inline std::uint64_t next_serial() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

inline std::uint64_t to_serial(const void* handle) noexcept {
  return reinterpret_cast<std::uintptr_t>(handle);
}
template <class Handle = void>
Handle* to_handle(std::uint64_t serial) noexcept {
  return reinterpret_cast<Handle*>(static_cast<std::uintptr_t>(serial));
}

template <class T>
class Handles {
 public:
  void* add(std::shared_ptr<T> object) {
    const std::uint64_t serial = next_serial();
    const std::lock_guard lock(mutex_);
    objects_.emplace(serial, std::move(object));
    return to_handle(serial);
  }

  // Null if there is none.
  std::shared_ptr<T> find(const void* handle) const {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(to_serial(handle));
    return found == objects_.end() ? nullptr : found->second;
  }

  std::shared_ptr<T> take(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(to_serial(handle));
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  std::vector<std::shared_ptr<T>> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<T>> objects;
    for (const auto& [serial, object] : objects_) objects.push_back(object);
    return objects;
  }

  // Empties the table. What it held dies with the result.
  std::unordered_map<std::uint64_t, std::shared_ptr<T>> take_all() {
    const std::lock_guard lock(mutex_);
    return std::exchange(objects_, {});
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<T>> objects_;
};

}  // namespace kvferry::acl
