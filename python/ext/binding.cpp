// SPDX-License-Identifier: Apache-2.0
#include "binding.hpp"

namespace kvferry::python {

Workspace thread_workspace(std::int64_t bytes) {
  // Not zeroed, and never shrinks.
  thread_local std::unique_ptr<std::byte[]> memory;
  thread_local std::int64_t size = 0;
  if (bytes > size) {
    memory.reset();
    size = 0;
    memory.reset(new std::byte[static_cast<std::size_t>(bytes)]);
    size = bytes;
  }
  return {memory.get(), bytes};
}

}  // namespace kvferry::python
