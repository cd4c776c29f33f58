// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/plan.hpp"

namespace kvferry::internal {

// Adds one call's record to the caller's. What describes an entry is replaced as a whole, or not at all.
inline void accumulate(ErrorRecord& total, const ErrorRecord& call) {
  if (call.bad == 0) return;
  const std::uint64_t bad = total.bad + call.bad;
  const bool lower = call.batch != total.batch ? call.batch < total.batch : call.column < total.column;
  if (total.bad == 0 || lower) total = call;
  total.bad = bad;
}

}  // namespace kvferry::internal
