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
    const std::size_t shift = b >> kBits > 1 ? (b >> kBits) - 1 : 0;
    const std::uint64_t least = (b - (shift << kBits)) << shift;
    return static_cast<double>(least) + static_cast<double>((1ULL << shift) - 1) / 2;
  }
  return 0;
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
      return "group_memcpy";
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
