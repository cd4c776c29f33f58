// SPDX-License-Identifier: Apache-2.0
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_plan.hpp"

#include <algorithm>
#include <atomic>
#include <limits>

#include "backends/cpu/parallel_for.hpp"
#include "core/checked_math.hpp"
#include "core/checks.hpp"
#include "ops/cuda_implementation.hpp"

namespace kvferry {
namespace internal {

RowsView::RowsView(const TensorView& view)
    : base(offset_bytes(view)), column_step(step_bytes(view, view.rank - 1)) {
  if (view.rank == 4) rows_per_batch = std::max<std::int64_t>(1, view.dim(1));
  batch_step = step_bytes(view, 0);
  row_step = view.rank == 4 ? step_bytes(view, 1) : 0;
}

namespace {

using Args = GatherSelectionKvCacheArgs;

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

// Rows of a status or top-k tensor; its shape was checked.
std::int64_t rows_of(const TensorView& view) {
  return view.rank == 4 ? view.dim(0) * view.dim(1) : view.dim(0);
}

bool has_rope(const std::optional<TensorView>& rope) {
  return rope && !is_empty(*rope);
}

void int32_tensor(Checker& check, const char* name, const TensorView& view, int rank) {
  check.rank(name, view, rank);
  check.that(view.dtype == DType::kInt32, "{}: dtype is {}, expected int32", name, to_string(view.dtype));
}

void int32_vector(Checker& check, const char* name, const TensorView& view, std::int64_t length,
                  const char* why) {
  int32_tensor(check, name, view, 1);
  if (check.ok()) check.dim(name, view, 0, length, why);
}

void page_size(Checker& check, const char* name, const TensorView& cache, std::int64_t block) {
  check.that(
      cache.dim(1) > 0 && cache.dim(1) <= kInt32Max && cache.dim(1) % block == 0,
      "{}: dimension 1 (page size) is {}, expected a multiple of {} (selection_topk_block_size) from 1 to {}",
      name, cache.dim(1), block, kInt32Max);
}

// One of the pairs (selection_kv_cache, full_kv_cache), (selection_k_rope, full_k_rope).
void check_caches(Checker& check, const Args& a, const char* selection_name, const TensorView& selection,
                  const char* full_name, const TensorView& full) {
  check.rank(selection_name, selection, 3);
  check.rank(full_name, full, 3);
  check.kv_dtype(selection_name, selection);
  check.same_dtype(selection_name, selection, "selection_kv_cache", a.selection_kv_cache);
  check.same_dtype(full_name, full, "selection_kv_cache", a.selection_kv_cache);
  if (!check.ok()) return;
  check.dim(full_name, full, 2, selection.dim(2), fmt::format("{} dimension 2", selection_name));
  page_size(check, selection_name, selection, a.selection_topk_block_size);
  page_size(check, full_name, full, a.selection_topk_block_size);
  for (const int axis : {0, 1}) {
    check.dim(selection_name, selection, axis, a.selection_kv_cache.dim(axis),
              fmt::format("selection_kv_cache dimension {}", axis));
    check.dim(full_name, full, axis, a.full_kv_cache.dim(axis),
              fmt::format("full_kv_cache dimension {}", axis));
  }
}

void check_state(Checker& check, const Args& a) {
  const TensorView& topk = a.selection_topk_indices;
  const TensorView& status = a.selection_kv_block_status;
  check.that(topk.rank == 3 || topk.rank == 4,
             "selection_topk_indices: rank is {}, expected 4 ([B, S, H, K]) or 3 ([B*S, H, K])", topk.rank);
  int32_tensor(check, "selection_topk_indices", topk, topk.rank);
  int32_tensor(check, "selection_kv_block_status", status, topk.rank);
  int32_tensor(check, "selection_kv_block_table", a.selection_kv_block_table, 2);
  int32_tensor(check, "full_kv_block_table", a.full_kv_block_table, 2);
  if (!check.ok()) return;
  const int last = topk.rank - 1;
  check.dim("selection_topk_indices", topk, last - 1, 1, "H");
  check.dim("selection_kv_block_status", status, last - 1, 1, "H");
  check.that(topk.dim(last) >= 1, "selection_topk_indices: dimension {} (K) is 0, expected >= 1", last);
  const Checked tokens = Checked(topk.dim(last)) * a.selection_topk_block_size;
  check.that(!tokens.overflow && tokens.value <= kInt32Max,
             "selection_topk_indices: K {} * selection_topk_block_size {} is above {}", topk.dim(last),
             a.selection_topk_block_size, kInt32Max);
  check.dim("selection_kv_block_status", status, last, topk.dim(last) + 1, "K + 1 of selection_topk_indices");
  for (int axis = 0; axis < last - 1 && !a.status_row; ++axis) {
    check.dim("selection_kv_block_status", status, axis, topk.dim(axis),
              fmt::format("selection_topk_indices dimension {}", axis));
  }
  for (const auto& [name, view] :
       {std::pair{"selection_topk_indices", &topk}, std::pair{"selection_kv_block_status", &status}}) {
    check.that(view->rank == 3 || !(Checked(view->dim(0)) * view->dim(1)).overflow,
               "{}: {} * {} rows overflow 64 bits", name, view->dim(0), view->dim(1));
  }
}

void check_batches(Checker& check, const Args& a) {
  if (!check.ok()) return;
  const TensorView& topk = a.selection_topk_indices;
  const std::int64_t batches = a.full_kv_block_table.dim(0);
  if (topk.rank == 4) {
    check.dim("selection_topk_indices", topk, 0, batches, "full_kv_block_table dimension 0");
  } else {
    check.that(batches > 0 ? topk.dim(0) % batches == 0 : topk.dim(0) == 0,
               "selection_topk_indices: dimension 0 is {}, expected a multiple of {} (full_kv_block_table "
               "dimension 0)",
               topk.dim(0), batches);
  }
  int32_vector(check, "full_kv_actual_seq", a.full_kv_actual_seq, batches, "full_kv_block_table dimension 0");
  if (a.q_len_mode == QLenMode::kAllRows) return;
  check.that(a.full_q_actual_seq.has_value(), "full_q_actual_seq: absent, expected [{}] (q_len_mode)",
             batches);
  if (check.ok()) {
    int32_vector(check, "full_q_actual_seq", *a.full_q_actual_seq, batches,
                 "full_kv_block_table dimension 0");
  }
}

void check_pages(Checker& check, const Args& a) {
  if (!check.ok()) return;
  const TensorView& table = a.selection_kv_block_table;
  const TensorView& topk = a.selection_topk_indices;
  const std::int64_t rows = rows_of(topk), k = topk.dim(topk.rank - 1);
  const std::int64_t status_rows = rows_of(a.selection_kv_block_status);
  check.that(table.dim(0) >= status_rows,
             "selection_kv_block_table: dimension 0 is {}, expected >= {} (rows of {})", table.dim(0),
             status_rows, a.status_row ? "selection_kv_block_status" : "selection_topk_indices");
  check.that(table.dim(0) >= rows,
             "selection_kv_block_table: dimension 0 is {}, expected >= {} (rows of "
             "selection_topk_indices)",
             table.dim(0), rows);
  const std::int64_t columns = ceil_div(k * a.selection_topk_block_size, a.selection_kv_cache.dim(1));
  check.that(
      table.dim(1) >= columns,
      "selection_kv_block_table: dimension 1 is {}, expected >= {} (pages of K * selection_topk_block_size "
      "tokens)",
      table.dim(1), columns);
  const Checked pages = Checked(rows) * table.dim(1);
  check.that(
      !pages.overflow && a.selection_kv_cache.dim(0) >= pages.value,
      "selection_kv_cache: dimension 0 is {}, expected >= {} * {} (rows * selection_kv_block_table dimension "
      "1)",
      a.selection_kv_cache.dim(0), rows, table.dim(1));
  int32_vector(check, "selection_kv_actual_seq", a.selection_kv_actual_seq, table.dim(0),
               "selection_kv_block_table dimension 0");
  if (a.status_row) int32_vector(check, "status_row", *a.status_row, rows, "rows of selection_topk_indices");
  if (a.counters) {
    int32_tensor(check, "counters", *a.counters, 2);
    if (check.ok()) {
      check.dim("counters", *a.counters, 0, rows, "rows of selection_topk_indices");
      check.dim("counters", *a.counters, 1, 3, "hits, misses, moved");
    }
  }
  if (a.fetch_counts) {
    int32_vector(check, "fetch_counts", *a.fetch_counts, a.full_kv_block_table.dim(0),
                 "full_kv_block_table dimension 0");
  }
}

// All rules of the operator, in the order in which they are reported.
Status check_args(const Args& a, const Context& context) {
  Checker check(Operator::kGatherSelectionKvCache, context);
  check.that(a.q_len_mode <= QLenMode::kAllRows, "q_len_mode: {}, expected kCounts, kPrefixSum or kAllRows",
             static_cast<int>(a.q_len_mode));
  check.index_policy(a.index_policy);
  check.that(a.selection_topk_block_size >= 1, "selection_topk_block_size: {}, expected >= 1",
             a.selection_topk_block_size);
  if (a.selection_k_rope) check.output("selection_k_rope", *a.selection_k_rope);
  check.output("selection_kv_cache", a.selection_kv_cache);
  check.tensor("selection_kv_block_table", a.selection_kv_block_table);
  check.output("selection_kv_block_status", a.selection_kv_block_status);
  check.tensor("selection_topk_indices", a.selection_topk_indices);
  if (a.full_k_rope) check.tensor("full_k_rope", *a.full_k_rope);
  check.tensor("full_kv_cache", a.full_kv_cache);
  check.tensor("full_kv_block_table", a.full_kv_block_table);
  check.tensor("full_kv_actual_seq", a.full_kv_actual_seq);
  const bool reads_q = a.q_len_mode != QLenMode::kAllRows;
  if (reads_q && a.full_q_actual_seq) check.tensor("full_q_actual_seq", *a.full_q_actual_seq);
  check.output("selection_kv_actual_seq", a.selection_kv_actual_seq);
  if (a.status_row) check.tensor("status_row", *a.status_row);
  if (a.counters) check.output("counters", *a.counters);
  if (a.fetch_counts) check.output("fetch_counts", *a.fetch_counts);
  check_caches(check, a, "selection_kv_cache", a.selection_kv_cache, "full_kv_cache", a.full_kv_cache);
  if (!check.ok()) return check.take();
  const bool selection_rope = has_rope(a.selection_k_rope), full_rope = has_rope(a.full_k_rope);
  check.that(selection_rope || !full_rope, "selection_k_rope: absent, expected the cache of full_k_rope");
  check.that(full_rope || !selection_rope, "full_k_rope: absent, expected the source of selection_k_rope");
  if (check.ok() && selection_rope)
    check_caches(check, a, "selection_k_rope", *a.selection_k_rope, "full_k_rope", *a.full_k_rope);
  check_state(check, a);
  check_batches(check, a);
  check_pages(check, a);
  return check.take();
}

SelectionSide::Cache cache_of(const TensorView& view) {
  return {offset_bytes(view), step_bytes(view, 0), step_bytes(view, 1)};
}

SelectionSide side_of(const TensorView& selection, const TensorView& full) {
  SelectionSide side;
  if (selection.dim(2) == 0) return side;
  const std::int64_t item = size_of(selection.dtype);
  const auto step = [](const TensorView& view) { return view.dim(2) > 1 ? view.stride(2) : 0; };
  const auto make = [&](const TensorView& from, const TensorView& to) {
    const Axis row{to.dim(2), step(from), step(to)};
    return make_token_move({make_nest({&row, 1}, item)}, step_bytes(from, 1), step_bytes(to, 1));
  };
  side.active = true;
  side.full = cache_of(full);
  side.selection = cache_of(selection);
  side.fetch = make(full, selection);
  side.move = make(selection, selection);
  return side;
}

std::uint64_t next_plan_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

Status GatherSelectionKvCachePlan::check(const SelectionCall& call) const {
  const GatherSelectionKvCacheBuffers& b = call.buffers;
  Status status = check_workspace(*this, b.workspace);
  if (call.schedules) {
    const bool any = rows > 0;
    need(status, *this, "selection_kv_block_table", b.selection_kv_block_table, any);
    need(status, *this, "selection_kv_block_status", b.selection_kv_block_status, any && status_rows > 0);
    need(status, *this, "selection_topk_indices", b.selection_topk_indices, any);
    need(status, *this, "full_kv_block_table", b.full_kv_block_table, any && full.columns > 0);
    need(status, *this, "full_kv_actual_seq", b.full_kv_actual_seq, any);
    need(status, *this, "full_q_actual_seq", b.full_q_actual_seq, any && q_len_mode != QLenMode::kAllRows);
    need(status, *this, "selection_kv_actual_seq", b.selection_kv_actual_seq, output_rows > 0);
    need(status, *this, "status_row", b.status_row, any && has_status_row);
    need(status, *this, "counters", b.counters, any && has_counters);
    need(status, *this, "fetch_counts", b.fetch_counts, batches > 0 && has_fetch_counts);
  }
  if (call.copies) {
    const bool reads = rows > 0 && full.pages > 0;
    need(status, *this, "selection_k_rope", b.selection_k_rope, rope.active && rows > 0);
    need(status, *this, "selection_kv_cache", b.selection_kv_cache, kv.active && rows > 0);
    need(status, *this, "full_k_rope", b.full_k_rope, rope.active && reads);
    need(status, *this, "full_kv_cache", b.full_kv_cache, kv.active && reads);
  }
  return status;
}

std::string GatherSelectionKvCachePlan::describe_problem() const {
  std::string text =
      fmt::format("  problem         {} batches of {} rows, up to {} blocks of {} tokens a row\n", batches,
                  rows_per_batch, k, block_tokens);
  text += fmt::format("  selection       {} pages of {} blocks, {} a row\n", selection.pages,
                      selection.per_page, selection.columns);
  text += fmt::format("  full            {} pages of {} blocks, up to {} a sequence\n", full.pages,
                      full.per_page, full.columns);
  for (const auto& [name, side] : {std::pair{"kv  ", &kv}, std::pair{"rope", &rope}}) {
    text += side->active ? fmt::format("  {}            {}\n", name, internal::describe(side->fetch))
                         : fmt::format("  {}            without bytes: skipped\n", name);
  }
  return text + cpu::describe_units(rows * k, block_bytes(), threads, "blocks");
}

}  // namespace internal

GatherSelectionKvCacheBuffers buffers(const GatherSelectionKvCacheArgs& args) noexcept {
  const auto data = [](const std::optional<TensorView>& view) { return view ? view->data : nullptr; };
  GatherSelectionKvCacheBuffers b;
  b.selection_k_rope = data(args.selection_k_rope);
  b.selection_kv_cache = args.selection_kv_cache.data;
  b.selection_kv_block_table = args.selection_kv_block_table.data;
  b.selection_kv_block_status = args.selection_kv_block_status.data;
  b.selection_topk_indices = args.selection_topk_indices.data;
  b.full_k_rope = data(args.full_k_rope);
  b.full_kv_cache = args.full_kv_cache.data;
  b.full_kv_block_table = args.full_kv_block_table.data;
  b.full_kv_actual_seq = args.full_kv_actual_seq.data;
  b.full_q_actual_seq = data(args.full_q_actual_seq);
  b.selection_kv_actual_seq = args.selection_kv_actual_seq.data;
  b.status_row = data(args.status_row);
  b.counters = data(args.counters);
  b.fetch_counts = data(args.fetch_counts);
  return b;
}

Result<Plan> plan(const GatherSelectionKvCacheArgs& args, const Context& context) noexcept {
  using namespace internal;
  return guarded_plan([&]() -> Result<Plan> {
    if (Status status = check_args(args, context); !status.ok()) return status;
    auto body = std::make_shared<GatherSelectionKvCachePlan>();
    const TensorView& topk = args.selection_topk_indices;
    body->id = next_plan_id();
    body->kv = side_of(args.selection_kv_cache, args.full_kv_cache);
    if (has_rope(args.selection_k_rope)) body->rope = side_of(*args.selection_k_rope, *args.full_k_rope);
    body->block_tokens = args.selection_topk_block_size;
    body->batches = args.full_kv_block_table.dim(0);
    body->rows = rows_of(topk);
    body->rows_per_batch = body->batches > 0 ? body->rows / body->batches : 0;
    body->k = topk.dim(topk.rank - 1);
    body->selection = {args.selection_kv_cache.dim(0), args.selection_kv_block_table.dim(1),
                       args.selection_kv_cache.dim(1) / body->block_tokens};
    body->full = {args.full_kv_cache.dim(0), args.full_kv_block_table.dim(1),
                  args.full_kv_cache.dim(1) / body->block_tokens};
    body->output_rows = args.selection_kv_block_table.dim(0);
    body->status_rows = rows_of(args.selection_kv_block_status);
    body->state = RowsView(args.selection_kv_block_status);
    body->topk = RowsView(topk);
    body->selection_table = IndexView(args.selection_kv_block_table);
    body->full_table = IndexView(args.full_kv_block_table);
    body->kv_len = IndexView(args.full_kv_actual_seq);
    body->q_len_mode = args.q_len_mode;
    if (args.q_len_mode != QLenMode::kAllRows) body->q_len = IndexView(*args.full_q_actual_seq);
    body->actual_seq = IndexView(args.selection_kv_actual_seq);
    body->has_status_row = args.status_row.has_value();
    if (args.status_row) body->status_row = IndexView(*args.status_row);
    body->has_counters = args.counters.has_value();
    if (args.counters) body->counters = IndexView(*args.counters);
    body->has_fetch_counts = args.fetch_counts.has_value();
    if (args.fetch_counts) body->fetch_counts = IndexView(*args.fetch_counts);
    body->policy = args.index_policy;
    body->planners = static_cast<int>(std::clamp<std::int64_t>(body->batches, 1, context.threads()));
    body->pinned = {has_rope(args.selection_k_rope) && is_pinned(*args.selection_k_rope),
                    is_pinned(args.selection_kv_cache),
                    is_pinned(args.selection_kv_block_table),
                    is_pinned(args.selection_kv_block_status),
                    is_pinned(args.selection_topk_indices),
                    has_rope(args.full_k_rope) && is_pinned(*args.full_k_rope),
                    is_pinned(args.full_kv_cache),
                    is_pinned(args.full_kv_block_table),
                    is_pinned(args.full_kv_actual_seq),
                    args.full_q_actual_seq && is_pinned(*args.full_q_actual_seq),
                    is_pinned(args.selection_kv_actual_seq),
                    args.status_row && is_pinned(*args.status_row),
                    args.counters && is_pinned(*args.counters),
                    args.fetch_counts && is_pinned(*args.fetch_counts)};
    const bool cuda = context.state().queue != nullptr;
    if (!(cuda ? lay_out_cuda_workspace(*body) : lay_out_workspace(*body))) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("gather_selection_kv_cache: selection_topk_indices: the schedule of {} rows of {} ids "
                      "does not fit 64 bits",
                      body->rows, body->k));
    }
    const auto table = cuda ? gather_selection_kv_cache_cuda() : gather_selection_kv_cache_cpu();
    if (Status status = pick(table, context, *body); !status.ok()) return status;
    return Plan(std::move(body));
  });
}

namespace {

Status call_phases(const Plan& plan, const GatherSelectionKvCacheBuffers& buffers, bool schedules,
                   bool copies, const Context& context) noexcept {
  return internal::run_plan<internal::GatherSelectionKvCachePlan>(
      Operator::kGatherSelectionKvCache, plan, internal::SelectionCall{buffers, schedules, copies}, context);
}

}  // namespace

Status run(const Plan& plan, const GatherSelectionKvCacheBuffers& buffers, const Context& context) noexcept {
  return call_phases(plan, buffers, true, true, context);
}

Status schedule(const Plan& plan, const GatherSelectionKvCacheBuffers& buffers,
                const Context& context) noexcept {
  return call_phases(plan, buffers, true, false, context);
}

Status copy(const Plan& plan, const GatherSelectionKvCacheBuffers& buffers, const Context& context) noexcept {
  return call_phases(plan, buffers, false, true, context);
}

Status gather_selection_kv_cache(const GatherSelectionKvCacheArgs& args, const Context& context,
                                 ErrorRecord* error_record) noexcept {
  GatherSelectionKvCacheBuffers b = buffers(args);
  b.error_record = error_record;
  return internal::plan_and_run(args, b, context);
}

}  // namespace kvferry
