// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/parallel_for.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>

#include "backends/cpu/tuning.hpp"
#include "core/checked_math.hpp"
#include "core/processors.hpp"

namespace kvferry::internal::cpu {
namespace {

// Spinning catches the next layer's call of a burst; longer would steal a shared core from the caller's own
// work. So does a helper that was woken on the caller's core, unless it gives way now and then.
constexpr int kSpins = 2000;
constexpr int kSpinsBetweenYields = 64;

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads, const std::vector<int>& cpus) noexcept : threads_(threads), cpus_(cpus) {}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_seq_cst);
  jobs_.fetch_add(1, std::memory_order_seq_cst);
  jobs_.notify_all();
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
  if (busy_.exchange(true, std::memory_order_acquire)) {
    for (std::int64_t i = 0; i < claims; ++i) function(closure, i);
    return;
  }
  if (helpers_.empty() && threads_ > 1) start_helpers();
  function_ = function;
  closure_ = closure;
  total_ = claims;
  done_.store(0, std::memory_order_relaxed);
  remaining_.store(claims, std::memory_order_seq_cst);
  if (const int sleepers = sleepers_.load(std::memory_order_seq_cst); sleepers > 0) {
    jobs_.fetch_add(1, std::memory_order_seq_cst);
    if (claims > sleepers) {
      jobs_.notify_all();
    } else {  // the caller takes one claim itself
      for (std::int64_t i = 1; i < claims; ++i) jobs_.notify_one();
    }
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
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::helper_loop() noexcept {
  bind_this_thread(cpus_);
  for (;;) {
    while (work_once()) {
    }
    for (int spins = 1; spins <= kSpins && remaining_.load(std::memory_order_relaxed) <= 0; ++spins) {
      spins % kSpinsBetweenYields == 0 ? std::this_thread::yield() : pause();
    }
    if (remaining_.load(std::memory_order_relaxed) > 0) continue;
    // Announce, then look again: a caller that published before seeing the announcement has left work behind.
    // No lock: a caller must not wait for a helper that was descheduled here.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const int seen = jobs_.load(std::memory_order_seq_cst);
    const bool stop = stop_.load(std::memory_order_seq_cst);
    if (!stop && remaining_.load(std::memory_order_seq_cst) <= 0) jobs_.wait(seen, std::memory_order_seq_cst);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    if (stop) return;
  }
}

ThreadPool* thread_pool(ContextState& state) noexcept {
  ProcessState* const here = state.here();
  if (here == nullptr) return nullptr;
  const std::lock_guard lock(here->backend_mutex);
  if (here->backend == nullptr)
    here->backend.reset(new (std::nothrow) ThreadPool(state.threads, state.options.cpus));
  return static_cast<ThreadPool*>(here->backend.get());
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
