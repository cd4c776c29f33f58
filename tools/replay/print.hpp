// SPDX-License-Identifier: Apache-2.0
//
// Numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace kvferry::replay {

std::string print_seconds(double seconds);        // "8.2 s", "3 min 08 s"
std::string print_gibibytes(std::int64_t bytes);  // "4.00 GiB"; "unknown" below 0
std::string print_thousands(std::int64_t value);  // "1,234,567"
// Three digits and a power of 1000: "4.31 M", "512", "1.20 TB", "512 B".
std::string print_metric(double value, const char* unit = "");
inline std::string print_metric(std::int64_t value, const char* unit = "") {
  return print_metric(static_cast<double>(value), unit);
}

}  // namespace kvferry::replay
