// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/queue.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/context_state.hpp"
#include "harness/random.hpp"

namespace kvferry::emulation {
namespace {

using Work = std::function<Report()>;
using MakeWork = Work (*)(const void* params, std::uint32_t blocks, const LaunchOptions& options);

// With a copy of the parameters, as CUDA keeps one.
template <class K>
Work work_of(const void* params, std::uint32_t blocks, const LaunchOptions& options) {
  typename K::Params copy;
  std::memcpy(&copy, params, sizeof copy);
  return [=] { return launch<K>(blocks, copy, options); };
}

template <class... K>
constexpr auto works_of(internal::cuda::KernelList<K...>) {
  return std::array<MakeWork, sizeof...(K)>{work_of<K>...};
}
constexpr auto kWorks = works_of(internal::cuda::Kernels());

}  // namespace

std::string EmulatedQueue::finish() {
  for (const auto& work : std::exchange(work_, {})) {
    const Report report = work();
    if (report.finding) return report.finding->text;
  }
  std::erase_if(memory_, [](const auto& buffer) { return buffer.use_count() == 1; });
  return {};
}

Result<void*> EmulatedQueue::workspace(std::int64_t bytes) {
  if (bytes <= 0) return static_cast<void*>(nullptr);
  if (workspaces_.empty() || static_cast<std::int64_t>(workspaces_.back()->size()) < bytes)
    workspaces_.push_back(std::make_unique<Buffer<std::byte>>(static_cast<std::size_t>(bytes), 16));
  return static_cast<void*>(workspaces_.back()->data());
}

Result<std::shared_ptr<void>> EmulatedQueue::memory(std::int64_t bytes, const void* from) {
  const auto buffer = std::make_shared<Buffer<std::byte>>(static_cast<std::size_t>(bytes));
  std::fill_n(buffer->data(), bytes, std::byte{0xa5});
  memory_.push_back(buffer);
  void* const data = buffer->data();
  work_.emplace_back([=, this] {
    const internal::cuda::CopyRun run{data, from, bytes};
    if (from != nullptr) return copy({&run, 1});
    std::memset(data, 0, static_cast<std::size_t>(bytes));
    return Report();
  });
  return std::shared_ptr<void>(buffer, data);
}

Status EmulatedQueue::wait() {
  std::string finding = finish();
  return finding.empty() ? Status() : Status(StatusCode::kUnavailable, std::move(finding));
}

Result<std::int64_t> EmulatedQueue::reserve_staging() {
  if (staging_bytes_ > 0 && staging_ == nullptr)
    staging_ = std::make_unique<Buffer<std::byte>>(static_cast<std::size_t>(staging_bytes_));
  return staging_bytes_;
}

internal::cuda::Queue::Staging EmulatedQueue::staging() {
  if (staging_ == nullptr) return {};
  return {std::unique_lock(staging_mutex_), staging_->data(), staging_bytes_};
}

Result<void*> EmulatedQueue::device_address(Operator op, const char* name, const void* host) {
  const auto found = pinned_.find(static_cast<const std::byte*>(host));
  if (found == pinned_.end()) {
    return Status(StatusCode::kInvalidArgument,
                  std::string(to_string(op)) + ": " + name + ": the emulation has not pinned this memory");
  }
  mapped_.try_emplace(found->first, found->first, found->second.bytes, found->second.contested);
  return const_cast<void*>(host);
}

Report EmulatedQueue::copy(std::span<const internal::cuda::CopyRun> runs) const {
  std::vector<Region> regions = registered_regions();
  for (const auto& [data, pinned] : pinned_) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    regions.push_back({begin, begin + pinned.bytes, pinned.contested});
  }
  const auto lies_inside = [&](const void* data, std::int64_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    return std::any_of(regions.begin(), regions.end(), [&](const Region& region) {
      return begin >= region.begin && begin + static_cast<std::uintptr_t>(bytes) <= region.end;
    });
  };
  Report report;
  for (const internal::cuda::CopyRun& run : runs) {
    if (!lies_inside(run.dst, run.bytes) || !lies_inside(run.src, run.bytes)) {
      report.finding = Finding{FindingKind::kOutOfBounds, 0, 0, "a copy outside every buffer of the device"};
      return report;
    }
    std::memcpy(run.dst, run.src, static_cast<std::size_t>(run.bytes));
  }
  return report;
}

Status EmulatedQueue::copy_batch(Operator /*op*/, std::span<const internal::cuda::CopyRun> runs) {
  ++batches_;
  runs_ += runs.size();
  work_.emplace_back([this, held = std::vector(runs.begin(), runs.end())] { return copy(held); });
  return {};
}

Status EmulatedQueue::launch_kernel(Operator /*op*/, std::size_t kernel, const void* params,
                                    std::uint32_t blocks) {
  harness::Random random(seed_ + ++launches_);
  LaunchOptions options;
  options.order = static_cast<Order>(random.between(0, 2));
  options.seed = random.next();
  if (random.one_in(8)) options.preempt_per_1024 = static_cast<std::uint32_t>(random.between(1, 100));
  work_.push_back(kWorks[kernel](params, blocks, options));
  return {};
}

std::string EmulatedDevice::why_not(const harness::Instance& instance) const {
  // What is larger tries thresholds of the CPU, and takes seconds here.
  constexpr std::int64_t kMostBytes = 4 << 20;
  if (instance.bytes_moved > kMostBytes) return "more than 4 MiB to move";
  return {};
}

std::shared_ptr<void> lend(const std::shared_ptr<EmulatedQueue>& queue, std::byte* data, std::size_t bytes,
                           harness::CaseDevice::Use use) {
  if (!use.pinned) return std::make_shared<RegisteredRange>(data, bytes, use.contested);
  queue->pin(data, bytes, use.contested);
  return {data, [queue](void* pinned) { queue->unpin(static_cast<std::byte*>(pinned)); }};
}

kvferry::Context make_context(const std::shared_ptr<EmulatedQueue>& queue, ContextOptions options) {
  kvferry::Context context(std::move(options));
  context.state().options.device = {DeviceType::kCuda, 0};
  context.state().queue = queue;
  return context;
}

}  // namespace kvferry::emulation
