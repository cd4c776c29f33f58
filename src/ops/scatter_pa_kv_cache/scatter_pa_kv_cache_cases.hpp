// SPDX-License-Identifier: Apache-2.0
//
// What the case files of the scatter share.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "harness/harness.hpp"
#include "kvferry/ops/scatter_pa_kv_cache.hpp"

namespace kvferry::harness {

// One broken rule of plan(), for the modes (of the case key "mode") that have it.
struct ScatterBreaker {
  const char* name;
  const char* modes;
  StatusCode code;
  void (*apply)(ScatterPaKvCacheArgs& args, std::vector<std::string>& words);
};

std::span<const ScatterBreaker> scatter_breakers();
std::span<const RegisteredCase> scatter_registered_cases();
Case scatter_random_case(std::uint64_t seed);

}  // namespace kvferry::harness
