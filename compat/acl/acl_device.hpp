// SPDX-License-Identifier: Apache-2.0
//
// The one device: this machine's CPU, with its streams.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "acl/acl_base.h"
#include "acl_handles.hpp"
#include "acl_stream.hpp"

namespace kvferry::acl {

inline constexpr std::int32_t kDevices = 1;  // device 0

class Device {
 public:
  Handles<Stream> streams;

  // Of a null handle: the default stream, which exists from its first use on. Null if there is none.
  std::shared_ptr<Stream> find_stream(aclrtStream handle);
  // Those that exist, the default one included.
  std::vector<std::shared_ptr<Stream>> all_streams();
  // Waits for all streams and destroys them.
  void reset();

 private:
  std::mutex mutex_;
  std::shared_ptr<Stream> default_;
};

// Never destroyed: threads of the caller may outlive main().
Device& device();

// "NAME: no such stream"
std::string no_such(const char* function, const char* kind, const void* handle);

}  // namespace kvferry::acl
