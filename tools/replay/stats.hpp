// SPDX-License-Identifier: Apache-2.0
//
// What is counted for each kind of call.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "harness/random.hpp"
#include "tools/replay/numbers.hpp"

namespace kvferry::replay {

// Latencies in nanoseconds. Buckets are exact below 256 ns and 1/128 of a power of two wide above,
// so a quantile is right to 0.4 %.
class LatencyHistogram {
 public:
  void add(std::int64_t ns);
  std::int64_t count() const { return count_; }
  // 0 < q <= 1: the smallest latency that at least q of all do not exceed; 0 if there are none.
  double quantile_ns(double q) const;

  // Latencies in [from, to) ns.
  struct Bin {
    std::int64_t from, to;
    std::int64_t count;
  };
  // Four bins to a power of two, without the empty ones: for drawing.
  std::vector<Bin> bins() const;

 private:
  // The smallest latency of a bucket.
  static std::int64_t least_of(std::size_t bucket);

  std::vector<std::int64_t> buckets_;
  std::int64_t count_ = 0;
};

enum class Call : std::uint8_t { kScatterPrefill, kScatterDecode, kGather, kEvict, kFetch, kSelect };
inline constexpr std::size_t kCallKinds = 6;
// What a run calls: with selection there is no second tier to evict to.
std::span<const Call> calls_of(bool selection);
// One T for each kind of call.
template <class T>
class PerCall {
 public:
  T& operator[](Call call) { return values_[static_cast<std::size_t>(call)]; }
  const T& operator[](Call call) const { return values_[static_cast<std::size_t>(call)]; }

 private:
  std::array<T, kCallKinds> values_{};
};

const char* operator_of(Call call);  // "scatter_pa_kv_cache"
const char* purpose_of(Call call);   // "prefill"

struct CallStats {
  std::int64_t calls = 0;
  std::int64_t tokens = 0;  // all layers of the run count as one
  std::int64_t bytes = 0;   // payload, once
  std::int64_t ns = 0;      // in run(); plan() is apart
  LatencyHistogram latency;
  std::int64_t verified_calls = 0;
  std::int64_t verified_bytes = 0;
  std::int64_t mismatched_rows = 0;
  std::int64_t plans = 0;
  std::int64_t plan_ns = 0;
  std::string implementation;  // of the first call

  double gigabytes_per_second() const {
    return ns > 0 ? static_cast<double>(bytes) / static_cast<double>(ns) : 0;
  }
};

// Chooses exactly `wanted` of `total` calls, evenly at random (Knuth's algorithm S).
class CallSampler {
 public:
  CallSampler() = default;
  CallSampler(std::int64_t total, std::int64_t wanted, std::uint64_t seed)
      : left_(total), wanted_(wanted), random_(seed) {}

  // Of the next call.
  bool take();

 private:
  std::int64_t left_ = 0;
  std::int64_t wanted_ = 0;
  harness::Random random_{0};
};

}  // namespace kvferry::replay
