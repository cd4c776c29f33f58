// SPDX-License-Identifier: Apache-2.0
#include "harness/case.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "harness/int128.hpp"

namespace kvferry::harness {
namespace {

constexpr std::int64_t kMaxListItems = 1 << 24;

[[noreturn]] void bad_integer(std::string_view text) {
  throw CaseError(
      fmt::format("'{}' is no integer (12, -3, 4k, 3M, 2G, 2^40, or a sum of these such as 2^31-1)", text));
}

// Up to 2^64 - 1: the sign of -2^63 comes later.
std::uint64_t parse_digits(std::string_view digits, std::string_view whole) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    bad_integer(whole);
  }
  return value;
}

Int128 parse_term(std::string_view term, std::string_view whole) {
  if (const auto caret = term.find('^'); caret != std::string_view::npos) {
    const std::uint64_t base = parse_digits(term.substr(0, caret), whole);
    const std::uint64_t power = parse_digits(term.substr(caret + 1), whole);
    constexpr Int128 kLimit = static_cast<Int128>(1) << 63;
    if (power > 63 || base > kLimit) bad_integer(whole);
    Int128 value = 1;
    for (std::uint64_t i = 0; i < power; ++i) {
      value *= base;
      if (value > kLimit) bad_integer(whole);
    }
    return value;
  }
  int shift = 0;
  if (!term.empty()) {
    if (term.back() == 'k') shift = 10;
    if (term.back() == 'M') shift = 20;
    if (term.back() == 'G') shift = 30;
  }
  if (shift != 0) term.remove_suffix(1);
  return static_cast<Int128>(parse_digits(term, whole)) << shift;
}

}  // namespace

std::int64_t parse_integer(std::string_view text) {
  Int128 sum = 0;
  std::size_t at = 0;
  bool first = true;
  while (first || at < text.size()) {
    bool negative = false;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) {
      negative = text[at] == '-';
      ++at;
    } else if (!first) {
      bad_integer(text);
    }
    const std::size_t end = std::min(text.find_first_of("+-", at), text.size());
    const Int128 term = parse_term(text.substr(at, end - at), text);
    sum += negative ? -term : term;
    at = end;
    first = false;
  }
  if (sum < std::numeric_limits<std::int64_t>::min() || sum > std::numeric_limits<std::int64_t>::max()) {
    bad_integer(text);
  }
  return static_cast<std::int64_t>(sum);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  while (true) {
    const std::size_t end = text.find(separator, at);
    parts.emplace_back(text.substr(at, end - at));
    if (end == std::string_view::npos) return parts;
    at = end + 1;
  }
}

std::vector<std::int64_t> parse_integers(std::string_view text) {
  std::vector<std::int64_t> values;
  if (text.empty()) return values;
  const auto room_for = [&](std::int64_t more) {
    if (more < 0 || more > kMaxListItems - static_cast<std::int64_t>(values.size())) {
      throw CaseError(fmt::format("'{}' has more than {} items", text, kMaxListItems));
    }
  };
  for (const std::string& item : split(text, ';')) {
    if (const auto dots = item.find(".."); dots != std::string::npos) {
      const std::int64_t first = parse_integer(std::string_view(item).substr(0, dots));
      const std::int64_t last = parse_integer(std::string_view(item).substr(dots + 2));
      if (last < first) throw CaseError(fmt::format("range '{}' ends before it starts", item));
      Int128 length = static_cast<Int128>(last) - first + 1;
      room_for(length > kMaxListItems ? -1 : static_cast<std::int64_t>(length));
      for (; length > 0; --length) values.push_back(static_cast<std::int64_t>(last - length + 1));
    } else if (const auto star = item.find('*'); star != std::string::npos) {
      const std::int64_t value = parse_integer(std::string_view(item).substr(0, star));
      const std::int64_t times = parse_integer(std::string_view(item).substr(star + 1));
      room_for(times);
      values.insert(values.end(), static_cast<std::size_t>(times), value);
    } else {
      room_for(1);
      values.push_back(parse_integer(item));
    }
  }
  return values;
}

std::string print_integers(std::span<const std::int64_t> values) {
  std::string text;
  const std::size_t n = values.size();
  for (std::size_t i = 0; i < n;) {
    std::size_t same = i + 1;
    while (same < n && values[same] == values[i]) ++same;
    std::size_t rising = i + 1;
    while (rising < n && values[rising - 1] < std::numeric_limits<std::int64_t>::max() &&
           values[rising] == values[rising - 1] + 1) {
      ++rising;
    }
    if (!text.empty()) text += ';';
    if (same - i > 2) {
      text += fmt::format("{}*{}", values[i], same - i);
      i = same;
    } else if (rising - i > 2) {
      text += fmt::format("{}..{}", values[i], values[rising - 1]);
      i = rising;
    } else {
      text += fmt::format("{}", values[i]);
      ++i;
    }
  }
  return text;
}

std::vector<std::string> expand_braces(std::string_view text) {
  const std::size_t open = text.find('{');
  if (open == std::string_view::npos) {
    if (text.find('}') != std::string_view::npos)
      throw CaseError(fmt::format("'{}': '}}' without '{{'", text));
    return {std::string(text)};
  }
  const std::size_t close = text.find('}', open);
  if (close == std::string_view::npos ||
      text.substr(open + 1, close - open - 1).find('{') != std::string_view::npos) {
    throw CaseError(fmt::format("'{}': braces do not match or nest", text));
  }
  std::vector<std::string> middles;
  for (const std::string& part : split(text.substr(open + 1, close - open - 1), '|')) {
    const bool is_range =
        part.find("..") != std::string::npos && part.find_first_of("=;,*") == std::string::npos;
    if (is_range) {
      for (const std::int64_t value : parse_integers(part)) middles.push_back(std::to_string(value));
    } else {
      middles.push_back(part);
    }
  }
  std::vector<std::string> results;
  const std::vector<std::string> tails = expand_braces(text.substr(close + 1));
  for (const std::string& middle : middles) {
    for (const std::string& tail : tails) {
      results.push_back(fmt::format("{}{}{}", text.substr(0, open), middle, tail));
    }
  }
  return results;
}

Case Case::parse(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view op = text.substr(0, colon);
  if (op.empty() || op.find_first_of(",= ") != std::string_view::npos) {
    throw CaseError(fmt::format("'{}' is no case: expected operator:key=value,key=value", text));
  }
  Case result{std::string(op)};
  if (colon == std::string_view::npos || colon + 1 == text.size()) return result;
  for (const std::string& item : split(text.substr(colon + 1), ',')) {
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw CaseError(fmt::format("'{}' in '{}' is no key=value", item, text));
    }
    const std::string key = item.substr(0, equals);
    const std::string value = item.substr(equals + 1);
    if (value.find('=') != std::string::npos) {
      throw CaseError(fmt::format("'{}' in '{}': a value cannot hold '=' (a ',' is missing?)", item, text));
    }
    if (result.has(key)) throw CaseError(fmt::format("key '{}' appears twice in '{}'", key, text));
    result.items_.push_back({key, value});
  }
  return result;
}

std::string Case::print() const {
  std::string text = op_ + ":";
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (i > 0) text += ',';
    text += items_[i].key + "=" + items_[i].value;
  }
  return text;
}

bool Case::has(std::string_view key) const {
  return std::any_of(items_.begin(), items_.end(), [&](const Item& item) { return item.key == key; });
}

void Case::set(std::string_view key, std::string_view value) {
  for (Item& item : items_) {
    if (item.key == key) {
      item.value = value;
      return;
    }
  }
  items_.push_back({std::string(key), std::string(value)});
}

void Case::erase(std::string_view key) {
  std::erase_if(items_, [&](const Item& item) { return item.key == key; });
}

void Case::merge(const Case& other) {
  for (const Item& item : other.items_) set(item.key, item.value);
}

const std::string* Case::use(std::string_view key) const {
  for (const Item& item : items_) {
    if (item.key == key) {
      item.used = true;
      return &item.value;
    }
  }
  return nullptr;
}

void Case::fail(std::string_view key, std::string_view why) const {
  throw CaseError(fmt::format("{}: key '{}': {}", op_, key, why));
}

std::string Case::text(std::string_view key, std::string_view otherwise) const {
  const std::string* value = use(key);
  return value == nullptr ? std::string(otherwise) : *value;
}

std::int64_t Case::integer(std::string_view key, std::int64_t otherwise, std::int64_t least,
                           std::int64_t most) const {
  const std::string* value = use(key);
  if (value == nullptr) return otherwise;
  std::int64_t number = 0;
  try {
    number = parse_integer(*value);
  } catch (const CaseError& error) {
    fail(key, error.what());
  }
  if (number < least || number > most) {
    fail(key, fmt::format("{} is outside [{}, {}]", number, least, most));
  }
  return number;
}

std::vector<std::int64_t> Case::integers(std::string_view key, std::vector<std::int64_t> otherwise) const {
  const std::string* value = use(key);
  if (value == nullptr) return otherwise;
  try {
    return parse_integers(*value);
  } catch (const CaseError& error) {
    fail(key, error.what());
  }
}

std::vector<std::string> Case::texts(std::string_view key, std::vector<std::string> otherwise) const {
  const std::string* value = use(key);
  if (value == nullptr) return otherwise;
  return value->empty() ? std::vector<std::string>{} : split(*value, ';');
}

bool Case::flag(std::string_view key, bool otherwise) const {
  const std::string* value = use(key);
  if (value == nullptr) return otherwise;
  if (*value == "1" || *value == "true") return true;
  if (*value == "0" || *value == "false") return false;
  fail(key, fmt::format("'{}' is no flag (0, 1, true, false)", *value));
}

void Case::throw_bad_choice(std::string_view key, std::string_view value,
                            const std::vector<std::string>& valid) const {
  fail(key, fmt::format("'{}' is none of: {}", value, fmt::join(valid, ", ")));
}

void Case::check_known(std::span<const KeyHelp> keys, std::span<const KeyHelp> more) const {
  for (const Item& item : items_) {
    const auto same = [&](const KeyHelp& help) { return item.key == help.name; };
    if (std::any_of(keys.begin(), keys.end(), same) || std::any_of(more.begin(), more.end(), same)) continue;
    std::vector<std::string> valid;
    for (const KeyHelp& help : keys) valid.emplace_back(help.name);
    for (const KeyHelp& help : more) valid.emplace_back(help.name);
    throw CaseError(
        fmt::format("{}: unknown key '{}'; valid keys: {}", op_, item.key, fmt::join(valid, ", ")));
  }
}

void Case::check_used() const {
  for (const Item& item : items_) {
    if (!item.used) {
      throw CaseError(fmt::format("{}: key '{}' has no effect together with the other keys of '{}'", op_,
                                  item.key, print()));
    }
  }
}

}  // namespace kvferry::harness
