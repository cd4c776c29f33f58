// SPDX-License-Identifier: Apache-2.0
#include "acl_stream.hpp"

#include <utility>

namespace kvferry::acl {
namespace {

// A worker that ran out of tasks looks for more for this long before it sleeps: decoding steps submit many
// small calls in a row, and waking it costs them a system call each. Both phases of a small gather take
// 1.5 to 2.0 us with it, 2.5 to 3.3 us without (bench/acl_host_cost.cpp, 2 cores).
constexpr std::chrono::microseconds kLookAround{50};

}  // namespace

Stream::Stream() : worker_([this] { work(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  pushed_.notify_one();
  worker_.join();
}

void Stream::push(std::unique_ptr<Task> task) {
  {
    const std::lock_guard lock(mutex_);
    Task* const added = task.release();
    (last_ == nullptr ? first_ : last_->next_) = added;
    last_ = added;
    count_pushed_.fetch_add(1, std::memory_order_relaxed);
  }
  pushed_.notify_one();
}

void Stream::await_task() noexcept {
  const auto until = std::chrono::steady_clock::now() + kLookAround;
  while (count_pushed_.load(std::memory_order_relaxed) == count_run_ &&
         std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
}

void Stream::work() {
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

Status Stream::wait() {
  std::unique_lock lock(mutex_);
  const std::uint64_t target = count_pushed_.load(std::memory_order_relaxed);
  ran_.wait(lock, [&] { return count_run_ >= target; });
  return std::exchange(failure_, Status());
}

void Event::Record::happen() {
  {
    const std::lock_guard lock(mutex);
    time = Clock::now();
  }
  changed.notify_all();
}

void Event::Record::wait() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [this] { return time.has_value(); });
}

class Event::Happen final : public Task {
 public:
  explicit Happen(std::shared_ptr<Record> record) : record_(std::move(record)) {}
  Status run(const Context&) noexcept override {
    record_->happen();
    return {};
  }

 private:
  std::shared_ptr<Record> record_;
};

class Event::Wait final : public Task {
 public:
  explicit Wait(std::shared_ptr<Record> record) : record_(std::move(record)) {}
  Status run(const Context&) noexcept override {
    record_->wait();
    return {};
  }

 private:
  std::shared_ptr<Record> record_;
};

std::shared_ptr<Event::Record> Event::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

void Event::record(Stream& stream) {
  auto record = std::make_shared<Record>();
  auto task = std::make_unique<Happen>(record);
  // Under the lock: of two threads that record at once, the later task must be the last record.
  const std::lock_guard lock(mutex_);
  stream.push(std::move(task));
  last_ = std::move(record);
}

void Event::hold_up(Stream& stream) const {
  if (auto record = last()) stream.push(std::make_unique<Wait>(std::move(record)));
}

void Event::wait() const {
  if (const auto record = last()) record->wait();
}

std::optional<Event::Clock::time_point> Event::time() const {
  const auto record = last();
  if (record == nullptr) return std::nullopt;
  const std::lock_guard lock(record->mutex);
  return record->time;
}

}  // namespace kvferry::acl
