// SPDX-License-Identifier: Apache-2.0
//
// Every choice of the CUDA backend that depends on the GPU, as data. None of these has been measured on a GPU
// yet: they are estimates from data sheets (docs/performance.md).
#pragma once

#include <cstdint>

namespace kvferry::internal::cuda {

// What the choice between kernels, DMA engines and staging counts with (transfer.hpp). Rates are bytes a
// nanosecond.
struct LinkTuning {
  std::int64_t dma_rate;     // a long copy between host and device
  std::int64_t kernel_rate;  // host_blocks blocks that read or write host memory
  std::int64_t device_rate;  // a kernel that copies within the device
  std::int64_t copy_ns;      // a DMA engine from one short copy to the next
  std::int64_t start_ns;     // a piece of work that waits for the one before it on its stream
  std::int64_t most_copies;  // of a call: the host writes each one down
};

struct Tuning {
  int architecture;  // 90: sm_90
  // Bytes of one task: enough for 256 threads with 4 loads of 16 bytes each in flight, so that short pages
  // are whole tasks and long ones spread over blocks.
  std::int64_t task_bytes;
  // Of a warp's task: two rounds of 4 loads of 16 bytes a lane.
  std::int64_t warp_task_bytes;
  // Blocks that read host memory: the link is full long before the GPU is.
  std::uint32_t host_blocks;
  LinkTuning link;
};

inline constexpr Tuning kTunings[] = {
    {80, 16 << 10, 4 << 10, 8, {25, 22, 600, 1200, 3000, 4096}},
    {90, 16 << 10, 4 << 10, 8, {55, 50, 1500, 1200, 3000, 4096}},
    {100, 32 << 10, 4 << 10, 32, {55, 50, 2500, 1200, 3000, 4096}},
};

// Of the newest architecture that is not newer than this one.
constexpr const Tuning& tuning_of(int architecture) {
  const Tuning* best = &kTunings[0];
  for (const Tuning& one : kTunings) {
    if (one.architecture <= architecture) best = &one;
  }
  return *best;
}

}  // namespace kvferry::internal::cuda
