// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/regions.hpp"

#include <map>
#include <mutex>

namespace kvferry::emulation {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::uintptr_t, std::uintptr_t> end_of;
};
Registry& registry() {
  static Registry one;
  return one;
}

}  // namespace

RegisteredRange::RegisteredRange(const void* data, std::size_t bytes)
    : begin_(reinterpret_cast<std::uintptr_t>(data)) {
  const std::lock_guard lock(registry().mutex);
  registry().end_of.emplace(begin_, begin_ + bytes);
}

RegisteredRange::~RegisteredRange() {
  const std::lock_guard lock(registry().mutex);
  registry().end_of.erase(begin_);
}

std::vector<Region> registered_regions() {
  const std::lock_guard lock(registry().mutex);
  std::vector<Region> regions;
  for (const auto& [begin, end] : registry().end_of) regions.push_back({begin, end});
  return regions;
}

}  // namespace kvferry::emulation
