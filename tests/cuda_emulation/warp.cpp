// SPDX-License-Identifier: Apache-2.0
//
// What the lanes of a warp do together.
#include <bit>

#include "tests/cuda_emulation/machine.hpp"
#include "tests/cuda_emulation/sanitizers.hpp"

namespace kvferry::emulation {
namespace {

template <class F>
void for_each_lane(std::uint32_t mask, F f) {
  for (; mask != 0; mask &= mask - 1) f(static_cast<std::uint32_t>(std::countr_zero(mask)));
}

}  // namespace

std::uint64_t Machine::warp(WarpOperation operation, std::uint32_t mask, std::uint64_t value,
                            std::uint32_t source, Location at) {
  const Unwatched unwatched;
  const std::uint32_t t = running(), lane = t % kLanes;
  if ((mask >> lane & 1) == 0) fail(FindingKind::kWarpMask, at, "is not in the mask of its own operation");
  Warp& warp = warps_[t / kLanes];
  if (warp.waiting == 0) {
    warp.alike = true;
    warp.operation = operation;
    warp.mask = mask;
  }
  warp.alike = warp.alike && operation == warp.operation && mask == warp.mask;
  warp.waiting |= 1U << lane;
  warp.operations[lane] = operation;
  warp.masks[lane] = mask;
  warp.sources[lane] = source;
  warp.values[lane] = value;
  states_[t] = State::kWarp;
  places_[t] = at;
  if (thread_sanitizer()) tsan_release(tsan_lanes_[t]);
  if (!try_warp(t)) suspend(State::kWarp, at);
  if (thread_sanitizer()) tsan_acquire(threads_[t].tsan_key);
  return warp.values[lane];
}

// None of `lanes`, which wait, waits for somebody who does not come.
void Machine::check_masks(std::uint32_t first, std::uint32_t lanes) {
  const Warp& warp = warps_[first / kLanes];
  for_each_lane(lanes, [&](std::uint32_t lane) {
    const std::uint32_t missing = warp.masks[lane] & warp.gone;
    if (missing == 0) return;
    subject_ = first + lane;
    const auto other = static_cast<std::uint32_t>(std::countr_zero(missing));
    fail(FindingKind::kWarpMask, places_[subject_],
         "names lane " + std::to_string(other) + ", which " +
             (first + other < job_.threads ? "has returned" : "does not exist"));
  });
}

// What the operation gives to its lanes.
void Machine::exchange(Warp& warp, std::uint32_t first, WarpOperation operation, std::uint32_t mask) {
  const std::array<std::uint64_t, kLanes> given = warp.values;
  std::uint64_t set = 0;
  switch (operation) {
    case WarpOperation::kSync:
      return;
    case WarpOperation::kShuffle:
      for_each_lane(mask, [&](std::uint32_t lane) {
        const std::uint32_t source = warp.sources[lane];
        if ((mask >> source & 1) == 0) {
          subject_ = first + lane;
          fail(FindingKind::kWarpMask, places_[subject_],
               "reads lane " + std::to_string(source) + ", which is not in the mask");
        }
        warp.values[lane] = given[source];
      });
      return;
    case WarpOperation::kBallot:
      for_each_lane(mask, [&](std::uint32_t lane) { set |= given[lane] << lane; });
      for_each_lane(mask, [&](std::uint32_t lane) { warp.values[lane] = set; });
      return;
    case WarpOperation::kMatch:
      for_each_lane(mask, [&](std::uint32_t lane) {
        set = 0;
        for_each_lane(
            mask, [&](std::uint32_t other) { set |= std::uint64_t{given[other] == given[lane]} << other; });
        warp.values[lane] = set;
      });
      return;
  }
}

// Completes the operation that `thread` waits for if all lanes of its mask are there.
bool Machine::try_warp(std::uint32_t thread) {
  Warp& warp = warps_[thread / kLanes];
  const std::uint32_t me = thread % kLanes, first = thread - me, mask = warp.masks[me];
  if ((mask & warp.gone) != 0) check_masks(first, 1U << me);
  if ((mask & ~warp.waiting) != 0) return false;
  const WarpOperation operation = warp.operations[me];
  if (!warp.alike) {
    bool all = true;
    for_each_lane(mask, [&](std::uint32_t lane) {
      all = all && warp.operations[lane] == operation && warp.masks[lane] == mask;
    });
    if (!all) return false;
  }
  exchange(warp, first, operation, mask);
  checker_->join_lanes(first, mask);
  if (thread_sanitizer()) {  // collected from every lane, published once
    void* const key = &tsan_keys_.emplace_back();
    for_each_lane(mask, [&](std::uint32_t lane) { tsan_acquire(tsan_lanes_[first + lane]); });
    tsan_release(key);
    for_each_lane(mask, [&](std::uint32_t lane) { threads_[first + lane].tsan_key = key; });
  }
  warp.waiting &= ~mask;
  states_[thread] = State::kReady;
  for_each_lane(mask & ~(1U << me), [&](std::uint32_t lane) { make_ready(first + lane); });
  return true;
}

}  // namespace kvferry::emulation
