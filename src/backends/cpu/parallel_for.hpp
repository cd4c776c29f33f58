// SPDX-License-Identifier: Apache-2.0
//
// parallel_for over claims: helper threads that stay alive, dynamic claims, and a caller that works too.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/context_state.hpp"

namespace kvferry::internal::cpu {

// One job at a time. The caller claims like every helper and returns when all claims are done; it never waits
// for a helper that has claimed nothing, so a helper that is asleep, descheduled or could not be started
// costs speed, not correctness. REQUIRES that it is used by the process that made it (ContextState::here()).
//
// `remaining_` is the whole hand-over: whoever takes it from r to r-1 owns claim total-r of the job that is
// current at that moment. The job cannot end before that claim is done, so its fields are stable to read
// afterwards.
class ThreadPool : public BackendState {
 public:
  using Function = void (*)(void* closure, std::int64_t claim) noexcept;

  // `threads` includes the caller; helpers start with the first job and run on `cpus` (empty: where their
  // starter may), which must outlive the pool.
  ThreadPool(int threads, const std::vector<int>& cpus) noexcept;
  ~ThreadPool() override;

  // Runs function(closure, 0 .. claims-1), each once. Serial when another job is running: another thread's,
  // or the one that this call is part of.
  void run(std::int64_t claims, Function function, void* closure) noexcept;

 private:
  bool work_once() noexcept;  // claims and runs one; false if there is none
  void start_helpers() noexcept;
  void helper_loop() noexcept;

  const int threads_;
  const std::vector<int>& cpus_;
  std::atomic<bool> busy_{false};  // with a job, whose caller owns the fields below

  Function function_ = nullptr;
  void* closure_ = nullptr;
  std::int64_t total_ = 0;
  alignas(64) std::atomic<std::int64_t> remaining_{0};
  alignas(64) std::atomic<std::int64_t> done_{0};

  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<int> jobs_{0};  // what a sleeper waits for: it changes when sleepers are to look again
  std::atomic<bool> stop_{false};
  std::vector<std::thread> helpers_;
};

// Of this context in this process; null when there is no memory for one.
ThreadPool* thread_pool(ContextState& state) noexcept;

// Splits work into claims of about equal bytes. Units are what it can be split at: tokens, pairs, bytes. One
// claim below the parallel threshold.
struct Split {
  std::int64_t claims = 0;
  std::int64_t units_per_claim = 0;
  std::int64_t bytes = 0;  // all of it; saturates
};
Split split(std::int64_t units, std::int64_t bytes_per_unit, int threads) noexcept;

// "units  at most 4096 rows in 16 claims of 256 over 2 threads": a line of Plan::describe().
std::string describe_units(std::int64_t units, std::int64_t bytes_per_unit, int threads, const char* name);

template <class Body>
void parallel_for(ContextState& state, std::int64_t claims, Body&& body) noexcept {
  ThreadPool* const pool = claims <= 1 || state.threads == 1 ? nullptr : thread_pool(state);
  if (pool == nullptr) {
    for (std::int64_t i = 0; i < claims; ++i) body(i);
    return;
  }
  pool->run(
      claims,
      [](void* closure, std::int64_t claim) noexcept {
        (*static_cast<std::remove_reference_t<Body>*>(closure))(claim);
      },
      &body);
}

}  // namespace kvferry::internal::cpu
