// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "core/impl.hpp"
#include "core/index_view.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"
#include "ops/paged_layout.hpp"

namespace kvferry::internal {

struct GatherPaKvCachePlan final : PlanBody {
  using ImplType = Impl<GatherPaKvCachePlan, GatherPaKvCacheBuffers>;

  GatherPaKvCachePlan() : PlanBody(Operator::kGatherPaKvCache) {}
  std::string describe_problem() const override;
  Status check(const GatherPaKvCacheBuffers& buffers) const;

  const ImplType* impl = nullptr;
  PagedSide key, value;
  std::int64_t batches = 0;
  std::int64_t table_width = 0;
  std::int64_t rows = 0;
  std::int64_t block_size = 0;
  IndexView block_tables, seq_lens, seq_offset;
  bool has_offset = false;
  bool cumsum = false;
  IndexPolicy policy = IndexPolicy::kDefault;
  std::string ascend;  // what a CANN build would select
};

// One batch after the cut at N: `tokens` tokens from (column, slot) on, to rows [row, row + tokens).
struct GatherSequence {
  std::int64_t row;
  std::int64_t column;  // clamped to +-2^62
  std::int64_t slot;
  std::int64_t tokens;
  std::int64_t start;  // tokens of the batches before
};

// CPU implementations in order of preference.
std::span<const GatherPaKvCachePlan::ImplType> gather_pa_kv_cache_cpu();

}  // namespace kvferry::internal
