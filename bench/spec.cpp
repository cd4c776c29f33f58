// SPDX-License-Identifier: Apache-2.0
#include "bench/spec.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

namespace kvferry::bench {

Spec::Spec(std::string_view text) {
  const std::size_t colon = text.find(':');
  kind_ = text.substr(0, colon);
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) throw SpecError("no '=' in '" + std::string(item) + "'");
    values_[std::string(item.substr(0, equals))] = item.substr(equals + 1);
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
  }
}

std::int64_t Spec::integer(const std::string& key, std::int64_t otherwise) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return otherwise;
  const std::string& text = found->second;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, text.data() + text.size());
  if (error != std::errc() || !(unit.empty() || unit == "k" || unit == "M"))
    throw SpecError(key + "=" + text + " is no integer");
  return unit == "k" ? value << 10 : unit == "M" ? value << 20 : value;
}

std::string Spec::text(const std::string& key, const std::string& otherwise) const {
  const auto found = values_.find(key);
  return found == values_.end() ? otherwise : found->second;
}

std::vector<std::int64_t> Random::permutation(std::int64_t n) {
  std::vector<std::int64_t> order(to_size(n));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = n; i > 1; --i) std::swap(order[to_size(i - 1)], order[to_size(below(i))]);
  return order;
}

}  // namespace kvferry::bench
