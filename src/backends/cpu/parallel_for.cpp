// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/parallel_for.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <system_error>

#include "backends/cpu/tuning.hpp"
#include "core/checked_math.hpp"

namespace kvferry::internal::cpu {
namespace {

// Spinning catches the next layer's call of a burst; longer would steal a shared core from the caller's own
// work.
constexpr int kSpins = 2000;

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) noexcept : threads_(threads), owner_(getpid()) {}

ThreadPool::~ThreadPool() {
  if (getpid() != owner_) {  // a forked child has the objects but not the threads
    for (std::thread& helper : helpers_) helper.detach();
    return;
  }
  {
    const std::lock_guard lock(sleep_mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::start_helpers() noexcept {
  try {
    helpers_.reserve(static_cast<std::size_t>(threads_ - 1));
    for (int i = 1; i < threads_; ++i) helpers_.emplace_back([this] { helper_loop(); });
  } catch (const std::exception&) {
    // No thread or no memory for one: the caller and the helpers that did start do the work.
  }
}

bool ThreadPool::work_once() noexcept {
  std::int64_t r = remaining_.load(std::memory_order_acquire);
  while (r > 0) {
    if (remaining_.compare_exchange_weak(r, r - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      function_(closure_, total_ - r);
      done_.fetch_add(1, std::memory_order_acq_rel);
      return true;
    }
  }
  return false;
}

void ThreadPool::run(std::int64_t claims, Function function, void* closure) noexcept {
  const std::unique_lock lock(job_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    for (std::int64_t i = 0; i < claims; ++i) function(closure, i);
    return;
  }
  if (helpers_.empty() && threads_ > 1) start_helpers();
  function_ = function;
  closure_ = closure;
  total_ = claims;
  done_.store(0, std::memory_order_relaxed);
  remaining_.store(claims, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    {
      const std::lock_guard sleep_lock(sleep_mutex_);
      ++jobs_;
    }
    wake_.notify_all();
  }
  while (work_once()) {
  }
  for (int spins = 0; done_.load(std::memory_order_acquire) != claims; ++spins) {
    if (spins < kSpins) {
      pause();
    } else {
      std::this_thread::yield();  // a helper is in its last claim, perhaps on our core
    }
  }
}

void ThreadPool::helper_loop() noexcept {
  for (;;) {
    while (work_once()) {
    }
    for (int spins = 0; spins < kSpins && remaining_.load(std::memory_order_relaxed) <= 0; ++spins) pause();
    if (remaining_.load(std::memory_order_relaxed) > 0) continue;
    std::unique_lock lock(sleep_mutex_);
    if (stop_) return;
    // Announce, then look again: a caller that published before seeing the announcement has left work behind.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const std::uint64_t seen = jobs_;
    if (remaining_.load(std::memory_order_seq_cst) <= 0) {
      wake_.wait(lock, [&] { return stop_ || jobs_ != seen; });
    }
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    if (stop_) return;
  }
}

ThreadPool& thread_pool(ContextState& state) {
  const std::lock_guard lock(state.backend_mutex);
  if (state.backend == nullptr) state.backend = std::make_unique<ThreadPool>(state.threads);
  return static_cast<ThreadPool&>(*state.backend);
}

Split split(std::int64_t units, std::int64_t bytes_per_unit, int threads) noexcept {
  if (units <= 0) return {};
  const Checked product = Checked(units) * bytes_per_unit;
  const std::int64_t bytes = product.overflow ? kInt64Max : product.value;
  if (threads <= 1 || bytes < kTuning.parallel_bytes) return {1, units, bytes};
  const std::int64_t per_claim = std::clamp(bytes / (std::int64_t{threads} * kTuning.claims_per_thread),
                                            kTuning.min_claim_bytes, kTuning.claim_bytes);
  const std::int64_t claims =
      std::min({units, std::max<std::int64_t>(1, bytes / per_claim), kTuning.max_claims});
  const std::int64_t units_per_claim = ceil_div(units, claims);
  return {ceil_div(units, units_per_claim), units_per_claim, bytes};
}

std::string describe_units(std::int64_t units, std::int64_t bytes_per_unit, int threads, const char* name) {
  const Split s = split(units, bytes_per_unit, threads);
  return fmt::format("  units           at most {} {} in {} claims of {} over {} threads\n", units, name,
                     s.claims, s.units_per_claim, threads);
}

}  // namespace kvferry::internal::cpu
