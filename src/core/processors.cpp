// SPDX-License-Identifier: Apache-2.0
#include "core/processors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

namespace kvferry::internal {

#ifdef __linux__

namespace {

void add(const std::vector<int>& cpus, cpu_set_t& set) noexcept {
  for (const int cpu : cpus) CPU_SET(static_cast<std::size_t>(cpu), &set);
}

}  // namespace

int available_processors() noexcept {
  cpu_set_t set;  // hardware_concurrency() ignores taskset and cpusets
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int count_processors(const std::vector<int>& cpus) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  add(cpus, set);
  return CPU_COUNT(&set);
}

Status check_processors(const std::vector<int>& cpus) {
  if (cpus.empty()) return {};
  const auto refused = [&](std::size_t i) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("ContextOptions: cpus[{}] is {}, expected a processor that this process may use", i,
                    cpus[i]));
  };
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    if (cpus[i] < 0 || cpus[i] >= CPU_SETSIZE) return refused(i);
  }
  // A thread's mask may be smaller than what its process may use (engines bind their main thread), and only
  // the kernel knows the latter: it drops what is not allowed from a mask that is set. This thread's own
  // processors stay in that mask, so it does not move.
  cpu_set_t own, usable;
  CPU_ZERO(&own);
  if (sched_getaffinity(0, sizeof own, &own) != 0) {
    return {StatusCode::kUnavailable,
            fmt::format("ContextOptions: cpus: this system has more than {} processors", CPU_SETSIZE)};
  }
  usable = own;
  add(cpus, usable);
  if (sched_setaffinity(0, sizeof usable, &usable) != 0 ||
      sched_getaffinity(0, sizeof usable, &usable) != 0) {
    usable = own;
  }
  static_cast<void>(sched_setaffinity(0, sizeof own, &own));
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    if (!CPU_ISSET(static_cast<std::size_t>(cpus[i]), &usable)) return refused(i);
  }
  return {};
}

void bind_this_thread(const std::vector<int>& cpus) noexcept {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  add(cpus, set);
  static_cast<void>(sched_setaffinity(0, sizeof set, &set));
}

#else

int available_processors() noexcept {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}
int count_processors(const std::vector<int>& cpus) noexcept {
  return static_cast<int>(cpus.size());
}
Status check_processors(const std::vector<int>& cpus) {
  if (cpus.empty()) return {};
  return {StatusCode::kUnavailable, "ContextOptions: cpus: this system cannot bind threads to processors"};
}
void bind_this_thread(const std::vector<int>&) noexcept {}

#endif

}  // namespace kvferry::internal
