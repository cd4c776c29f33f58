// SPDX-License-Identifier: Apache-2.0
//
// The paged reads in the words of the CUDA kernels.
#pragma once

#include <cstdint>

#include "backends/cuda/queue.hpp"
#include "core/impl.hpp"
#include "ops/cuda_implementation.hpp"
#include "ops/paged_layout.hpp"
#include "ops/paged_reads.hpp"

namespace kvferry::internal {

// Of the workspace: the sequences, where a planning pass makes them.
inline bool cuda_plans_reads(const PagedReads& reads) {
  return reads.batches > cuda::kMostOwnBatches || reads.policy == IndexPolicy::kReport;
}
inline std::int64_t cuda_reads_workspace(const PagedReads& reads) {
  if (reads.cache_count == 0 || !cuda_plans_reads(reads)) return 0;
  return (reads.batches + 1) * static_cast<std::int64_t>(sizeof(cuda::PagedSequence)) + kWorkspaceAlign;
}

// What a kernel that reads pages loops over. Launches the planning pass, if the reads want one.
Result<cuda::PagedLoopParams> cuda_paged_loop(const PagedReads& reads, const ReadPointers& pointers,
                                              std::uint32_t task_shift, Operator op,
                                              const Workspace& workspace, ErrorRecord* record,
                                              cuda::Queue& queue);

// At least as many as there are tasks.
inline std::int64_t cuda_most_tasks(const PagedReads& reads, std::uint32_t task_shift) {
  const std::int64_t parts = ((reads.block_size - 1) >> task_shift) + 1;
  const std::int64_t pages = std::min(reads.rows, reads.rows / reads.block_size + 2 * reads.batches);
  return std::min(pages, std::int64_t{1} << 40) * std::min(parts, std::int64_t{1} << 20);
}

}  // namespace kvferry::internal
