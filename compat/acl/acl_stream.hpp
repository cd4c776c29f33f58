// SPDX-License-Identifier: Apache-2.0
//
// Stream: a thread and the tasks that it runs in order. Event: a point between the tasks of a stream.
//
// The library's own Stream runs operators only; ACL puts copies and events between them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "kvferry/context.hpp"
#include "kvferry/status.hpp"

namespace kvferry::acl {

class Task {
 public:
  Task() = default;
  Task(const Task&) = default;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  // On the stream's thread. A failure is told once by the next Stream::wait() and stops nothing.
  virtual Status run(const Context& context) noexcept = 0;

 private:
  friend class Stream;
  Task* next_ = nullptr;  // behind this one: tasks are their own queue, so that enqueuing allocates nothing
};

// Any thread may enqueue or wait.
class Stream {
 public:
  Stream();
  ~Stream();  // after all tasks
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void push(std::unique_ptr<Task> task);
  // Until everything that was pushed before the call has run. Returns the first failure since the last wait.
  Status wait();

 private:
  void work();
  void await_task() noexcept;

  const Context context_;  // its helper threads are this stream's
  std::mutex mutex_;
  std::condition_variable pushed_, ran_;
  Task* first_ = nullptr;
  Task* last_ = nullptr;
  std::atomic<std::uint64_t> count_pushed_{0};
  std::uint64_t count_run_ = 0;
  Status failure_;
  bool stop_ = false;
  std::thread worker_;  // last: it uses all the others
};

class Event {
 public:
  using Clock = std::chrono::steady_clock;

  // Happens behind everything that the stream holds now. Replaces what was recorded before, for later waits.
  void record(Stream& stream);
  // These wait for the last record made before the call, if there is one.
  void hold_up(Stream& stream) const;
  void wait() const;
  // When the last record happened; nothing if it has not, or there is none.
  std::optional<Clock::time_point> time() const;

 private:
  // One use of the event: those who wait for it keep it alive.
  struct Record {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Clock::time_point> time;

    void happen();
    void wait();
  };
  class Happen;
  class Wait;
  std::shared_ptr<Record> last() const;

  mutable std::mutex mutex_;
  std::shared_ptr<Record> last_;
};

}  // namespace kvferry::acl
