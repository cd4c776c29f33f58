// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "tests/cuda_emulation/machine.hpp"
#include "tests/cuda_emulation/sanitizers.hpp"

namespace kvferry::emulation {

constinit thread_local Machine* Machine::busy_ = nullptr;

Machine& Machine::here() {
  static thread_local Machine machine;
  return machine;
}

void Machine::fail(FindingKind kind, Location at, const std::string& text) {
  const std::uint32_t thread = running() < Fibres::kMost ? running() : subject_;
  cancelled_ = true;
  report_.finding = {kind, block_, thread,
                     std::string(to_string(kind)) + ": " + to_string(at) + ": block " +
                         std::to_string(block_) + " thread " + std::to_string(thread) + " " + text};
  throw Cancelled();
}

// ---- the launch

Report Machine::launch(const Job& job, std::uint32_t blocks, const LaunchOptions& options) {
  job_ = job;
  blocks_ = blocks;
  options_ = options;
  report_ = {};
  cancelled_ = false;
  random_ = harness::mix(options.seed);
  accesses_ = 0;
  if (checker_->worn_out()) {
    checker_ = std::make_unique<Checker>(*this);
    kept_shared_.clear();
  }
  checker_->start_launch(job.threads, options.seed);
  states_.assign(job.threads, State::kDone);
  places_.assign(job.threads, {});
  threads_.assign(job.threads, {});
  warps_.assign((job.threads + kLanes - 1) / kLanes, {});
  busy_ = this;

  std::vector<std::uint32_t> order(blocks);
  for (std::uint32_t b = 0; b < blocks; ++b) order[b] = options.order == Order::kReverse ? blocks - 1 - b : b;
  if (options.order == Order::kRandom) {
    for (std::uint32_t b = blocks; b > 1; --b) std::swap(order[b - 1], order[random() % b]);
  }
  std::vector<std::shared_ptr<void>> kept;  // ThreadSanitizer must not see two blocks share an address
  shared_ = kept_shared_[job.make_shared];
  if (shared_ == nullptr) shared_ = job.make_shared();
  for (const std::uint32_t b : order) {
    block_ = b;
    if (thread_sanitizer()) {
      kept.push_back(shared_);
      shared_ = job.make_shared();
    }
    run_block();
    if (cancelled_) break;
  }
  tsan_acquire(&tsan_end_);
  // A launch that was thrown away may have left anything.
  kept_shared_[job.make_shared] = cancelled_ || thread_sanitizer() ? nullptr : shared_;
  shared_.reset();
  checker_->end_launch();
  busy_ = nullptr;
  tsan_keys_.clear();
  return std::move(report_);
}

void Machine::run_block() {
  const auto new_key = [this] { return static_cast<void*>(&tsan_keys_.emplace_back()); };
  if (thread_sanitizer()) {
    fibres_.rename(job_.threads, ("block " + std::to_string(block_)).c_str());
    for (void*& key : tsan_barriers_) key = new_key();
    tsan_lanes_.resize(job_.threads);
    for (void*& key : tsan_lanes_) key = new_key();
  }
  tsan_release(&tsan_start_);
  checker_->start_block();
  copies_.clear();
  ready_.resize(job_.threads);
  first_ready_ = ready_count_ = 0;
  at_barrier_ = 0;
  live_ = job_.threads;
  for (Thread& thread : threads_) thread.group = 0;
  for (Warp& warp : warps_) warp.waiting = warp.gone = 0;
  if (job_.threads % kLanes != 0) warps_.back().gone = internal::cuda::kAllLanes << job_.threads % kLanes;
  make_all_ready();
  try {
    run_threads();
  } catch (const Cancelled&) {
  }
  if (!cancelled_) return;
  // Whoever is inside the kernel unwinds.
  for (std::uint32_t t = 0; t < job_.threads; ++t) {
    while (states_[t] != State::kDone) fibres_.resume(t);
  }
}

void Machine::run_threads() {
  while (live_ > 0 && !cancelled_) {
    if (!copies_.empty() && random() % 8 == 0) complete_a_bulk_copy();
    if (ready_count_ == 0) {
      if (at_barrier_ == live_) {
        release_barrier();
      } else if (!complete_a_bulk_copy()) {
        deadlock();
      }
      continue;
    }
    const std::uint32_t t = fibres_.resume(take_ready_thread());
    if (states_[t] == State::kDone && !cancelled_) {
      --live_;
      warps_[t / kLanes].gone |= 1U << t % kLanes;
      check_masks(t - t % kLanes, warps_[t / kLanes].waiting);
    }
  }
}

// Whoever goes on.
std::uint32_t Machine::take_ready_thread() {
  if (options_.order == Order::kRandom)
    std::swap(ready(0), ready(static_cast<std::uint32_t>(random() % ready_count_)));
  const std::uint32_t t = ready(0);
  if (++first_ready_ == job_.threads) first_ready_ = 0;
  --ready_count_;
  ++report_.switches;
  checker_->act_as(t);
  if (options_.order != Order::kRandom && ready_count_ != 0) fibres_.expect(ready(0));
  return t;
}

// One CUDA thread of one block.
void Machine::turn(void* machine, std::uint32_t thread) {
  auto& self = *static_cast<Machine*>(machine);
  tsan_acquire(&self.tsan_start_);
  try {
    if (!self.cancelled_) self.job_.run(self, thread, self.shared_.get(), self.job_.params);
  } catch (const Cancelled&) {
  }
  tsan_release(&self.tsan_end_);
  self.states_[thread] = State::kDone;
}

void Machine::make_all_ready() {
  for (std::uint32_t i = 0; i < job_.threads; ++i)
    make_ready(options_.order == Order::kReverse ? job_.threads - 1 - i : i);
}

// The next of those that could run; the scheduler, when it has more to decide.
std::uint32_t Machine::take_ready() {
  return ready_count_ == 0 || !copies_.empty() ? Fibres::kMost : take_ready_thread();
}

void Machine::give_way() {
  make_ready(running());
  suspend(State::kReady, {});
}

// ---- barriers

void Machine::sync(Location at) {
  void* const key = tsan_barriers_[barrier_turn_];
  tsan_release(key);
  ++at_barrier_;
  suspend(State::kBarrier, at);
  tsan_acquire(key);
}

void Machine::release_barrier() {
  std::uint32_t first = 0;
  while (states_[first] != State::kBarrier) ++first;
  const Location place = places_[first];
  for (std::uint32_t t = 0; t < job_.threads; ++t) {
    const Location other = places_[t];
    subject_ = first;
    if (states_[t] == State::kDone) {
      fail(FindingKind::kDivergentBarrier, place,
           "waits for thread " + std::to_string(t) + ", which has returned without this barrier");
    }
    if (other.line != place.line || (other.file != place.file && std::strcmp(other.file, place.file) != 0)) {
      fail(FindingKind::kDivergentBarrier, place,
           "meets thread " + std::to_string(t) + " at another barrier, " + to_string(other));
    }
  }
  checker_->barrier();
  barrier_turn_ ^= 1;
  at_barrier_ = 0;
  make_all_ready();
}

void Machine::deadlock() {
  std::string who;
  std::vector<std::string> seen;
  for (std::uint32_t t = 0; t < job_.threads; ++t) {
    const State state = states_[t];
    if (state == State::kDone) continue;
    const char* what = state == State::kBarrier ? "a barrier"
                       : state == State::kWarp  ? "its warp"
                                                : "an mbarrier";
    const std::string place = std::string(what) + " at " + to_string(places_[t]);
    if (std::find(seen.begin(), seen.end(), place) != seen.end()) continue;
    if (seen.empty()) subject_ = t;
    who += (seen.empty() ? "waits for " : "; thread " + std::to_string(t) + " waits for ") + place;
    seen.push_back(place);
  }
  fail(FindingKind::kDeadlock, places_[subject_], who);
}

}  // namespace kvferry::emulation
