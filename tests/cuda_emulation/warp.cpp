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
  const std::uint32_t t = running();
  if ((mask >> t % 32 & 1) == 0) fail(FindingKind::kWarpMask, at, "is not in the mask of its own operation");
  Thread& me = threads_[t];
  me.state = State::kWarp;
  me.operation = operation;
  me.mask = mask;
  me.value = value;
  me.source = source;
  me.at = at;
  if (thread_sanitizer()) tsan_release(tsan_lanes_[t]);
  if (!try_warp(t)) suspend(State::kWarp, at);
  tsan_acquire(me.tsan_key);
  return me.value;
}

void Machine::check_mask(std::uint32_t thread) {
  const std::uint32_t first = thread & ~31U;
  subject_ = thread;
  for_each_lane(threads_[thread].mask, [&](std::uint32_t lane) {
    const bool exists = first + lane < job_.threads;
    if (exists && threads_[first + lane].state != State::kDone) return;
    fail(FindingKind::kWarpMask, threads_[thread].at,
         "names lane " + std::to_string(lane) + ", which " + (exists ? "has returned" : "does not exist"));
  });
}

// What the operation gives to `thread`, whose warp is complete.
std::uint64_t Machine::warp_value(std::uint32_t thread) {
  const Thread& me = threads_[thread];
  const std::uint32_t first = thread & ~31U;
  std::uint64_t lanes = 0;
  switch (me.operation) {
    case WarpOperation::kSync:
      return 0;
    case WarpOperation::kShuffle:
      if ((me.mask >> me.source & 1) == 0) {
        subject_ = thread;
        fail(FindingKind::kWarpMask, me.at,
             "reads lane " + std::to_string(me.source) + ", which is not in the mask");
      }
      return threads_[first + me.source].value;
    case WarpOperation::kBallot:
      for_each_lane(me.mask, [&](std::uint32_t lane) { lanes |= threads_[first + lane].value << lane; });
      return lanes;
    case WarpOperation::kMatch:
      for_each_lane(me.mask, [&](std::uint32_t lane) {
        lanes |= std::uint64_t{threads_[first + lane].value == me.value} << lane;
      });
      return lanes;
  }
  return 0;
}

// Completes the operation that `thread` waits for if all lanes of its mask are there.
bool Machine::try_warp(std::uint32_t thread) {
  check_mask(thread);
  const Thread& me = threads_[thread];
  const std::uint32_t first = thread & ~31U, mask = me.mask;
  bool all = true;
  for_each_lane(mask, [&](std::uint32_t lane) {
    const Thread& other = threads_[first + lane];
    all = all && other.state == State::kWarp && other.operation == me.operation && other.mask == mask;
  });
  if (!all) return false;
  std::uint64_t values[32] = {};
  for_each_lane(mask, [&](std::uint32_t lane) { values[lane] = warp_value(first + lane); });
  checker_->join_lanes(first, mask);
  void* key = nullptr;
  if (thread_sanitizer()) {  // collected from every lane, published once
    key = &tsan_keys_.emplace_back();
    for_each_lane(mask, [&](std::uint32_t lane) { tsan_acquire(tsan_lanes_[first + lane]); });
    tsan_release(key);
  }
  for_each_lane(mask, [&](std::uint32_t lane) {
    Thread& other = threads_[first + lane];
    other.value = values[lane];
    other.tsan_key = key;
    if (first + lane == thread) {
      other.state = State::kReady;
    } else {
      make_ready(first + lane);
    }
  });
  return true;
}

}  // namespace kvferry::emulation
