// SPDX-License-Identifier: Apache-2.0
//
// Queue: where the operators launch kernels. A stream of a GPU (cuda_queue.cpp), or in the tests the
// emulation (tests/cuda_emulation/queue.hpp), so that what decides and launches is tested too. No CUDA header
// in here: the operators are compiled without nvcc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "backends/cuda/kernels.hpp"
#include "backends/cuda/tuning.hpp"
#include "core/device_queue.hpp"
#include "kvferry/plan.hpp"

namespace kvferry::internal::cuda {

// One copy of copy_batch(); either side may be memory of the device or pinned host memory, by its own
// address.
struct CopyRun {
  void* dst;
  const void* src;
  std::int64_t bytes;
};

class Queue : public DeviceQueue {
 public:
  const Tuning& tuning() const { return tuning_; }
  std::int64_t multiprocessors() const { return multiprocessors_; }

  // Kernel K on the stream: at most `units` blocks, and as many as are resident at once, or of those that
  // read host memory as the link needs. 0 units: nothing.
  template <class K>
  Status launch(Operator op, const typename K::Params& params, std::int64_t units, bool from_host = false) {
    constexpr std::size_t kIndex = Kernels::index<K>();
    static_assert(kIndex < Kernels::kSize, "the kernel is not in the list");
    if (units <= 0) return {};
    std::int64_t resident = multiprocessors_ * std::int64_t{K::kMinBlocks};
    if (from_host) resident = std::min(resident, std::int64_t{tuning_.host_blocks});
    return launch_kernel(op, kIndex, &params, static_cast<std::uint32_t>(std::min(units, resident)));
  }

  // The address that the device has for pinned host memory, asked of the runtime. kInvalidArgument, with the
  // operator and the tensor, for memory that it does not have mapped.
  virtual Result<void*> device_address(Operator op, const char* name, const void* host) = 0;

  // These copies on the stream, in any order, as one submission where the runtime has that. The list may go
  // when it returns.
  virtual Status copy_batch(Operator op, std::span<const CopyRun> runs) = 0;

  // Device memory for what one call fills and empties again and again, in the order of the stream: others
  // enqueue nothing there while it is held. Without memory (null) where nobody reserved it, where a graph
  // would keep it, and where the stream is another one in each thread.
  struct Staging {
    std::unique_lock<std::mutex> lock;
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
  };
  virtual Staging staging() = 0;
  // For staging() from now on, as ContextOptions::cuda_staging_bytes says. How many bytes there are.
  virtual Result<std::int64_t> reserve_staging() = 0;

 protected:
  Queue(int architecture, std::int64_t multiprocessors)
      : tuning_(tuning_of(architecture)), multiprocessors_(multiprocessors) {}
  void use(const LinkTuning& link) { tuning_.link = link; }
  virtual Status launch_kernel(Operator op, std::size_t kernel, const void* params, std::uint32_t blocks) = 0;

 private:
  Tuning tuning_;
  std::int64_t multiprocessors_;
};

}  // namespace kvferry::internal::cuda
