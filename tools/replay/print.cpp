// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/print.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>

#include "tools/replay/numbers.hpp"

namespace kvferry::replay {

std::string print_seconds(double seconds) {
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const std::int64_t whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string print_gibibytes(std::int64_t bytes) {
  return bytes < 0 ? "unknown" : fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
}

std::string print_thousands(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (std::ptrdiff_t at = std::ssize(digits) - 3; at > 0; at -= 3) digits.insert(usize(at), 1, ',');
  return digits;
}

std::string print_metric(double value, const char* unit) {
  constexpr std::array kPrefixes{"", "k", "M", "G", "T", "P", "E"};
  std::size_t i = 0;
  while (value >= 999.5 && i + 1 < kPrefixes.size()) {
    value /= 1000;
    ++i;
  }
  const int digits = i == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  const std::string suffix = std::string(kPrefixes[i]) + unit;
  return fmt::format("{:.{}f}{}{}", value, digits, suffix.empty() ? "" : " ", suffix);
}

}  // namespace kvferry::replay
