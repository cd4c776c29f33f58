// SPDX-License-Identifier: Apache-2.0
//
// Seeded random numbers and bytes: the same on every machine and compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::harness {

inline std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed)) {}
  std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15U); }
  // [least, most], both ends
  std::int64_t between(std::int64_t least, std::int64_t most) {
    const std::uint64_t range = static_cast<std::uint64_t>(most) - static_cast<std::uint64_t>(least) + 1;
    const std::uint64_t draw = range == 0 ? next() : next() % range;
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(least) + draw);
  }
  bool one_in(std::int64_t n) { return between(1, n) == 1; }
  template <class T>
  const T& pick(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(values.size()) - 1))];
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<std::size_t>(next() % i)]);
    }
  }

 private:
  std::uint64_t state_;
};

// Bytes that depend on seed and position, so that bytes that were moved by any distance are noticed.
inline void fill_random(std::byte* to, std::int64_t bytes, std::uint64_t seed) {
  const std::uint64_t base = mix(seed);
  std::uint64_t counter = 0;
  std::int64_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    std::uint64_t word = (base ^ ++counter) * 0xbf58476d1ce4e5b9U;
    word ^= word >> 29;
    std::memcpy(to + at, &word, 8);
  }
  const std::uint64_t word = mix(base ^ ++counter);
  if (at < bytes) std::memcpy(to + at, &word, static_cast<std::size_t>(bytes - at));
}

}  // namespace kvferry::harness
