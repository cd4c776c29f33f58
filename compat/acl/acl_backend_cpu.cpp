// SPDX-License-Identifier: Apache-2.0
//
// The backend without a GPU: one device, this machine's CPU. A stream is a thread and the tasks that it runs
// in order.
//
// The library's own Stream runs operators only; ACL puts copies and events between them.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "acl_backend.hpp"

namespace kvferry::acl {

class CpuStream final : public Stream {
 public:
  CpuStream();
  ~CpuStream() override;  // after all tasks

  Status push(std::unique_ptr<Task> task) override;
  Status copy(void* to, const void* from, std::size_t count, aclrtMemcpyKind kind) override;
  Status fill(void* to, int value, std::size_t count) override;
  Status wait() override;

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

namespace {

constexpr std::size_t kAlignment = 64;  // a cache line

// A worker that ran out of tasks looks for more for this long before it sleeps: decoding steps submit many
// small calls in a row, and waking it costs them a system call each. Both phases of a small gather take
// 1.5 to 2.0 us with it, 2.5 to 3.3 us without (bench/acl_host_cost.cpp, 2 cores).
constexpr std::chrono::microseconds kLookAround{50};

class Copy final : public Task {
 public:
  Copy(void* to, const void* from, std::size_t count) : to_(to), from_(from), count_(count) {}
  Status run(const Context&) noexcept override {
    std::memcpy(to_, from_, count_);
    return {};
  }

 private:
  void* to_;
  const void* from_;
  std::size_t count_;
};

class Fill final : public Task {
 public:
  Fill(void* to, int value, std::size_t count) : to_(to), value_(value), count_(count) {}
  Status run(const Context&) noexcept override {
    std::memset(to_, value_, count_);
    return {};
  }

 private:
  void* to_;
  int value_;
  std::size_t count_;
};

}  // namespace

CpuStream::CpuStream() : worker_([this] { work(); }) {}

CpuStream::~CpuStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  pushed_.notify_one();
  worker_.join();
}

Status CpuStream::push(std::unique_ptr<Task> task) {
  {
    const std::lock_guard lock(mutex_);
    Task* const added = task.release();
    (last_ == nullptr ? first_ : last_->next_) = added;
    last_ = added;
    count_pushed_.fetch_add(1, std::memory_order_relaxed);
  }
  pushed_.notify_one();
  return {};
}

Status CpuStream::copy(void* to, const void* from, std::size_t count, aclrtMemcpyKind /*kind*/) {
  return push(std::make_unique<Copy>(to, from, count));
}

Status CpuStream::fill(void* to, int value, std::size_t count) {
  return push(std::make_unique<Fill>(to, value, count));
}

void CpuStream::await_task() noexcept {
  const auto until = std::chrono::steady_clock::now() + kLookAround;
  while (count_pushed_.load(std::memory_order_relaxed) == count_run_ &&
         std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
}

void CpuStream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    pushed_.wait(lock, [this] { return stop_ || first_ != nullptr; });
    if (first_ == nullptr) return;
    std::unique_ptr<Task> task(first_);
    first_ = task->next_;
    if (first_ == nullptr) last_ = nullptr;
    lock.unlock();
    Status status = task->run(context_);
    task.reset();  // what it kept alive dies before the wait that covers it returns
    lock.lock();
    ++count_run_;
    if (!status.ok() && failure_.ok()) failure_ = std::move(status);
    ran_.notify_all();
    if (first_ != nullptr || stop_) continue;
    lock.unlock();
    await_task();
    lock.lock();
  }
}

Status CpuStream::wait() {
  std::unique_lock lock(mutex_);
  const std::uint64_t target = count_pushed_.load(std::memory_order_relaxed);
  ran_.wait(lock, [&] { return count_run_ >= target; });
  return std::exchange(failure_, Status());
}

namespace {

class CpuEvent final : public Event {
 public:
  Status record(Stream& stream) override {
    auto record = std::make_shared<Record>();
    auto task = std::make_unique<Happen>(record);
    // Under the lock: of two threads that record at once, the later task must be the last record.
    const std::lock_guard lock(mutex_);
    if (Status status = stream.push(std::move(task)); !status.ok()) return status;
    last_ = std::move(record);
    return {};
  }
  Status hold_up(Stream& stream) const override {
    auto record = last();
    return record == nullptr ? Status() : stream.push(std::make_unique<Wait>(std::move(record)));
  }
  Status wait() const override {
    if (const auto record = last()) record->wait();
    return {};
  }
  bool happened() const override { return time().has_value(); }
  Result<float> milliseconds_since(const Event& start) const override {
    const auto begin = static_cast<const CpuEvent&>(start).time(), finish = time();
    return std::chrono::duration<float, std::milli>(*finish - *begin).count();
  }

 private:
  using Clock = std::chrono::steady_clock;

  // One use of the event: those who wait for it keep it alive.
  struct Record {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Clock::time_point> time;

    void happen() {
      {
        const std::lock_guard lock(mutex);
        time = Clock::now();
      }
      changed.notify_all();
    }
    void wait() {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return time.has_value(); });
    }
  };

  class Happen final : public Task {
   public:
    explicit Happen(std::shared_ptr<Record> record) : record_(std::move(record)) {}
    Status run(const Context&) noexcept override {
      record_->happen();
      return {};
    }

   private:
    std::shared_ptr<Record> record_;
  };

  class Wait final : public Task {
   public:
    explicit Wait(std::shared_ptr<Record> record) : record_(std::move(record)) {}
    Status run(const Context&) noexcept override {
      record_->wait();
      return {};
    }

   private:
    std::shared_ptr<Record> record_;
  };

  std::shared_ptr<Record> last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  std::optional<Clock::time_point> time() const {
    const auto record = last();
    if (record == nullptr) return std::nullopt;
    const std::lock_guard lock(record->mutex);
    return record->time;
  }

  mutable std::mutex mutex_;
  std::shared_ptr<Record> last_;
};

// All memory is this machine's, and one like the other.
class CpuBackend final : public Backend {
 public:
  Result<std::int32_t> device_count() override { return 1; }
  Status use_device(std::int32_t /*device*/) override { return {}; }
  Context make_context(std::int32_t /*device*/) override { return Context(); }
  kvferry::Device place_of(const void* /*memory*/, std::int32_t /*device*/) override { return {}; }

  Result<void*> allocate(std::int32_t /*device*/, std::size_t bytes) override { return allocate_host(bytes); }
  Result<void*> allocate_host(std::size_t bytes) override {
    void* memory = nullptr;
    if (posix_memalign(&memory, kAlignment, bytes) == 0) return memory;
    return Status(StatusCode::kOutOfMemory, std::string());
  }
  Status release(void* memory) override { return release_host(memory); }
  Status release_host(void* memory) override {
    std::free(memory);
    return {};
  }
  Status copy(void* to, const void* from, std::size_t count, aclrtMemcpyKind /*kind*/) override {
    std::memcpy(to, from, count);
    return {};
  }
  Status fill(void* to, int value, std::size_t count) override {
    std::memset(to, value, count);
    return {};
  }

  Result<std::shared_ptr<Stream>> make_stream(std::int32_t /*device*/) override {
    return std::shared_ptr<Stream>(std::make_shared<CpuStream>());
  }
  Result<std::shared_ptr<Stream>> make_default_stream(std::int32_t device) override {
    return make_stream(device);
  }
  Result<std::shared_ptr<Event>> make_event(std::int32_t /*device*/) override {
    return std::shared_ptr<Event>(std::make_shared<CpuEvent>());
  }
};

}  // namespace

Backend& backend() {
  static auto& the_backend = *new CpuBackend;
  return the_backend;
}

}  // namespace kvferry::acl
