// SPDX-License-Identifier: Apache-2.0
//
// Two CUDA devices that run nothing and write down what is asked of them: for tests of the front ends, whose
// tensors then lie in memory of the host.
#include <fmt/format.h>

#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/queue.hpp"

namespace kvferry::internal {
namespace {

std::mutex log_mutex;
std::string log_lines;

void write_down(const std::string& line) {
  const std::lock_guard lock(log_mutex);
  log_lines += line + "\n";
}

class FakeQueue final : public cuda::Queue {
 public:
  explicit FakeQueue(const ContextOptions& options)
      : Queue(90, 1), place_(fmt::format("{} {}", options.device.index, fmt::ptr(options.cuda_stream))) {
    write_down("open " + place_);
  }
  ~FakeQueue() override { write_down("close " + place_); }

  Result<void*> workspace(std::int64_t bytes) override {
    write_down("workspace " + place_);
    memory_.resize(static_cast<std::size_t>(bytes));
    return static_cast<void*>(memory_.data());
  }
  Result<void*> device_address(Operator /*op*/, const char* name, const void* host) override {
    write_down(fmt::format("pinned {}", name));
    return const_cast<void*>(host);
  }

  Result<std::int64_t> reserve_staging() override { return std::int64_t{0}; }
  Staging staging() override { return {}; }
  Status copy_batch(Operator op, std::span<const cuda::CopyRun> /*runs*/) override {
    write_down(fmt::format("copies {} {}", place_, to_string(op)));
    return {};
  }

 protected:
  Status launch_kernel(Operator op, std::size_t /*kernel*/, const void* /*params*/,
                       std::uint32_t /*blocks*/) override {
    write_down(fmt::format("launch {} {}", place_, to_string(op)));
    return {};
  }

 private:
  std::string place_;
  std::vector<std::byte> memory_;
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
