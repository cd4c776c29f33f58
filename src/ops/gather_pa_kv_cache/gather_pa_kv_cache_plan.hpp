// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "core/impl.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"
#include "ops/paged_layout.hpp"
#include "ops/paged_reads.hpp"

namespace kvferry::internal {

struct GatherPaKvCachePlan final : PlanBody {
  using ImplType = Impl<GatherPaKvCachePlan, GatherPaKvCacheBuffers>;

  GatherPaKvCachePlan() : PlanBody(Operator::kGatherPaKvCache) {}
  std::string describe_problem() const override;
  Status check(const GatherPaKvCacheBuffers& buffers) const;

  const ImplType* impl = nullptr;
  PagedSide key, value;
  PagedReads reads;
  // On a CUDA device: in pinned host memory.
  struct Pinned {
    bool key_cache = false, value_cache = false, block_tables = false, seq_lens = false, seq_offset = false,
         key = false, value = false;
  } pinned;
  std::string ascend;  // what a CANN build would select
};

// Implementations in order of preference.
std::span<const GatherPaKvCachePlan::ImplType> gather_pa_kv_cache_cpu();
std::span<const GatherPaKvCachePlan::ImplType> gather_pa_kv_cache_cuda();

}  // namespace kvferry::internal
