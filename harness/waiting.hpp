// SPDX-License-Identifier: Apache-2.0
//
// Whether a measurement was disturbed: on a shared machine, medians without this are wrong by 2 to 10 times.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace kvferry::harness {

// Nanoseconds that threads of this process have waited for a processor; 0 where the kernel does not tell.
inline std::int64_t nanoseconds_waited() {
  std::int64_t sum = 0;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(task.path() / "schedstat");
    std::int64_t ran = 0, waited = 0;
    if (file >> ran >> waited) sum += waited;
  }
  return sum;
}

}  // namespace kvferry::harness
