// SPDX-License-Identifier: Apache-2.0
//
// A problem as a line of text, and random numbers to make it from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::bench {

inline std::size_t to_size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

// Of a problem that cannot be made as it is written.
class SpecError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// "kind:key=value,key=value"; integers take k and M (powers of 1024).
class Spec {
 public:
  explicit Spec(std::string_view text);
  const std::string& kind() const { return kind_; }
  std::int64_t integer(const std::string& key, std::int64_t otherwise) const;
  std::string text(const std::string& key, const std::string& otherwise) const;

 private:
  std::string kind_;
  std::map<std::string, std::string> values_;
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15U + 1) {}
  std::uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
  }
  // 0 .. n-1 in random order
  std::vector<std::int64_t> permutation(std::int64_t n);

 private:
  std::uint64_t state_;
};

}  // namespace kvferry::bench
