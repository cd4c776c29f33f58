// SPDX-License-Identifier: Apache-2.0
//
// 64-bit arithmetic that says when it overflowed, for sizes that come from the caller.
#pragma once

#include <cstdint>
#include <limits>

namespace kvferry::internal {

inline constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kInt64Min = std::numeric_limits<std::int64_t>::min();

// An int64 that remembers an overflow on the way: check `overflow` once, at the end of a formula.
struct Checked {
  std::int64_t value = 0;
  bool overflow = false;

  constexpr Checked(std::int64_t v) : value(v) {}  // NOLINT(google-explicit-constructor)

  friend constexpr Checked operator*(Checked a, Checked b) {
    Checked r(0);
    r.overflow = __builtin_mul_overflow(a.value, b.value, &r.value) || a.overflow || b.overflow;
    return r;
  }
  friend constexpr Checked operator+(Checked a, Checked b) {
    Checked r(0);
    r.overflow = __builtin_add_overflow(a.value, b.value, &r.value) || a.overflow || b.overflow;
    return r;
  }
};

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace kvferry::internal
