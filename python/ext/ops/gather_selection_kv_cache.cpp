// SPDX-License-Identifier: Apache-2.0
#include "kvferry/ops/gather_selection_kv_cache.hpp"

#include "binding.hpp"
#include "ops/operators.hpp"

namespace kvferry::python {
namespace {

constexpr const char* kQLenModes[] = {"counts", "prefix_sum", "all_rows"};

// schedule() looks at all but the caches, copy() at the caches alone.
constexpr unsigned kCaches = kEverywhere | kCopy;
constexpr unsigned kState = kEverywhere | kSchedule;

struct GatherSelectionKvCache {
  using Args = GatherSelectionKvCacheArgs;
  static constexpr Operator kOp = Operator::kGatherSelectionKvCache;
  static constexpr const char* kName = "gather_selection_kv_cache";
  static constexpr const char* kPlanName = "GatherSelectionKvCachePlan";
  static constexpr std::size_t kPositional = 11;
  static constexpr std::tuple kFields{
      out("selection_k_rope", &Args::selection_k_rope, kCaches),
      out("selection_kv_cache", &Args::selection_kv_cache, kCaches),
      in("selection_kv_block_table", &Args::selection_kv_block_table, kState),
      out("selection_kv_block_status", &Args::selection_kv_block_status, kState),
      in("selection_topk_indices", &Args::selection_topk_indices, kState),
      in("full_k_rope", &Args::full_k_rope, kCaches),
      in("full_kv_cache", &Args::full_kv_cache, kCaches),
      in("full_kv_block_table", &Args::full_kv_block_table, kState),
      in("full_kv_actual_seq", &Args::full_kv_actual_seq, kState),
      in("full_q_actual_seq", &Args::full_q_actual_seq, kState),
      out("selection_kv_actual_seq", &Args::selection_kv_actual_seq, kState),
      value("selection_topk_block_size", &Args::selection_topk_block_size, std::int64_t{64}, "int = 64"),
      choice("q_len_mode", &Args::q_len_mode, kQLenModes),
      in("status_row", &Args::status_row, kState),
      out("counters", &Args::counters, kState),
      out("fetch_counts", &Args::fetch_counts, kState),
      index_policy<Args>(),
      RecordField<Args>{},
  };
  static constexpr const char* kDoc =
      R"(The top-k blocks of a long paged cache into a small selection cache, in place, re-using what is there.

After the call each query row's selection cache holds the selected blocks of its sequence, compactly. Only blocks
that the call before did not leave there are read from the full cache. batch b and query row s are row
r = b * S + s; K ids a row; index tensors are int32.

selection_k_rope:          written, [pages, page_tokens, rope_size]; None together with full_k_rope
selection_kv_cache:        written, [pages, page_tokens, kv_size]
selection_kv_block_table:  [rows or more, columns]: the pages of each row's selection cache
selection_kv_block_status: written, [B, S, 1, K+1] or [B*S, 1, K+1]: the id in each slot (-1: none), then the row's
                           tokens; set the last to 0 to forget a row
selection_topk_indices:    [B, S, 1, K] or [B*S, 1, K]: block numbers of the sequence; a negative one ends the row
full_k_rope, full_kv_cache: [pages, page_tokens, size], any memory, a mapped file too; dtype of the selection's
full_kv_block_table:       [B, columns]
full_kv_actual_seq:        [B]: tokens of each sequence, those of this step included
full_q_actual_seq:         [B]: query tokens of this step ("counts"), their running sums ("prefix_sum"), or with
                           "all_rows" None: S of each
selection_kv_actual_seq:   written, [rows of selection_kv_block_table]: valid tokens of each row
selection_topk_block_size: tokens of a block
status_row:                [B*S]: the row of status and selection table that a query row uses; -1 skips it
counters:                  written, [B*S, 3]: hits, misses, moved
fetch_counts:              written, [B]: distinct misses

A bad entry of the full table gives a slot of zeros, one of the selection table leaves the slot unwritten; neither
slot is re-used. A bad status_row skips its row. "report" also counts them in error_record (batch = row, column =
slot, id = the selected id); "reject" raises IndexError before anything is written.

Outputs may not overlap each other or an input.)";
};

}  // namespace

void define_gather_selection_kv_cache(nb::module_& module) {
  auto plan_class = define_operator<GatherSelectionKvCache>(module);
  define_step<GatherSelectionKvCache>(
      plan_class, "schedule",
      R"(The first half of run(): decides, and writes status, lengths and counters.

The list of copies stays in the plan, for copy(), until the next schedule(): one schedule at a time.)",
      [](const Plan& plan, const auto& buffers, const Context& context) {
        return schedule(plan, buffers, context);
      },
      true, fields_with<GatherSelectionKvCache, kSchedule>());
  define_step<GatherSelectionKvCache>(
      plan_class, "copy",
      R"(The second half of run(): what schedule() decided, on one layer's caches.

Any number of times, for layers that share tables and top-k.)",
      [](const Plan& plan, const auto& buffers, const Context& context) {
        return copy(plan, buffers, context);
      },
      true, fields_with<GatherSelectionKvCache, kCopy>());
}

}  // namespace kvferry::python
