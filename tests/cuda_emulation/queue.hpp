// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend with the emulation in the place of a GPU: contexts of it plan and launch as on one, and
// the kernels run when somebody waits, as late as they may.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/queue.hpp"
#include "harness/harness.hpp"
#include "tests/cuda_emulation/context.hpp"
#include "tests/cuda_emulation/regions.hpp"

namespace kvferry::emulation {

class EmulatedQueue : public internal::cuda::Queue {
 public:
  // Few multiprocessors: blocks take several turns even in small problems. Every launch takes another order.
  explicit EmulatedQueue(std::uint64_t seed, int architecture = 90, std::int64_t multiprocessors = 1)
      : Queue(architecture, multiprocessors), seed_(seed) {}

  // Host memory that is mapped: the device reaches it by device_address() only.
  void pin(const std::byte* data, std::size_t bytes, bool contested) { pinned_[data] = {bytes, contested}; }
  void unpin(const std::byte* data) {
    pinned_.erase(data);
    mapped_.erase(data);
  }

  // Everything that was launched. The first finding, empty for none.
  std::string finish();
  std::uint64_t launches() const { return launches_; }
  // Of copy_batch(): submissions, and runs of all of them.
  std::uint64_t batches() const { return batches_; }
  std::uint64_t runs() const { return runs_; }

  // For the choice of a way from now on, and for the next plan: at most this much is staged at a time.
  void set_link(const internal::cuda::LinkTuning& link) { use(link); }
  void set_staging(std::int64_t bytes) {
    staging_.reset();
    staging_bytes_ = bytes;
  }

  Result<void*> workspace(std::int64_t bytes) override;
  // Full of 0xa5 until the stream has come there. What nobody owns any more is freed by finish().
  Result<std::shared_ptr<void>> memory(std::int64_t bytes, const void* from) override;
  // kUnavailable with a finding.
  Status wait() override;
  Result<void*> device_address(Operator op, const char* name, const void* host) override;
  Result<std::int64_t> reserve_staging() override;
  Staging staging() override;
  // As late as everything else; both sides must be memory that was registered or pinned.
  Status copy_batch(Operator op, std::span<const internal::cuda::CopyRun> runs) override;

 protected:
  Status launch_kernel(Operator op, std::size_t kernel, const void* params, std::uint32_t blocks) override;

 private:
  Report copy(std::span<const internal::cuda::CopyRun> runs) const;

  std::uint64_t seed_;
  std::uint64_t launches_ = 0, batches_ = 0, runs_ = 0;
  std::vector<std::function<Report()>> work_;
  std::vector<std::unique_ptr<Buffer<std::byte>>> workspaces_;
  std::vector<std::shared_ptr<Buffer<std::byte>>> memory_;
  std::mutex staging_mutex_;
  std::int64_t staging_bytes_ = 1 << 20;
  std::unique_ptr<Buffer<std::byte>> staging_;
  struct Pinned {
    std::size_t bytes;
    bool contested;
  };
  std::map<const std::byte*, Pinned> pinned_;
  std::map<const std::byte*, RegisteredRange> mapped_;
};

// A context whose device is the emulation.
kvferry::Context make_context(const std::shared_ptr<EmulatedQueue>& queue, ContextOptions options = {});

// Memory of the host is the device's, or pinned, until the result dies.
std::shared_ptr<void> lend(const std::shared_ptr<EmulatedQueue>& queue, std::byte* data, std::size_t bytes,
                           harness::CaseDevice::Use use);

// Cases of the harness in the emulation.
class EmulatedDevice final : public harness::CaseDevice {
 public:
  explicit EmulatedDevice(std::uint64_t seed = 1) : queue_(std::make_shared<EmulatedQueue>(seed)) {}

  kvferry::Context make_context(const ContextOptions& options) override {
    return emulation::make_context(queue_, options);
  }
  std::string why_not(const harness::Instance& instance) const override;
  std::shared_ptr<void> lend(std::byte* data, std::int64_t bytes, Use use) override {
    return emulation::lend(queue_, data, static_cast<std::size_t>(bytes), use);
  }
  std::string finish() override { return queue_->finish(); }
  std::uint64_t launches() const { return queue_->launches(); }

 private:
  std::shared_ptr<EmulatedQueue> queue_;
};

}  // namespace kvferry::emulation
