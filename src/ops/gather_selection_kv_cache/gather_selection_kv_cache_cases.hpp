// SPDX-License-Identifier: Apache-2.0
//
// What the case files of the selection gather share.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "harness/harness.hpp"
#include "kvferry/ops/gather_selection_kv_cache.hpp"

namespace kvferry::harness {

// One broken rule of plan(), for the forms (of the case key "form") that have it.
struct SelectionBreaker {
  const char* name;
  const char* forms;
  StatusCode code;
  void (*apply)(GatherSelectionKvCacheArgs& args, std::vector<std::string>& words);
};

std::span<const SelectionBreaker> selection_breakers();
std::span<const RegisteredCase> selection_registered_cases();
Case selection_random_case(std::uint64_t seed);

}  // namespace kvferry::harness
