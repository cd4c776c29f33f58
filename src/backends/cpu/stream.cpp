// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "core/impl.hpp"
#include "kvferry/context.hpp"

namespace kvferry {
namespace internal {

struct StreamTask {
  StreamCall call = nullptr;
  std::shared_ptr<const PlanBody> body;
  std::shared_ptr<ContextState> context;
  alignas(16) std::array<std::byte, kMaxBufferBytes> buffers{};
};

// A ring that grows: steady state allocates nothing.
struct StreamState {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<StreamTask> ring = std::vector<StreamTask>(64);
  std::uint64_t enqueued = 0;  // tasks ever enqueued; task i sits in ring[i % size]
  std::uint64_t finished = 0;
  Status first_error;
  std::uint64_t later_errors = 0;
  bool stop = false;
  const pid_t process = getpid();
  std::thread worker;

  StreamState() : worker([this] { work(); }) {}
  ~StreamState() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    worker.join();
  }

  // A forked child has this object, perhaps locked, but not the worker: nothing of it may be used there.
  Status check_process() const {
    if (process == getpid()) return {};
    return {
        StatusCode::kUnavailable,
        fmt::format("Stream: belongs to process {}, from which this one ({}) was forked: its thread is not "
                    "here; make a new stream",
                    process, getpid())};
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return stop || finished != enqueued; });
      if (finished == enqueued) return;
      // Taken out: the ring may grow (and move) while the task runs.
      StreamTask task = std::move(ring[finished % ring.size()]);
      lock.unlock();
      Status status = guarded_run([&] { return task.call(*task.body, task.buffers.data(), *task.context); });
      task = {};  // what it kept alive dies before the wait that covers it returns
      lock.lock();
      ++finished;
      if (!status.ok()) {
        if (first_error.ok()) {
          first_error = std::move(status);
        } else {
          ++later_errors;
        }
      }
      changed.notify_all();
    }
  }

  void push(StreamTask task) {
    {
      const std::lock_guard lock(mutex);
      if (enqueued - finished == ring.size()) grow();
      ring[enqueued % ring.size()] = std::move(task);
      ++enqueued;
    }
    changed.notify_all();
  }

  void grow() {
    std::vector<StreamTask> larger(2 * ring.size());
    for (std::uint64_t i = finished; i != enqueued; ++i)
      larger[i % larger.size()] = std::move(ring[i % ring.size()]);
    ring = std::move(larger);
  }

  Status wait() {
    std::unique_lock lock(mutex);
    const std::uint64_t target = enqueued;
    changed.wait(lock, [&] { return finished >= target; });
    Status status = std::exchange(first_error, Status());
    if (const std::uint64_t more = std::exchange(later_errors, 0); more > 0) {
      status = Status(status.code(),
                      fmt::format("{} (and {} later refusals on this stream)", status.message(), more));
    }
    return status;
  }
};

Status enqueue(Stream& stream, StreamCall call, std::shared_ptr<const PlanBody> body, const void* buffers,
               std::size_t buffer_bytes, std::shared_ptr<ContextState> state) {
  if (Status status = stream.state().check_process(); !status.ok()) return status;
  StreamTask task;
  task.call = call;
  task.body = std::move(body);
  task.context = std::move(state);
  std::memcpy(task.buffers.data(), buffers, buffer_bytes);
  stream.state().push(std::move(task));
  return {};
}

}  // namespace internal

Stream::Stream() : state_(std::make_unique<internal::StreamState>()) {}
Stream::~Stream() {
  if (state_->process != getpid()) static_cast<void>(state_.release());
}
Status Stream::wait() {
  if (Status status = state_->check_process(); !status.ok()) return status;
  return state_->wait();
}

}  // namespace kvferry
