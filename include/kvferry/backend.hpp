// SPDX-License-Identifier: Apache-2.0
//
// What this build of KVFerry can run on, on this machine.
#pragma once

#include <string>
#include <vector>

#include "kvferry/status.hpp"

namespace kvferry {

struct BackendInfo {
  std::string name;  // "cpu", "cuda"
  bool available = false;
  // Available: what it has, "avx512, avx2, generic" (best first), "cuda:0 NVIDIA H200 (sm_90, 132 SMs)".
  // Else why it is not: the build has none, no driver, no device. For people, not for parsing.
  std::string detail;
};

// Every backend that KVFerry knows, "cpu" first. Asked anew by each call. It initialises the CUDA driver,
// after which a forked child cannot use CUDA; it makes no context on a device. Throws std::bad_alloc only.
KVFERRY_EXPORT std::vector<BackendInfo> backends();

}  // namespace kvferry
