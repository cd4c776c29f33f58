// SPDX-License-Identifier: Apache-2.0
//
// What a Context holds: resolved options, the backend's threads, the workspace of the one-call forms.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "kvferry/context.hpp"

namespace kvferry::internal {

// What a backend keeps for a context (the CPU's helper threads), made at the first call that wants it.
struct BackendState {
  BackendState() = default;
  BackendState(const BackendState&) = delete;
  BackendState& operator=(const BackendState&) = delete;
  virtual ~BackendState() = default;
};

struct ContextState : std::enable_shared_from_this<ContextState> {
  ContextOptions options;
  int threads = 1;
  Status environment;  // what is wrong in KVFERRY_* variables, told by the first plan()

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

}  // namespace kvferry::internal
