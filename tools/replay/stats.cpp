// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/stats.hpp"
#include "tools/replay/numbers.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvferry::replay {
namespace {

constexpr int kBits = 7;  // of the mantissa below the leading one

}  // namespace

void LatencyHistogram::add(std::int64_t ns) {
  const auto v = static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 0));
  const int shift = std::max(0, static_cast<int>(std::bit_width(v)) - 1 - kBits);
  const std::size_t bucket = (usize(shift) << kBits) + (v >> shift);
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  ++buckets_[bucket];
  ++count_;
}

double LatencyHistogram::quantile_ns(double q) const {
  auto rank = static_cast<std::int64_t>(std::ceil(q * static_cast<double>(count_)));
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    rank -= buckets_[b];
    if (rank > 0 || buckets_[b] == 0) continue;
    return static_cast<double>(least_of(b) + least_of(b + 1) - 1) / 2;
  }
  return 0;
}

std::int64_t LatencyHistogram::least_of(std::size_t bucket) {
  const std::size_t shift = bucket >> kBits > 1 ? (bucket >> kBits) - 1 : 0;
  return static_cast<std::int64_t>((bucket - (shift << kBits)) << shift);
}

std::vector<LatencyHistogram::Bin> LatencyHistogram::bins() const {
  std::vector<Bin> bins;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b] == 0) continue;
    const std::int64_t least = least_of(b);
    // Below 8 a quarter of a power of two has no integers of its own.
    const std::int64_t width =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(std::bit_floor(usize(least)) / 4));
    const std::int64_t from = least / width * width;
    if (bins.empty() || bins.back().from != from) bins.push_back({from, from + width, 0});
    bins.back().count += buckets_[b];
  }
  return bins;
}

std::span<const Call> calls_of(bool selection) {
  static constexpr std::array kTiers{Call::kScatterPrefill, Call::kScatterDecode, Call::kGather, Call::kEvict,
                                     Call::kFetch};
  static constexpr std::array kSelection{Call::kScatterPrefill, Call::kScatterDecode, Call::kGather,
                                         Call::kSelect};
  return selection ? std::span<const Call>(kSelection) : std::span<const Call>(kTiers);
}

const char* operator_of(Call call) {
  switch (call) {
    case Call::kScatterPrefill:
    case Call::kScatterDecode:
      return "scatter_pa_kv_cache";
    case Call::kGather:
      return "gather_pa_kv_cache";
    case Call::kEvict:
    case Call::kFetch:
      return "swap_blocks";
    case Call::kSelect:
      return "gather_selection_kv_cache";
  }
  return "";
}

const char* purpose_of(Call call) {
  switch (call) {
    case Call::kScatterPrefill:
      return "prefill";
    case Call::kScatterDecode:
      return "decode";
    case Call::kGather:
      return "prefill";
    case Call::kEvict:
      return "evict";
    case Call::kFetch:
      return "fetch";
    case Call::kSelect:
      return "decode";
  }
  return "";
}

bool CallSampler::take() {
  const bool taken = left_ > 0 && random_.between(1, left_) <= wanted_;
  --left_;
  wanted_ -= taken ? 1 : 0;
  return taken;
}

}  // namespace kvferry::replay
