// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "core/impl.hpp"
#include "core/index_view.hpp"
#include "kvferry/ops/scatter_pa_kv_cache.hpp"
#include "ops/paged_layout.hpp"

namespace kvferry::internal {

struct ScatterPaKvCachePlan final : PlanBody {
  using ImplType = Impl<ScatterPaKvCachePlan, ScatterPaKvCacheBuffers>;

  ScatterPaKvCachePlan() : PlanBody(Operator::kScatterPaKvCache) {}
  std::string describe_problem() const override;
  Status check(const ScatterPaKvCacheBuffers& buffers) const;

  const ImplType* impl = nullptr;
  PagedSide key, value;
  std::int64_t key_slots = 0;  // NB * bs, 0 when the pair is inactive
  std::int64_t value_slots = 0;
  std::int64_t tokens = 0;
  std::int64_t block_size = 0;
  IndexView slot_mapping;
  IndexPolicy policy = IndexPolicy::kDefault;
  // On a CUDA device: in pinned host memory.
  struct Pinned {
    bool key = false, key_cache = false, slot_mapping = false, value = false, value_cache = false;
  } pinned;
};

// Implementations in order of preference.
std::span<const ScatterPaKvCachePlan::ImplType> scatter_pa_kv_cache_cpu();
std::span<const ScatterPaKvCachePlan::ImplType> scatter_pa_kv_cache_cuda();

}  // namespace kvferry::internal
