// SPDX-License-Identifier: Apache-2.0
//
// What a Context holds: resolved options, the backend's threads, the workspace of the one-call forms.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <sys/types.h>

#include "core/device_queue.hpp"
#include "kvferry/context.hpp"

namespace kvferry::internal {

// What a backend keeps for a context (the CPU's helper threads), made at the first call that wants it.
struct BackendState {
  BackendState() = default;
  BackendState(const BackendState&) = delete;
  BackendState& operator=(const BackendState&) = delete;
  virtual ~BackendState() = default;
};

// Everything that fork() takes away (threads) or may leave locked for ever. A forked child gets one of its
// own.
struct ProcessState {
  ProcessState() noexcept;

  const pid_t process;
  ProcessState* next_lost = nullptr;

  std::mutex backend_mutex;
  std::unique_ptr<BackendState> backend;

  // One-call forms without a stream hold the mutex while they run; with a stream the FIFO keeps two users of
  // the workspace apart. A workspace that was outgrown may still be in use by enqueued work, so it stays
  // until the context dies; doubling bounds the total.
  std::mutex workspace_mutex;
  std::vector<std::unique_ptr<std::byte[]>> workspaces;
  std::int64_t workspace_bytes = 0;

  // REQUIRES workspace_mutex. Null when there is no memory.
  void* workspace(std::int64_t bytes) noexcept;
};

struct ContextState : std::enable_shared_from_this<ContextState> {
  ContextState();
  ContextState(const ContextState&) = delete;
  ContextState& operator=(const ContextState&) = delete;
  ~ContextState();

  ContextOptions options;
  int threads = 1;
  std::shared_ptr<DeviceQueue> queue;  // null: the CPU
  Status environment;  // what is wrong in the options or in KVFERRY_* variables, told by the first plan()

  // Of the calling process. Null in a forked child that has no memory for one.
  ProcessState* here() noexcept;

 private:
  std::atomic<ProcessState*> process_;
};

}  // namespace kvferry::internal
