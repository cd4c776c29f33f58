// SPDX-License-Identifier: Apache-2.0
#include "ops/paged_cuda.hpp"

#include <cstddef>

namespace kvferry::internal {

static_assert(sizeof(cuda::Record) == sizeof(ErrorRecord) && alignof(cuda::Record) == alignof(ErrorRecord) &&
              offsetof(cuda::Record, batch) == offsetof(ErrorRecord, batch) &&
              offsetof(cuda::Record, column) == offsetof(ErrorRecord, column) &&
              offsetof(cuda::Record, id) == offsetof(ErrorRecord, id) &&
              offsetof(cuda::Record, which) == offsetof(ErrorRecord, which) &&
              offsetof(cuda::Record, op) == offsetof(ErrorRecord, op));
static_assert(cuda::kKeyBit == kBadKey && cuda::kValueBit == kBadValue && cuda::kColumnBit == kBadColumn &&
              cuda::kDuplicateBit == kBadDuplicate && cuda::kSourceBit == kBadSource &&
              cuda::kDestinationBit == kBadDestination);

namespace {

cuda::ReadsParams reads_params(const PagedReads& reads, const ReadPointers& pointers,
                               std::uint32_t task_shift) {
  cuda::ReadsParams params{};
  params.table = cuda_indices(reads.block_tables, pointers.block_tables);
  params.lengths = cuda_indices(reads.seq_lens, pointers.seq_lens);
  if (reads.has_offset) params.offsets = cuda_indices(reads.seq_offset, pointers.seq_offset);
  params.table_width = reads.table_width;
  params.batches = reads.batches;
  params.rows = reads.rows;
  params.block_size = reads.block_size;
  params.task_shift = task_shift;
  params.cumsum = reads.cumsum;
  params.has_offsets = reads.has_offset;
  return params;
}

}  // namespace

Result<cuda::PagedLoopParams> cuda_paged_loop(const PagedReads& reads, const ReadPointers& pointers,
                                              std::uint32_t task_shift, Operator op,
                                              const Workspace& workspace, ErrorRecord* record,
                                              cuda::Queue& queue) {
  cuda::PagedLoopParams loop{};
  loop.reads = reads_params(reads, pointers, task_shift);
  if (!cuda_plans_reads(reads)) return loop;
  cuda::PagedCut::Params cut{};
  cut.reads = loop.reads;
  cut.sequences = cuda::DevicePtr<cuda::PagedSequence>::at(aligned<cuda::PagedSequence>(workspace));
  if (reads.policy == IndexPolicy::kReport)
    cut.record = cuda::DevicePtr<cuda::Record>::at(reinterpret_cast<cuda::Record*>(record));
  for (const PagedReads::Cache& cache : reads.used_caches())
    cut.caches[cut.cache_count++] = {cache.blocks, cache.bad_bit};
  cut.op = static_cast<std::uint32_t>(op);
  if (Status status = queue.launch<cuda::PagedCut>(op, cut, 1); !status.ok()) return status;
  loop.sequences = cut.sequences;
  return loop;
}

}  // namespace kvferry::internal
