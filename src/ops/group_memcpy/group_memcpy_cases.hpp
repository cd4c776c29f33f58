// SPDX-License-Identifier: Apache-2.0
//
// What the case files of group_memcpy share.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "harness/harness.hpp"
#include "kvferry/ops/group_memcpy.hpp"

namespace kvferry::harness {

// One broken rule of plan().
struct GroupMemcpyBreaker {
  const char* name;
  StatusCode code;
  void (*apply)(GroupMemcpyArgs& args, std::vector<std::string>& words);
};

std::span<const GroupMemcpyBreaker> group_memcpy_breakers();
std::span<const RegisteredCase> group_memcpy_registered_cases();
Case group_memcpy_random_case(std::uint64_t seed);

}  // namespace kvferry::harness
