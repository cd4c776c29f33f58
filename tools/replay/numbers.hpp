// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

namespace kvferry::replay {

// An index that is known to be at least 0.
template <std::integral T>
constexpr std::size_t usize(T v) {
  return static_cast<std::size_t>(v);
}

}  // namespace kvferry::replay
