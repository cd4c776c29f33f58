// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/generator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "harness/random.hpp"
#include "tools/replay/numbers.hpp"

namespace kvferry::replay {
namespace {

// Quantiles of the published trace at these per mille of its requests; between them values are interpolated.
constexpr std::array kPerMille{0,   10,  50,  100, 200, 300, 400, 500, 600,
                               700, 800, 900, 950, 980, 990, 995, 1000};
using Quantiles = std::array<std::int32_t, kPerMille.size()>;

constexpr Quantiles kFreshPrompt{891,   894,   897,   905,   1083,  1727,  3879,   5226,  7395,
                                 10732, 15840, 25526, 38459, 67016, 89867, 111605, 126195};
constexpr Quantiles kAddedTokens{10,   82,   223,  334,   482,   594,   700,   833,  998,
                                 1707, 5068, 9759, 14770, 20602, 26773, 32834, 94968};
constexpr Quantiles kOutput{1, 3, 10, 24, 100, 213, 291, 350, 399, 447, 504, 597, 698, 891, 1120, 1570, 2000};
// Requests back to the one that is continued.
constexpr Quantiles kAge{5,   45,   101,  141,  204,  257,  325,  423,  550,
                         757, 1086, 1660, 2125, 3491, 5110, 6711, 10514};

constexpr std::int32_t kLongestPrompt = 126195;
constexpr int kContinuesPerMille = 385;
constexpr int kSharesAllPerMille = 849;  // of the earlier prompt's full blocks
// A prompt is continued at most once; of those with so many blocks, only a share can be.
constexpr std::int64_t kLongBlocks = 32;
constexpr int kLongGoesOnPerMille = 750;
constexpr std::int64_t kBurstGapMs = 3000;

std::int64_t sample(const Quantiles& q, harness::Random& random) {
  constexpr std::int64_t kSteps = 1000;  // of one per mille
  const std::int64_t u = random.between(0, 1000 * kSteps - 1);
  std::size_t i = 0;
  while (u >= kPerMille[i + 1] * kSteps) ++i;
  const std::int64_t width = (kPerMille[i + 1] - kPerMille[i]) * kSteps;
  return q[i] + (q[i + 1] - q[i]) * (u - kPerMille[i] * kSteps) / width;
}

}  // namespace

Trace generate_trace(std::uint64_t seed, std::int64_t requests) {
  Trace trace;
  trace.name = fmt::format("built-in seed {}", seed);
  trace.requests.reserve(usize(requests));
  harness::Random random(seed);
  std::vector<bool> open;  // can be continued
  std::int64_t next_id = 1;
  std::int64_t time_ms = 0, left_in_burst = random.between(1, 19);
  for (std::int64_t i = 0; i < requests; ++i) {
    if (left_in_burst-- == 0) {
      time_ms += kBurstGapMs;
      left_in_burst = random.between(0, 18);
    }
    Request r;
    r.timestamp_ms = time_ms;
    r.line = i + 1;
    r.first_id = trace.hash_ids.size();
    std::int64_t shared = 1;
    trace.hash_ids.push_back(0);
    // The first 5 have nobody far enough back; a short trace has to take what is there.
    if (i > 5 && random.between(1, 1000) <= kContinuesPerMille) {
      std::int64_t age = sample(kAge, random);
      if (age > i) age = random.between(1, i);
      // The nearest from there on back that can be continued.
      std::int64_t earlier = i - age;
      while (earlier > 0 && !open[usize(earlier)]) --earlier;
      const Request& e = trace.requests[usize(earlier)];
      if (open[usize(earlier)]) {
        open[usize(earlier)] = false;
        shared = e.full_blocks();
        if (random.between(1, 1000) > kSharesAllPerMille) shared = random.between(2, shared);
        for (std::int64_t j = 1; j < shared; ++j) {
          const std::int64_t id = trace.hash_ids[e.first_id + usize(j)];
          trace.hash_ids.push_back(id);
        }
      }
    }
    const std::int64_t length =
        shared > 1 ? shared * kHashBlock + sample(kAddedTokens, random) : sample(kFreshPrompt, random);
    r.input_length = static_cast<std::int32_t>(std::min<std::int64_t>(length, kLongestPrompt));
    r.output_length = static_cast<std::int32_t>(sample(kOutput, random));
    while (std::ssize(trace.hash_ids) - static_cast<std::int64_t>(r.first_id) < r.id_count()) {
      trace.hash_ids.push_back(next_id++);
    }
    // Only a prompt of two full blocks shares more than the system prompt.
    open.push_back(r.full_blocks() >= 2 &&
                   (r.full_blocks() < kLongBlocks || random.between(1, 1000) <= kLongGoesOnPerMille));
    trace.requests.push_back(r);
  }
  return trace;
}

}  // namespace kvferry::replay
