// SPDX-License-Identifier: Apache-2.0
//
// A fault while a case runs kills the process: say which case it was, and whose guard page was touched.
#pragma once

#include <string>

#include "harness/instance.hpp"

namespace kvferry::harness {

// While it lives, SIGSEGV and SIGBUS print `repeat` to the standard error before they take their course.
class FaultReport {
 public:
  FaultReport(const Instance& instance, const std::string& repeat);
  ~FaultReport();
  FaultReport(const FaultReport&) = delete;
  FaultReport& operator=(const FaultReport&) = delete;
};

}  // namespace kvferry::harness
