// SPDX-License-Identifier: Apache-2.0
//
// A device with its streams: this machine's CPU, or one of its GPUs.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "acl/acl_base.h"
#include "acl_backend.hpp"
#include "acl_handles.hpp"

namespace kvferry::acl {

class Device {
 public:
  explicit Device(std::int32_t id) : id_(id) {}

  std::int32_t id() const noexcept { return id_; }
  Handles<Stream> streams;

  // For plan(); made at the first use. Streams run plans in contexts of their own.
  const Context& planning_context();
  // Of a null handle: the default stream, which exists from its first use on. Null if there is none.
  std::shared_ptr<Stream> find_stream(aclrtStream handle);
  // Those that exist, the default one included.
  std::vector<std::shared_ptr<Stream>> all_streams();
  // Waits for all streams and destroys them.
  void reset();

 private:
  const std::int32_t id_;
  std::mutex mutex_;
  std::shared_ptr<Stream> default_;
  std::unique_ptr<const Context> planning_;
};

// Never destroyed: threads of the caller may outlive main(). REQUIRES a number that the backend has.
Device& device(std::int32_t id);
// Of the calling thread: device 0 until it uses another.
Device& device();
Status use_device(std::int32_t id);

// "NAME: no such stream"
std::string no_such(const char* function, const char* kind, const void* handle);

}  // namespace kvferry::acl
