// SPDX-License-Identifier: Apache-2.0
//
// Every choice of the CUDA backend that depends on the GPU, as data. None of these has been measured on a GPU
// yet: they are estimates from data sheets (docs/performance.md).
#pragma once

#include <cstdint>

namespace kvferry::internal::cuda {

struct Tuning {
  int architecture;  // 90: sm_90
  // Bytes of one task: enough for 256 threads with 4 loads of 16 bytes each in flight, so that short pages
  // are whole tasks and long ones spread over blocks.
  std::int64_t task_bytes;
  // Of a warp's task: two rounds of 4 loads of 16 bytes a lane.
  std::int64_t warp_task_bytes;
  // Blocks that read host memory: the link is full long before the GPU is.
  std::uint32_t host_blocks;
  // Copies between host and device go to the DMA engines if they have this many bytes on average, so that
  // starting one costs less than the link needs for it, and are at most so many: the host writes each one
  // down.
  std::int64_t dma_bytes, dma_copies;
};

inline constexpr Tuning kTunings[] = {
    {80, 16 << 10, 4 << 10, 8, 64 << 10, 4096},
    {90, 16 << 10, 4 << 10, 8, 64 << 10, 4096},
    {100, 32 << 10, 4 << 10, 32, 64 << 10, 4096},
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
