// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/plan.hpp"

namespace kvferry::internal {

// Adds what one call (or one thread of it) met. Of entries with equal (batch, column) the first one stays.
inline void add_to(ErrorRecord& total, const ErrorRecord& more) noexcept {
  if (more.bad == 0) return;
  const std::uint64_t bad = total.bad + more.bad;
  if (total.bad == 0 || more.batch < total.batch ||
      (more.batch == total.batch && more.column < total.column)) {
    total = more;
  }
  total.bad = bad;
}

}  // namespace kvferry::internal
