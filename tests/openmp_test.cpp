// SPDX-License-Identifier: Apache-2.0
//
// Calls beside and inside OpenMP's parallel regions.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "example_calls.hpp"
#include "process_threads.hpp"

namespace kvferry {
namespace {

constexpr int kTeam = 4;
constexpr std::int64_t kWidth = 32 << 10;  // 2 x 2 MiB a call

Context with_threads(int threads) {
  ContextOptions options;
  options.threads = threads;
  return Context(options);
}

bool call(GatherExample& example, const Context& context) {
  example.clear();
  return gather_pa_kv_cache(example.args, context).ok() && example.right();
}

// `body(thread)` in each of a team's threads; how many returned false.
template <class Body>
int failures_in_a_team(Body body) {
  std::atomic<int> failures = 0, members = 0;
#pragma omp parallel num_threads(kTeam)
  {
    const int member = members++;  // <omp.h> would know, which clang-tidy's compiler does not have
    if (!body(member)) ++failures;
  }
  return members == kTeam ? failures.load() : -1;
}

struct OpenMp : ::testing::Test {
  OpenMp() {
    for (int i = 0; i < kTeam; ++i) examples.push_back(std::make_unique<GatherExample>(kWidth, 16));
    EXPECT_EQ(failures_in_a_team([](int) { return true; }), 0);  // OpenMP's own threads exist from here on
  }
  GatherExample& mine(int thread) { return *examples[static_cast<std::size_t>(thread)]; }
  std::vector<std::unique_ptr<GatherExample>> examples;
};

TEST_F(OpenMp, ContextsOfOneThreadInsideARegionStartNoThread) {
  std::vector<Context> contexts;
  contexts.reserve(kTeam);
  for (int i = 0; i < kTeam; ++i) contexts.push_back(with_threads(1));
  const int before = threads_of_this_process();
  for (int repeat = 0; repeat < 10; ++repeat) {
    EXPECT_EQ(failures_in_a_team(
                  [&](int thread) { return call(mine(thread), contexts[static_cast<std::size_t>(thread)]); }),
              0);
  }
  EXPECT_EQ(threads_of_this_process(), before);
}

TEST_F(OpenMp, SharedContextInsideARegionHasOneSetOfHelpers) {
  const Context context = with_threads(3);
  const int before = threads_of_this_process();
  for (int repeat = 0; repeat < 10; ++repeat)
    EXPECT_EQ(failures_in_a_team([&](int thread) { return call(mine(thread), context); }), 0);
  EXPECT_EQ(threads_of_this_process(), before + 2);
}

TEST_F(OpenMp, PlansRunAtOnceThroughASharedContext) {
  const Context context = with_threads(3);
  const Plan planned = plan(mine(0).args, context).value();
  std::vector<std::vector<std::byte>> memory(
      kTeam, std::vector<std::byte>(static_cast<std::size_t>(planned.workspace_bytes())));
  for (int repeat = 0; repeat < 20; ++repeat) {
    EXPECT_EQ(failures_in_a_team([&](int thread) {
                GatherExample& example = mine(thread);
                example.clear();
                GatherPaKvCacheBuffers pointers = buffers(example.args);
                std::vector<std::byte>& workspace = memory[static_cast<std::size_t>(thread)];
                pointers.workspace = {workspace.data(), static_cast<std::int64_t>(workspace.size())};
                return run(planned, pointers, context).ok() && example.right();
              }),
              0);
  }
}

TEST_F(OpenMp, CallsBetweenRegionsWhileItsThreadsSpin) {
  const Context context = with_threads(2);
  for (int repeat = 0; repeat < 20; ++repeat) {
    EXPECT_EQ(failures_in_a_team([](int) { return true; }), 0);
    EXPECT_TRUE(call(mine(0), context));
  }
}

}  // namespace
}  // namespace kvferry
