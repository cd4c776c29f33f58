// SPDX-License-Identifier: Apache-2.0
//
// parallel_for over claims: helper threads that stay alive, dynamic claims, and a caller that works too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <sys/types.h>

#include "core/context_state.hpp"

namespace kvferry::internal::cpu {

// One job at a time. The caller claims like every helper and returns when all claims are done; it never waits
// for a helper that has claimed nothing, so a helper that is asleep, descheduled or lost in a fork costs
// speed, not correctness.
//
// `remaining_` is the whole hand-over: whoever takes it from r to r-1 owns claim total-r of the job that is
// current at that moment. The job cannot end before that claim is done, so its fields are stable to read
// afterwards.
class ThreadPool : public BackendState {
 public:
  using Function = void (*)(void* closure, std::int64_t claim) noexcept;

  explicit ThreadPool(int threads) noexcept;  // the caller included; helpers start with the first job
  ~ThreadPool() override;

  int threads() const noexcept { return threads_; }
  // Runs function(closure, 0 .. claims-1), each once. Serial when another thread's job is running.
  void run(std::int64_t claims, Function function, void* closure) noexcept;

 private:
  bool work_once() noexcept;  // claims and runs one; false if there is none
  void start_helpers() noexcept;
  void helper_loop() noexcept;

  const int threads_;
  std::mutex job_mutex_;  // held by the running caller

  Function function_ = nullptr;
  void* closure_ = nullptr;
  std::int64_t total_ = 0;
  alignas(64) std::atomic<std::int64_t> remaining_{0};
  alignas(64) std::atomic<std::int64_t> done_{0};

  alignas(64) std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::uint64_t jobs_ = 0;  // guarded by sleep_mutex_: what a sleeper waits for
  bool stop_ = false;       // guarded by sleep_mutex_
  std::vector<std::thread> helpers_;
  pid_t owner_ = 0;
};

ThreadPool& thread_pool(ContextState& state);

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
  if (claims <= 1 || state.threads == 1) {
    for (std::int64_t i = 0; i < claims; ++i) body(i);
    return;
  }
  thread_pool(state).run(
      claims,
      [](void* closure, std::int64_t claim) noexcept {
        (*static_cast<std::remove_reference_t<Body>*>(closure))(claim);
      },
      &body);
}

}  // namespace kvferry::internal::cpu
