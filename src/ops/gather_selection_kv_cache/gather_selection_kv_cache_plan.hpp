// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/checked_math.hpp"
#include "core/impl.hpp"
#include "core/index_view.hpp"
#include "core/layout.hpp"
#include "kvferry/ops/gather_selection_kv_cache.hpp"

namespace kvferry::internal {

// A tensor of int32 rows: status, top-k. [B, S, 1, columns] or [rows, 1, columns].
struct RowsView {
  std::int64_t base = 0;  // bytes
  std::int64_t batch_step = 0;
  std::int64_t row_step = 0;
  std::int64_t column_step = 0;
  std::int64_t rows_per_batch = 1;

  RowsView() = default;
  explicit RowsView(const TensorView& view);

  std::int64_t row(std::int64_t r) const noexcept {
    return base + r / rows_per_batch * batch_step + r % rows_per_batch * row_step;
  }
};

// One of rope and kv, in bytes.
struct SelectionSide {
  struct Cache {
    std::int64_t base = 0;
    std::int64_t page_step = 0;
    std::int64_t token_step = 0;
  };
  bool active = false;  // false: absent or without bytes, nothing else is set
  Cache full, selection;
  TokenMove fetch;  // full to selection
  TokenMove move;   // inside the selection
};

// Pages of a cache in blocks of selection_topk_block_size tokens, the unit of everything below.
struct PagedBlocks {
  std::int64_t pages = 0;
  std::int64_t columns = 0;   // of the block table
  std::int64_t per_page = 1;  // blocks
};

// Parts of the workspace, in bytes from its aligned start.
struct SelectionWorkspace {
  std::int64_t leaving = 0;      // SelectionCopy[rows]
  std::int64_t copies = 0;       // SelectionCopy[batches][rows_per_batch * k]
  std::int64_t ends = 0;         // int64[batches + 1]
  std::int64_t status_rows = 0;  // int32[rows]
  std::int64_t seen = 0;         // a bit for each row of status
  std::int64_t planners = 0;     // one scratch for each planner
  std::int64_t planner_bytes = 0;
};

// Adds up parts on 64-byte boundaries.
class PartsLayout {
 public:
  explicit PartsLayout(std::int64_t begin) : end_(begin) {}
  std::int64_t add(Checked count, std::int64_t bytes) {
    const std::int64_t at = end_.value;
    end_ = end_ + count * bytes + 63;
    end_.value = end_.value / 64 * 64;
    return at;
  }
  std::int64_t end() const { return end_.value; }
  bool overflow() const { return end_.overflow; }

 private:
  Checked end_;
};

// The same of a CUDA device's; see backends/cuda/selection_schedule.hpp. Behind the plan's id.
struct SelectionCudaWorkspace {
  std::int64_t leaving = 0;      // BlockCopy[rows]
  std::int64_t copies = 0;       // BlockCopy[rows][k]
  std::int64_t counts = 0;       // int32[rows]
  std::int64_t ends = 0;         // int64[rows + 1]
  std::int64_t records = 0;      // Record[batches + 1], the last of status_row
  std::int64_t states = 0;       // int32[rows]
  std::int64_t state_table = 0;  // see SelectionStates
  std::int64_t tables = 0;       // see SelectionPlanner
  std::int64_t groups = 0;
};

// What run(), schedule() and copy() are to the implementations: one call with its phases.
struct SelectionCall {
  GatherSelectionKvCacheBuffers buffers;
  bool schedules = true;
  bool copies = true;
};

struct GatherSelectionKvCachePlan final : PlanBody {
  using ImplType = Impl<GatherSelectionKvCachePlan, SelectionCall>;

  GatherSelectionKvCachePlan() : PlanBody(Operator::kGatherSelectionKvCache) {}
  std::string describe_problem() const override;
  Status check(const SelectionCall& call) const;

  std::int64_t block_bytes() const { return block_tokens * (kv.fetch.token_bytes + rope.fetch.token_bytes); }

  const ImplType* impl = nullptr;
  std::uint64_t id = 0;  // of this plan among all: says whose schedule a workspace holds
  SelectionSide kv, rope;
  PagedBlocks full, selection;
  std::int64_t batches = 0;
  std::int64_t rows_per_batch = 0;
  std::int64_t rows = 0;
  std::int64_t k = 0;
  std::int64_t block_tokens = 1;
  std::int64_t output_rows = 0;
  std::int64_t status_rows = 0;
  RowsView state, topk;
  IndexView selection_table, full_table, kv_len, q_len, actual_seq, status_row, counters, fetch_counts;
  bool has_status_row = false;
  bool has_counters = false;
  bool has_fetch_counts = false;
  QLenMode q_len_mode = QLenMode::kCounts;
  IndexPolicy policy = IndexPolicy::kDefault;
  int planners = 1;
  SelectionWorkspace parts;
  SelectionCudaWorkspace cuda_parts;
  // On a CUDA device: in pinned host memory.
  struct Pinned {
    bool selection_k_rope = false, selection_kv_cache = false, selection_table = false, status = false,
         topk = false, full_k_rope = false, full_kv_cache = false, full_table = false, kv_len = false,
         q_len = false, actual_seq = false, status_row = false, counters = false, fetch_counts = false;
  } pinned;
};

// CPU implementations in order of preference, and what they need of the workspace.
std::span<const GatherSelectionKvCachePlan::ImplType> gather_selection_kv_cache_cpu();
std::span<const GatherSelectionKvCachePlan::ImplType> gather_selection_kv_cache_cuda();
// False if the sizes do not fit 64 bits.
bool lay_out_workspace(GatherSelectionKvCachePlan& plan);
bool lay_out_cuda_workspace(GatherSelectionKvCachePlan& plan);

}  // namespace kvferry::internal
