// SPDX-License-Identifier: Apache-2.0
//
// fork() at any moment: contexts work in the child, streams say that they do not.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "example_calls.hpp"
#include "process_threads.hpp"

namespace kvferry {
namespace {

Context with_threads(int threads, Stream* stream = nullptr) {
  ContextOptions options;
  options.threads = threads;
  options.stream = stream;
  return Context(options);
}

// What `body` returns in a child process; -1 if that hangs (10 s) or dies. With `end`, the child ends as a
// program does, with destructors of static objects.
template <class Body>
int in_child(Body body, bool end = false) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    const int result = body();
    if (end) std::exit(result);
    _exit(result);
  }
  int status = -1;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

constexpr std::int64_t kWidth = 64 << 10;  // 16 MiB a call

TEST(Fork, ChildStartsItsOwnHelpers) {
  const Context context = with_threads(3);
  GatherExample example(kWidth, 32);
  ASSERT_TRUE(gather_pa_kv_cache(example.args, context).ok());
  example.clear();
  const auto child = [&] {
    const int before = threads_of_this_process();
    for (int i = 0; i < 20; ++i) {
      example.clear();
      if (!gather_pa_kv_cache(example.args, context).ok() || !example.right()) return 1;
    }
    return threads_of_this_process() == before + 2 ? 0 : 2;
  };
  EXPECT_EQ(in_child(child), 0);
  EXPECT_EQ(in_child(child, true), 0);
  EXPECT_EQ(in_child([&] { return in_child(child); }), 0);  // and so do its children
  EXPECT_TRUE(example.untouched());
  EXPECT_TRUE(gather_pa_kv_cache(example.args, context).ok());  // the parent has its own still
  EXPECT_TRUE(example.right());
}

TEST(Fork, ContextsEndInTheChild) {
  auto context = std::make_unique<Context>(with_threads(3));
  GatherExample example(kWidth, 32);
  ASSERT_TRUE(gather_pa_kv_cache(example.args, *context).ok());
  EXPECT_EQ(in_child([&] { return context.reset(), 0; }), 0);
  EXPECT_EQ(in_child([&] {
              const bool ok = gather_pa_kv_cache(example.args, *context).ok();
              context.reset();
              return ok && threads_of_this_process() == 1 ? 0 : 1;
            }),
            0);
}

TEST(Fork, WhileAnotherThreadIsInACall) {
  // Its locks stay locked in the child: of the helpers, of the workspace, of the stream.
  const Context context = with_threads(3);
  GatherExample busy(kWidth, 32);
  GatherExample example(kWidth, 16);
  std::atomic<bool> stop = false;
  std::atomic<int> calls = 0, wrong = 0;
  std::thread caller([&] {
    for (; !stop; ++calls) wrong += gather_pa_kv_cache(busy.args, context).ok() ? 0 : 1;
  });
  while (calls == 0) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(in_child([&] {
                example.clear();
                return gather_pa_kv_cache(example.args, context).ok() && example.right() ? 0 : 1;
              }),
              0);
  }
  stop = true;
  caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Fork, StreamStaysWithTheParent) {
  auto stream = std::make_unique<Stream>();
  std::optional<Context> context = with_threads(2, stream.get());
  GatherExample example(kWidth, 16);
  ASSERT_TRUE(gather_pa_kv_cache(example.args, *context).ok());  // perhaps at work while the child is made
  EXPECT_EQ(in_child([&] {
              example.clear();
              for (const Status& status : {gather_pa_kv_cache(example.args, *context), stream->wait()}) {
                if (status.code() != StatusCode::kUnavailable) return 1;
                if (status.message().find("forked") == std::string::npos) return 2;
              }
              if (!example.untouched()) return 3;
              context.reset();
              stream.reset();
              Stream own;
              if (!gather_pa_kv_cache(example.args, with_threads(2, &own)).ok() || !own.wait().ok()) return 4;
              return example.right() ? 0 : 5;
            }),
            0);
  EXPECT_TRUE(stream->wait().ok());
  EXPECT_TRUE(example.right());
}

}  // namespace
}  // namespace kvferry
