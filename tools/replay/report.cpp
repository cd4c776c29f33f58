// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/report.hpp"

namespace kvferry::replay {

double percent(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

double Report::operator_seconds() const {
  std::int64_t ns = 0;
  for (const Call call : kCalls) ns += calls[call].ns;
  return static_cast<double>(ns) / 1e9;
}

std::optional<double> Report::link_seconds(Call call) const {
  if (options.link_gbps <= 0 || (call != Call::kEvict && call != Call::kFetch)) return std::nullopt;
  return static_cast<double>(calls[call].bytes) / (options.link_gbps * 1e9);
}

}  // namespace kvferry::replay
