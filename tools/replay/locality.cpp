// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/locality.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "harness/random.hpp"

namespace kvferry::replay {
namespace {

std::uint64_t bit(std::int64_t at) {
  return std::uint64_t{1} << (at % 64);
}

// The first position in [at, end) whose bit is not set; `end` if there is none.
std::int64_t first_clear(const std::vector<std::uint64_t>& words, std::int64_t at, std::int64_t end) {
  while (at < end) {
    const std::uint64_t clear = ~words[usize(at / 64)] >> (at % 64);
    if (clear != 0) return std::min(end, at + std::countr_zero(clear));
    at = (at / 64 + 1) * 64;
  }
  return end;
}

std::int64_t below(std::uint64_t& state, std::int64_t range) {
  state += 0x9e3779b97f4a7c15U;
  return static_cast<std::int64_t>(((harness::mix(state) >> 32) * static_cast<std::uint64_t>(range)) >> 32);
}

}  // namespace

LocalityModel::LocalityModel(const Options& o)
    : k_(o.k),
      overlap_(std::llround(o.overlap_percent / 100 * static_cast<double>(kUnit)) * o.k),
      seed_(o.seed),
      streams_(usize(o.streams)) {
  // Sinks stay and so does the window but for one: no more of them than the overlap allows.
  const std::int64_t half = overlap_ / kUnit / 2;
  sinks_ = std::min({k_ / 128, half, k_ - 1});
  window_ = std::min(1 + std::min(k_ / 16, half), k_ - sinks_);
  rest_ = k_ - sinks_ - window_;
  for (Stream& s : streams_) {
    s.rest.resize(usize(rest_));
    s.taken.resize(usize(o.longest / 64 + 1));
  }
}

void LocalityModel::begin(Stream& s, const Choice& choice) const {
  if (s.begun) {
    for (const std::int32_t id : s.rest) s.taken[usize(id / 64)] &= ~bit(id);
  }
  s.begun = false;
  s.due = 0;
  s.random = harness::mix(harness::mix(seed_ + static_cast<std::uint64_t>(choice.request)) +
                          static_cast<std::uint64_t>(choice.layer));
}

std::int64_t LocalityModel::take(Stream& s, std::int64_t end) const {
  const std::int64_t random = sinks_ + below(s.random, end - sinks_);
  std::int64_t at = first_clear(s.taken, random, end);
  if (at == end) at = first_clear(s.taken, sinks_, random);
  s.taken[usize(at / 64)] |= bit(at);
  return at;
}

void LocalityModel::choose(const Choice& choice, std::span<std::int32_t> ids) {
  Stream& s = streams_[usize(choice.stream)];
  if (choice.step == 0) begin(s, choice);
  const std::int64_t n = choice.tokens;
  if (n <= k_) {
    std::iota(ids.begin(), ids.begin() + n, 0);
    std::fill(ids.begin() + n, ids.end(), -1);
    return;
  }
  std::int64_t start = 0;
  if (!s.begun) {
    s.begun = true;
    for (std::int32_t& id : s.rest) id = static_cast<std::int32_t>(take(s, n - window_));
  } else if (rest_ > 0) {
    // What left the window is not taken in this step, nor is what was there before: what stays are sinks,
    // window - 1 and the part of the rest that is not replaced.
    const std::int64_t end = n - 1 - window_;
    s.due += (rest_ + sinks_ + window_ - 1) * kUnit - overlap_;
    const std::int64_t replaced =
        std::clamp<std::int64_t>(s.due / kUnit, 0, std::min(rest_, end - sinks_ - rest_));
    s.due = s.due / kUnit == replaced ? s.due - replaced * kUnit : 0;
    start = below(s.random, rest_);
    for (std::int64_t i = 0; i < replaced; ++i) {
      std::int32_t& id = s.rest[usize(start)];
      ids[usize(i)] = id;  // out of the way until all new ones are taken
      id = static_cast<std::int32_t>(take(s, end));
      if (++start == rest_) start = 0;
    }
    for (const std::int32_t id : ids.first(usize(replaced))) s.taken[usize(id / 64)] &= ~bit(id);
  }
  auto out = std::copy(s.rest.begin() + start, s.rest.end(), ids.begin());
  out = std::copy(s.rest.begin(), s.rest.begin() + start, out);
  std::iota(out, out + sinks_, 0);
  std::iota(out + sinks_, ids.end(), static_cast<std::int32_t>(n - window_));
}

}  // namespace kvferry::replay
