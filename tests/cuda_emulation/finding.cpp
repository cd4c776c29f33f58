// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/finding.hpp"

#include <string_view>

namespace kvferry::emulation {

std::string to_string(Location location) {
  if (location.file == nullptr) return "?";
  const std::string_view file = location.file;
  return std::string(file.substr(file.rfind('/') + 1)) + ":" + std::to_string(location.line);
}

const char* to_string(FindingKind kind) {
  switch (kind) {
    case FindingKind::kRace:
      return "race";
    case FindingKind::kUninitialised:
      return "uninitialised";
    case FindingKind::kOutOfBounds:
      return "out of bounds";
    case FindingKind::kMisaligned:
      return "misaligned";
    case FindingKind::kDivergentBarrier:
      return "divergent barrier";
    case FindingKind::kWarpMask:
      return "warp mask";
    case FindingKind::kDeadlock:
      return "deadlock";
    case FindingKind::kAsyncCopy:
      return "async copy";
    case FindingKind::kNonCoherentRead:
      return "non-coherent read";
    case FindingKind::kMbarrier:
      return "mbarrier";
  }
  return "unknown";
}

}  // namespace kvferry::emulation
