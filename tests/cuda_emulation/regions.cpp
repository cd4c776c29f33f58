// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/regions.hpp"

#include <map>
#include <mutex>

namespace kvferry::emulation {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::uintptr_t, Region> regions;
};
Registry& registry() {
  static Registry one;
  return one;
}

}  // namespace

RegisteredRange::RegisteredRange(const void* data, std::size_t bytes, bool contested)
    : begin_(reinterpret_cast<std::uintptr_t>(data)) {
  const std::lock_guard lock(registry().mutex);
  registry().regions.emplace(begin_, Region{begin_, begin_ + bytes, contested});
}

RegisteredRange::~RegisteredRange() {
  const std::lock_guard lock(registry().mutex);
  registry().regions.erase(begin_);
}

std::vector<Region> registered_regions() {
  const std::lock_guard lock(registry().mutex);
  std::vector<Region> regions;
  for (const auto& [begin, region] : registry().regions) regions.push_back(region);
  return regions;
}

}  // namespace kvferry::emulation
