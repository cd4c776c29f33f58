// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/report.hpp"

namespace kvferry::replay {

double percent(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

double Report::operator_seconds() const {
  std::int64_t ns = 0;
  for (const Call call : calls_of(selects())) ns += calls[call].ns;
  return static_cast<double>(ns) / 1e9;
}

std::optional<double> Report::link_seconds(Call call) const {
  if (options.link_gbps <= 0) return std::nullopt;
  const bool tiers = call == Call::kEvict || call == Call::kFetch;
  if (!tiers && call != Call::kSelect) return std::nullopt;
  // What moves inside the selection cache stays on the device.
  const std::int64_t bytes = tiers ? calls[call].bytes : selected_bytes(selection.fetched);
  return static_cast<double>(bytes) / (options.link_gbps * 1e9);
}

}  // namespace kvferry::replay
