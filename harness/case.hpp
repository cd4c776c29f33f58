// SPDX-License-Identifier: Apache-2.0
//
// Case: one problem as a line of text that the tests, the CLI, the benchmark and every repro line share.
//
//     operator:key=value,key=value
//
// Values. A value may hold ':' ';' '/' and '+', never ',' or '='.
//   integer   12  -3  4k  3M  2G (powers of 1024)  2^40  sums of these: 2^31-1
//   list      items joined by ';':   integer   a..b (both ends)   a*n (n times)
//   flag      0 1 true false
//   choice    one of the names that the key's help lists
//
// Text with braces stands for several cases: "x:d={1..3|8}" is x:d=1, x:d=2, x:d=3, x:d=8. Braces do not
// nest; several of them multiply.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvferry::harness {

// A case that does not say what it must: its message is for the person who typed it.
class CaseError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct KeyHelp {
  const char* name;
  const char* help;
};

// "+1" sums, suffixes and powers as above; throws CaseError.
std::int64_t parse_integer(std::string_view text);
std::vector<std::int64_t> parse_integers(std::string_view text);
std::vector<std::string> expand_braces(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);
// 3;3;3;4;5;6 as "3*3;4..6"
std::string print_integers(std::span<const std::int64_t> values);

class Case {
 public:
  explicit Case(std::string op) : op_(std::move(op)) {}
  // Throws CaseError for text that is no case: no ':', empty or repeated keys, no '='.
  static Case parse(std::string_view text);

  const std::string& op() const { return op_; }
  std::string print() const;  // parse(print()) prints the same
  bool empty() const { return items_.empty(); }
  bool has(std::string_view key) const;
  void set(std::string_view key, std::string_view value);  // replaces, else appends
  void set(std::string_view key, std::int64_t value) { set(key, std::to_string(value)); }
  void erase(std::string_view key);
  // Every key of `other` replaces or extends this case.
  void merge(const Case& other);

  // A getter returns `otherwise` for a missing key, throws CaseError for a bad value, and marks the key as
  // used.
  std::string text(std::string_view key, std::string_view otherwise) const;
  std::int64_t integer(std::string_view key, std::int64_t otherwise,
                       std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;
  std::vector<std::int64_t> integers(std::string_view key, std::vector<std::int64_t> otherwise) const;
  std::vector<std::string> texts(std::string_view key, std::vector<std::string> otherwise) const;
  bool flag(std::string_view key, bool otherwise) const;
  template <class T>
  T choice(std::string_view key, std::span<const std::pair<const char*, T>> names, T otherwise) const {
    const std::string* value = use(key);
    if (value == nullptr) return otherwise;
    std::vector<std::string> valid;
    for (const auto& [name, result] : names) {
      if (*value == name) return result;
      valid.emplace_back(name);
    }
    throw_bad_choice(key, *value, valid);
  }

  // Throws CaseError for a key that is in none of the two lists; the message lists them all.
  void check_known(std::span<const KeyHelp> keys, std::span<const KeyHelp> more = {}) const;
  // Throws CaseError for a key that no getter asked for: it would have no effect.
  void check_used() const;

  // "name=... : why"
  [[noreturn]] void fail(std::string_view key, std::string_view why) const;

 private:
  struct Item {
    std::string key;
    std::string value;
    mutable bool used = false;
  };
  const std::string* use(std::string_view key) const;
  [[noreturn]] void throw_bad_choice(std::string_view key, std::string_view value,
                                     const std::vector<std::string>& valid) const;

  std::string op_;
  std::vector<Item> items_;
};

}  // namespace kvferry::harness
