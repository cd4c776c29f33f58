// SPDX-License-Identifier: Apache-2.0
#include "kvferry/context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

#include "core/context_state.hpp"

namespace kvferry {
namespace {

constexpr int kMaxThreads = 1024;

int available_processors() noexcept {
#ifdef __linux__
  cpu_set_t set;  // hardware_concurrency() ignores taskset and cpusets
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

Context::Context(ContextOptions options) : state_(std::make_shared<internal::ContextState>()) {
  state_->options = std::move(options);
  ContextOptions& o = state_->options;
  if (o.implementation.empty()) {
    if (const char* name = std::getenv("KVFERRY_FORCE_IMPL")) o.implementation = name;
  }
  if (o.threads < 0 || o.threads > kMaxThreads) {
    state_->environment =
        Status(StatusCode::kInvalidArgument,
               fmt::format("ContextOptions: threads is {}, expected 0 to {}", o.threads, kMaxThreads));
    return;
  }
  state_->threads = o.threads;
  if (o.threads != 0) return;
  state_->threads = available_processors();
  const char* text = std::getenv("KVFERRY_NUM_THREADS");
  if (text == nullptr || *text == '\0') return;
  int threads = 0;
  const char* end = text + std::strlen(text);
  const auto [parsed, error] = std::from_chars(text, end, threads);
  if (error != std::errc() || parsed != end || threads < 1 || threads > kMaxThreads) {
    state_->environment =
        Status(StatusCode::kInvalidArgument,
               fmt::format("KVFERRY_NUM_THREADS is '{}', expected a number from 1 to {}", text, kMaxThreads));
    return;
  }
  state_->threads = threads;
}

const ContextOptions& Context::options() const noexcept {
  return state_->options;
}
int Context::threads() const noexcept {
  return state_->threads;
}

namespace internal {

void* ContextState::workspace(std::int64_t bytes) noexcept {
  if (bytes > workspace_bytes) {
    const std::int64_t wanted = std::max(bytes, 2 * workspace_bytes);
    try {
      workspaces.push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(wanted)));
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
    workspace_bytes = wanted;
  }
  return workspaces.empty() ? nullptr : workspaces.back().get();
}

}  // namespace internal
}  // namespace kvferry
