// SPDX-License-Identifier: Apache-2.0
//
// Every order in which a launch can be tried.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <vector>

#include "tests/cuda_emulation/context.hpp"
#include "tests/cuda_emulation/sanitizers.hpp"

namespace kvferry::emulation {

inline std::vector<LaunchOptions> all_orders() {
  const std::uint64_t random_seeds =
      thread_sanitizer() ? 1 : 8;  // threads of its own for each block take long
  std::vector<LaunchOptions> all = {{.order = Order::kForward}, {.order = Order::kReverse}};
  for (std::uint64_t seed = 1; seed <= random_seeds; ++seed) {
    all.push_back({.order = Order::kRandom, .seed = seed});
    all.push_back({.order = Order::kRandom, .seed = seed, .preempt_per_1024 = 200});
  }
  return all;
}

inline std::ostream& operator<<(std::ostream& out, const LaunchOptions& options) {
  const char* names[] = {"forward", "reverse", "random"};
  return out << names[static_cast<int>(options.order)] << " seed " << options.seed << " preempt "
             << options.preempt_per_1024;
}

inline void expect_clean(const Report& report, const LaunchOptions& options) {
  EXPECT_FALSE(report.finding) << options << ": " << report.finding->text;
}

}  // namespace kvferry::emulation
