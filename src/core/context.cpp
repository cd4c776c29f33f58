// SPDX-License-Identifier: Apache-2.0
#include "kvferry/context.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/context_state.hpp"
#include "core/processors.hpp"
#include "kvferry/memory.hpp"

namespace kvferry {
namespace {

constexpr int kMaxThreads = 1024;

// Of a context of a CUDA device, in the process that made it.
Result<internal::DeviceQueue*> queue_of(const Context& context, const char* function) {
  const internal::ContextState& state = context.state();
  if (!state.environment.ok()) return state.environment;
  if (state.queue == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: the context's device is the CPU, expected a CUDA device", function));
  }
  if (Status status = state.queue->check_process(); !status.ok()) return status;
  return state.queue.get();
}

}  // namespace

Context::Context(ContextOptions options) : state_(std::make_shared<internal::ContextState>()) {
  state_->options = std::move(options);
  ContextOptions& o = state_->options;
  // The variables of the environment are for the CPU: a context of a device does not look at them.
  if (o.device.type == DeviceType::kCuda) {
    if (o.stream != nullptr) {
      state_->environment = Status(StatusCode::kInvalidArgument,
                                   "ContextOptions: stream is a CPU stream, expected null with a CUDA device "
                                   "(its stream is cuda_stream)");
      return;
    }
    auto queue = internal::open_cuda_queue(o);
    queue.ok() ? void(state_->queue = std::move(queue.value())) : void(state_->environment = queue.status());
    return;
  }
  if (o.cuda_stream != nullptr) {
    state_->environment = Status(
        StatusCode::kInvalidArgument,
        fmt::format(
            "ContextOptions: cuda_stream is given, expected null with device {} (it is of a CUDA device)",
            to_string(o.device)));
    return;
  }
  if (o.implementation.empty()) {
    if (const char* name = std::getenv("KVFERRY_FORCE_IMPL")) o.implementation = name;
  }
  if (o.threads < 0 || o.threads > kMaxThreads) {
    state_->environment =
        Status(StatusCode::kInvalidArgument,
               fmt::format("ContextOptions: threads is {}, expected 0 to {}", o.threads, kMaxThreads));
    return;
  }
  if (Status status = internal::check_processors(o.cpus); !status.ok()) {
    state_->environment = std::move(status);
    return;
  }
  state_->threads = o.threads;
  if (o.threads != 0) return;
  state_->threads = o.cpus.empty() ? internal::available_processors() : internal::count_processors(o.cpus);
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

Result<void*> device_workspace(const Context& context, std::int64_t bytes) noexcept {
  try {
    const Result<internal::DeviceQueue*> queue = queue_of(context, "device_workspace");
    if (!queue.ok()) return queue.status();
    internal::ProcessState* const process = context.state().here();
    if (process == nullptr) return Status(StatusCode::kOutOfMemory, std::string());
    const std::lock_guard lock(process->workspace_mutex);
    return queue.value()->workspace(bytes);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, std::string());
  }
}

Result<std::shared_ptr<void>> device_memory(const Context& context, std::int64_t bytes,
                                            const void* from) noexcept {
  try {
    const Result<internal::DeviceQueue*> queue = queue_of(context, "device_memory");
    if (!queue.ok()) return queue.status();
    if (bytes < 0) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("device_memory: bytes is {}, expected >= 0", bytes));
    }
    if (bytes == 0) return std::shared_ptr<void>();
    return queue.value()->memory(bytes, from);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, std::string());
  }
}

Status device_wait(const Context& context) noexcept {
  try {
    const Result<internal::DeviceQueue*> queue = queue_of(context, "device_wait");
    return queue.ok() ? queue.value()->wait() : queue.status();
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, std::string()};
  }
}

namespace internal {
namespace {

// Those of a parent process, found in a child: their mutexes may be locked and their threads do not exist, so
// they are never destroyed. In a list, for leak checkers.
std::atomic<ProcessState*> lost_states = nullptr;

void lose(ProcessState* state) noexcept {
  state->next_lost = lost_states.load(std::memory_order_relaxed);
  while (!lost_states.compare_exchange_weak(state->next_lost, state)) {
  }
}

}  // namespace

ProcessState::ProcessState() noexcept : process(getpid()) {}

void* ProcessState::workspace(std::int64_t bytes) noexcept {
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

ContextState::ContextState() : process_(new ProcessState) {}

ContextState::~ContextState() {
  ProcessState* const state = process_.load(std::memory_order_acquire);
  state->process == getpid() ? delete state : lose(state);
}

ProcessState* ContextState::here() noexcept {
  ProcessState* state = process_.load(std::memory_order_acquire);
  if (state->process == getpid()) return state;
  auto* const fresh = new (std::nothrow) ProcessState;
  if (fresh == nullptr) return nullptr;
  if (process_.compare_exchange_strong(state, fresh, std::memory_order_acq_rel)) {
    lose(state);
    return fresh;
  }
  delete fresh;  // another thread of this child was first
  return state;
}

}  // namespace internal
}  // namespace kvferry
