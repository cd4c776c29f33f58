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

SharedWorkspace::SharedWorkspace(std::int64_t size, Intake& intake) : memory(intake.device_memory(size)) {
  if (memory != nullptr || size == 0) return;
  // Of a context of its own: nobody else may use it between the two calls.
  const auto owner = std::make_shared<Context>(intake.context().context.options());
  Result<void*> bytes = device_workspace(*owner, size);
  raise_unless_ok(bytes.status());
  memory = {owner, bytes.value()};
}

}  // namespace kvferry::python
