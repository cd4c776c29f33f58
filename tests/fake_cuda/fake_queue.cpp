// SPDX-License-Identifier: Apache-2.0
//
// Two CUDA devices that write down what is asked of them: for tests of the front ends, whose tensors then lie
// in memory of the host. Operators do nothing, or on demand what they do on the emulated device, when
// somebody waits.
#include <Python.h>
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/queue.hpp"

namespace kvferry::internal {
namespace {

std::mutex log_mutex;
std::string log_lines;
std::atomic<bool> executes = false;

// To be behind what waits for a device.
const char* gil() {
  return PyGILState_Check() == 0 ? "" : " with the GIL";
}

void write_down(const std::string& line) {
  const std::lock_guard lock(log_mutex);
  log_lines += line + "\n";
}

class FakeQueue final : public emulation::EmulatedQueue {
 public:
  explicit FakeQueue(const ContextOptions& options)
      : EmulatedQueue(1),
        place_(fmt::format("{} {}", options.device.index, fmt::ptr(options.cuda_stream))),
        staging_bytes_(options.cuda_staging_bytes) {
    write_down("open " + place_);
  }
  ~FakeQueue() override { write_down("close " + place_); }

  Result<void*> workspace(std::int64_t bytes) override {
    write_down("workspace " + place_);
    return EmulatedQueue::workspace(bytes);
  }
  Result<std::shared_ptr<void>> memory(std::int64_t bytes, const void* from) override {
    if (bytes > kMostMemory) return Status(StatusCode::kOutOfMemory, "too much for the fake");
    const std::string what = fmt::format("{} {}", place_, bytes);
    write_down("memory " + what);
    const Result<std::shared_ptr<void>> made = EmulatedQueue::memory(bytes, from);
    return std::shared_ptr<void>(made.value().get(), [owner = made.value(), what](void* /*data*/) {
      write_down("free " + what + gil());
    });
  }
  Status wait() override {
    write_down("wait " + place_ + gil());
    return EmulatedQueue::wait();
  }
  Result<void*> device_address(Operator /*op*/, const char* name, const void* host) override {
    write_down(fmt::format("pinned {}", name));
    return const_cast<void*>(host);
  }

  Result<std::int64_t> reserve_staging() override {
    write_down(fmt::format("staging {} {}", place_, staging_bytes_));
    return EmulatedQueue::reserve_staging();
  }
  Status copy_batch(Operator op, std::span<const cuda::CopyRun> runs) override {
    write_down(fmt::format("copies {} {}", place_, to_string(op)));
    return executes ? EmulatedQueue::copy_batch(op, runs) : Status();
  }

 protected:
  Status launch_kernel(Operator op, std::size_t kernel, const void* params, std::uint32_t blocks) override {
    write_down(fmt::format("launch {} {}", place_, to_string(op)));
    return executes ? EmulatedQueue::launch_kernel(op, kernel, params, blocks) : Status();
  }

 private:
  static constexpr std::int64_t kMostMemory = 1 << 20;

  std::string place_;
  std::int64_t staging_bytes_;
};

}  // namespace

// In the place of the library's.
Result<std::shared_ptr<DeviceQueue>> open_cuda_queue(const ContextOptions& options) {
  if (options.device.index > 1) return Status(StatusCode::kUnavailable, "cuda: device 2 of 2 that there are");
  return std::shared_ptr<DeviceQueue>(std::make_shared<FakeQueue>(options));
}

}  // namespace kvferry::internal

// What was written down since the last call.
extern "C" __attribute__((visibility("default"))) const char* kvferry_fake_cuda_log() {
  static std::string told;
  const std::lock_guard lock(kvferry::internal::log_mutex);
  told = std::exchange(kvferry::internal::log_lines, {});
  return told.c_str();
}

// From now on: whether operators do something.
extern "C" __attribute__((visibility("default"))) void kvferry_fake_cuda_execute(bool on) {
  kvferry::internal::executes = on;
}

// Memory that kernels may touch, until it is taken back.
extern "C" __attribute__((visibility("default"))) void* kvferry_fake_cuda_lend(const void* data,
                                                                               std::size_t bytes) {
  return new kvferry::emulation::RegisteredRange(data, bytes);
}
extern "C" __attribute__((visibility("default"))) void kvferry_fake_cuda_take_back(void* lent) {
  delete static_cast<kvferry::emulation::RegisteredRange*>(lent);
}
