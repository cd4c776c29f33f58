// SPDX-License-Identifier: Apache-2.0
//
// The one list of operators: CLI, tests, benchmarks and documentation read it.
#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/harness.hpp"

namespace kvferry::harness {

// In the order of the Operator enumeration.
std::span<const OperatorInfo> operators();

// Null if there is none of this name.
const OperatorInfo* find_operator(std::string_view name);

// The cases that a text stands for: "operator:key=value,...", a registered name ("gather/len0_in_middle"), or
// a registered name with keys that replace or extend its own ("gather/len0_in_middle:threads=2"). Braces make
// several. Throws CaseError for a name that is not known; its message lists those that are near.
std::vector<std::pair<const OperatorInfo*, Case>> resolve(std::string_view text);

// Each operator's row, defined by its case file.
const OperatorInfo& gather_pa_kv_cache_info();
const OperatorInfo& scatter_pa_kv_cache_info();
const OperatorInfo& group_memcpy_info();
const OperatorInfo& gather_selection_kv_cache_info();
const OperatorInfo& copy_blocks_info();
const OperatorInfo& swap_blocks_info();

}  // namespace kvferry::harness
