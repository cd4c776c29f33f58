// SPDX-License-Identifier: Apache-2.0
//
// The paged plans in the words of the CUDA kernels.
#pragma once

#include <cstdint>

#include "backends/cuda/paged_gather.hpp"
#include "ops/paged_layout.hpp"
#include "ops/paged_reads.hpp"

namespace kvferry::internal {

inline cuda::PagedTable cuda_table(const PagedReads& reads, const void* block_tables) {
  const IndexView& view = reads.block_tables;
  return {cuda::DevicePtr<const std::uint8_t>::at(static_cast<const std::uint8_t*>(block_tables) + view.base),
          view.step0, view.step1, reads.table_width, view.wide};
}

// One nest of a side: a token of several nests takes as many launches. REQUIRES at most
// PagedGatherSide::kLoops loops, and pieces and counts of 32 bits.
inline cuda::PagedGatherSide cuda_gather_side(const PagedSide& side, const Nest& nest, const void* cache,
                                              void* rows) {
  cuda::PagedGatherSide to{};
  if (side.blocks > 0) {
    to.cache = cuda::DevicePtr<const std::uint8_t>::at(static_cast<const std::uint8_t*>(cache) +
                                                       side.cache_base + nest.src_base);
  }
  to.rows =
      cuda::DevicePtr<std::uint8_t>::at(static_cast<std::uint8_t*>(rows) + side.row_base + nest.dst_base);
  to.blocks = side.blocks;
  to.block_step = side.block_step;
  to.slot_step = side.slot_step;
  to.row_step = side.row_step;
  to.piece = static_cast<std::uint32_t>(nest.piece);
  to.joined = side.move.kind == MoveKind::kDense || side.move.kind == MoveKind::kPlanes;
  to.loop_count = static_cast<std::uint32_t>(nest.loop_count);
  for (std::size_t l = 0; l < to.loop_count; ++l) {
    const Axis& loop = nest.loops[l];
    to.loops[l] = {static_cast<std::uint32_t>(loop.count), loop.src_step, loop.dst_step};
  }
  return to;
}

}  // namespace kvferry::internal
