// SPDX-License-Identifier: Apache-2.0
//
// What the case files of gather_dequant share.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "harness/harness.hpp"
#include "kvferry/ops/gather_dequant.hpp"

namespace kvferry::harness {

// One broken rule of plan(): `apply` damages valid arguments and says what the message must name.
struct GatherDequantBreaker {
  const char* name;
  StatusCode code;
  void (*apply)(GatherDequantArgs& args, std::vector<std::string>& words);
};

std::span<const GatherDequantBreaker> gather_dequant_breakers();
std::span<const RegisteredCase> gather_dequant_registered_cases();
Case gather_dequant_random_case(std::uint64_t seed);

}  // namespace kvferry::harness
