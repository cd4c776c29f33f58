// SPDX-License-Identifier: Apache-2.0
//
// Blocks between host and device: three ways, and what each is thought to cost.
//
// kKernel: the multiprocessors read or write the host's memory over the link. No start for each block, but a
//   kernel of few blocks does not quite fill the link.
// kDma: the DMA engines copy from block to block. The link is full while a copy takes longer than to start
//   the next.
// kStaged: the DMA engines copy what is in one piece on the host's side, and a buffer on the device stands
//   for the device's side; kernels move between it and the blocks. Fewer and longer copies where blocks that
//   follow each other on the host are scattered on the device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backends/cuda/tuning.hpp"

namespace kvferry::internal::cuda {

enum class Way : std::uint8_t { kKernel, kDma, kStaged };
inline constexpr Way kWays[] = {Way::kDma, Way::kStaged, Way::kKernel};  // of equals the first

constexpr const char* to_string(Way way) {
  return way == Way::kKernel ? "kernel" : way == Way::kDma ? "dma" : "staged";
}

// What a call has to move, and what each way needs for it.
struct Transfer {
  std::int64_t bytes = 0;
  std::int64_t launches = 0;       // kKernel
  std::int64_t copies = 0;         // kDma; 0: it cannot
  std::int64_t chunks = 0;         // kStaged: fillings of the buffer; 0: it cannot
  std::int64_t staged_copies = 0;  // of all chunks
};

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// Nanoseconds on the GPU. kNever: it cannot, or the host would write down too many copies.
constexpr std::int64_t estimate(Way way, const Transfer& t, const LinkTuning& link) {
  const auto by_dma = [&](std::int64_t copies) {
    return std::max(copies * link.copy_ns, t.bytes / link.dma_rate);
  };
  switch (way) {
    case Way::kKernel:
      return t.launches * link.start_ns + t.bytes / link.kernel_rate;
    case Way::kDma:
      if (t.copies == 0 || t.copies > link.most_copies) return kNever;
      return link.start_ns + by_dma(t.copies);
    case Way::kStaged:
      if (t.chunks == 0 || t.staged_copies > link.most_copies) return kNever;
      return 2 * t.chunks * link.start_ns + by_dma(t.staged_copies) + t.bytes / link.device_rate;
  }
  return kNever;
}

constexpr Way best_way(const Transfer& t, const LinkTuning& link) {
  Way best = Way::kKernel;
  std::int64_t least = kNever;
  for (const Way way : kWays) {
    const std::int64_t ns = estimate(way, t, link);
    if (ns >= least) continue;
    best = way;
    least = ns;
  }
  return best;
}

}  // namespace kvferry::internal::cuda
