// SPDX-License-Identifier: Apache-2.0
//
// What the case files of the gather share.
#pragma once

#include <span>
#include <string_view>

#include "harness/harness.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"

namespace kvferry::harness {

// One broken rule of plan(): `apply` damages valid arguments and says what the message must name.
struct GatherBreaker {
  const char* name;
  StatusCode code;
  void (*apply)(GatherPaKvCacheArgs& args, std::vector<std::string>& words);
};

std::span<const GatherBreaker> gather_breakers();
std::span<const RegisteredCase> gather_registered_cases();
Case gather_random_case(std::uint64_t seed);

}  // namespace kvferry::harness
