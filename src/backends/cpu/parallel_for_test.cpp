// SPDX-License-Identifier: Apache-2.0
//
// The helper threads: every claim once, whatever they do meanwhile.
#include "backends/cpu/parallel_for.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::internal::cpu {
namespace {

using std::chrono::milliseconds;

ContextOptions with_threads(int threads) {
  ContextOptions options;
  options.threads = threads;
  return options;
}

// One job; how many claims ran other than once.
int wrong_claims(const Context& context, std::int64_t claims) {
  std::vector<std::atomic<int>> runs(static_cast<std::size_t>(claims));
  parallel_for(context.state(), claims, [&](std::int64_t i) { ++runs.at(static_cast<std::size_t>(i)); });
  return static_cast<int>(std::count_if(runs.begin(), runs.end(), [](const auto& n) { return n != 1; }));
}

// A job that lets helpers come: each claim sleeps until `threads` different threads have one.
std::vector<pid_t> threads_of_a_job(const Context& context, int threads) {
  std::vector<pid_t> ids(static_cast<std::size_t>(threads));
  std::atomic<int> started = 0;
  parallel_for(context.state(), threads, [&](std::int64_t i) {
    ids[static_cast<std::size_t>(i)] = static_cast<pid_t>(syscall(SYS_gettid));
    ++started;
    while (started < threads) std::this_thread::yield();
  });
  return ids;
}

TEST(ParallelFor, RunsEachClaimOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    const Context context(with_threads(threads));
    for (const std::int64_t claims : {0, 1, 2, 3, 7, 8, 9, 64, 10000})
      for (int repeat = 0; repeat < 20; ++repeat)
        EXPECT_EQ(wrong_claims(context, claims), 0) << threads << " threads, " << claims << " claims";
  }
}

TEST(ParallelFor, HelpersTakePart) {
  const Context context(with_threads(4));
  for (const auto pause : {0, 0, 20}) {  // spinning, asleep
    std::this_thread::sleep_for(milliseconds(pause));
    std::vector<pid_t> ids = threads_of_a_job(context, 4);
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
  }
}

TEST(ParallelFor, NestedJobRunsInItsClaim) {
  const Context context(with_threads(3));
  std::atomic<int> wrong = 0;
  for (int repeat = 0; repeat < 50; ++repeat)
    parallel_for(context.state(), 6, [&](std::int64_t) { wrong += wrong_claims(context, 10); });
  EXPECT_EQ(wrong, 0);
}

TEST(ParallelFor, ManyCallersAtOnce) {
  const Context context(with_threads(3));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  callers.reserve(8);
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 300; ++i) wrong += wrong_claims(context, 1 + i % 40);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ParallelFor, EndsWhateverTheHelpersDo) {
  for (const auto pause : {0, 0, 0, 1, 20}) {  // working, spinning, falling asleep, asleep
    for (const int claims : {2, 50}) {
      const Context context(with_threads(5));
      EXPECT_EQ(wrong_claims(context, claims), 0);
      std::this_thread::sleep_for(milliseconds(pause));
    }
  }
}

TEST(ParallelFor, HelpersWithoutWorkUseNoProcessor) {
  const Context context(with_threads(4));
  threads_of_a_job(context, 4);
  std::this_thread::sleep_for(milliseconds(50));  // they fall asleep
  const std::clock_t before = std::clock();       // of the process
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.02);
}

// A helper that does not get a processor: stopped in a signal handler.
std::atomic<int> stopped = 0;
std::atomic<bool> released = false;
void stop_here(int) {
  ++stopped;
  const timespec nap{0, 1'000'000};
  while (!released) nanosleep(&nap, nullptr);
  --stopped;
}

TEST(ParallelFor, DoesNotWaitForAHelperThatHasNoClaim) {
  struct sigaction action {};
  action.sa_handler = stop_here;
  ASSERT_EQ(sigaction(SIGUSR2, &action, nullptr), 0);
  const Context context(with_threads(2));
  for (const auto pause : {0, 20}) {  // spinning, asleep
    const auto self = static_cast<pid_t>(syscall(SYS_gettid));
    std::vector<pid_t> ids = threads_of_a_job(context, 2);
    const pid_t helper = ids[0] == self ? ids[1] : ids[0];
    std::this_thread::sleep_for(milliseconds(pause));
    released = false;
    ASSERT_EQ(syscall(SYS_tgkill, getpid(), helper, SIGUSR2), 0);
    while (stopped == 0) std::this_thread::yield();
    for (int i = 0; i < 20; ++i) EXPECT_EQ(wrong_claims(context, 30), 0);  // or it would hang here
    EXPECT_EQ(stopped, 1);
    released = true;
    while (stopped != 0) std::this_thread::yield();
  }
}

TEST(ParallelFor, HelpersRunWhereTheyMay) {
  cpu_set_t own;
  ASSERT_EQ(sched_getaffinity(0, sizeof own, &own), 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(static_cast<std::size_t>(last), &own)) --last;
  ContextOptions options = with_threads(3);
  options.cpus = {last};
  const Context context(std::move(options));
  EXPECT_EQ(wrong_claims(context, 100), 0);
  cpu_set_t now;
  for (const pid_t id : threads_of_a_job(context, 3)) {
    ASSERT_EQ(sched_getaffinity(id, sizeof now, &now), 0);
    if (id == static_cast<pid_t>(syscall(SYS_gettid))) {
      EXPECT_TRUE(CPU_EQUAL(&now, &own));  // the caller is not bound
    } else {
      EXPECT_EQ(CPU_COUNT(&now), 1);
      EXPECT_TRUE(CPU_ISSET(static_cast<std::size_t>(last), &now));
    }
  }
}

TEST(ParallelFor, MoreThreadsThanProcessors) {
  cpu_set_t own, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof own, &own), 0);
  int first = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(first), &own)) ++first;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(first), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(Context().threads(), 1);
  {
    const Context context(with_threads(6));
    for (int i = 0; i < 50; ++i) EXPECT_EQ(wrong_claims(context, 40), 0);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof own, &own), 0);
}

TEST(ForkedParallelFor, WorksWhereNoThreadCanBeStarted) {
  const pid_t child = fork();
  if (child == 0) {
    // A limit on threads binds only users without privileges.
    const rlimit none{1, 1};
    if (setrlimit(RLIMIT_NPROC, &none) != 0 || (geteuid() == 0 && setuid(65534) != 0)) _exit(77);
    try {
      std::thread([] {}).join();
      _exit(77);
    } catch (const std::system_error&) {
    }
    const Context context(with_threads(4));
    for (int i = 0; i < 3; ++i) {
      if (wrong_claims(context, 40) != 0) _exit(1);
    }
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "threads cannot be limited here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace kvferry::internal::cpu
