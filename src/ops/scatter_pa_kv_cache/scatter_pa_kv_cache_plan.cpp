// SPDX-License-Identifier: Apache-2.0
#include "ops/scatter_pa_kv_cache/scatter_pa_kv_cache_plan.hpp"

#include <algorithm>

#include "backends/cpu/parallel_for.hpp"
#include "core/checked_math.hpp"
#include "core/checks.hpp"
#include "ops/cuda_implementation.hpp"
#include "ops/index_entries.hpp"

namespace kvferry {
namespace internal {
namespace {

PagedLayout layout_of(const ScatterPaKvCacheArgs& a, const TensorView& cache) {
  if (a.cache_mode == CacheMode::kPaNz) return cache.rank == 5 ? PagedLayout::kNz5 : PagedLayout::kNz4;
  return a.scatter_mode == ScatterMode::kNhsd ? PagedLayout::kNhsd : PagedLayout::kNbshd;
}

// The rows as CANN's Nct mode addresses them: dense tokens at a fixed step of the storage.
TensorView nct_rows(const TensorView& rows, std::int64_t stride, std::int64_t offset) {
  TensorView view = rows;
  view.strides[0] = stride;
  view.strides[1] = rows.dim(2);
  view.strides[2] = 1;
  view.offset = offset;
  return view;
}

// kNct ignores the strides that the rows come with, so they are not judged either.
TensorView unstrided(const TensorView& rows) {
  if (rows.rank < 0 || rows.rank > kMaxRank) return rows;
  TensorView view =
      contiguous(rows.data, rows.dtype, std::span(rows.shape).first(static_cast<std::size_t>(rows.rank)));
  view.device = rows.device;
  return view;
}

// Nct reads only the first T tokens, so its bounds are checked on those; then the view gets that length.
void check_nct(Checker& check, const char* name, TensorView& rows, std::int64_t tokens, std::int64_t stride,
               std::int64_t offset) {
  check.that(rows.storage_elements >= 0, "{}: storage_elements is unknown, expected a number (kNct)", name);
  check.that(stride >= 1, "{}: nct_stride is {}, expected >= 1", name, stride);
  check.that(offset >= 0, "{}: nct_offset is {}, expected >= 0", name, offset);
  if (!check.ok()) return;
  const Checked row = Checked(rows.dim(1)) * rows.dim(2);
  const Checked end = Checked(offset) + Checked(tokens - 1) * stride + row;
  check.that(tokens == 0 || (!end.overflow && end.value <= rows.storage_elements),
             "{}: {} tokens of {} elements at offset {} stride {} end beyond the storage of {} elements",
             name, tokens, row.value, offset, stride, rows.storage_elements);
  rows = nct_rows(rows, stride, offset);
  rows.shape[0] = std::min(rows.dim(0), tokens);
}

bool absent(const std::optional<TensorView>& view) {
  return !view || is_empty(*view);
}

// One of the pairs (key, key_cache), (value, value_cache).
void check_pair(Checker& check, const ScatterPaKvCacheArgs& a, const char* rows_name, TensorView& rows,
                const char* cache_name, const TensorView& cache, std::size_t nct) {
  check.rank(rows_name, rows, 3);
  if (a.cache_mode == CacheMode::kPaNz) {
    check.that(cache.rank == 4 || cache.rank == 5, "{}: rank is {}, expected 4 or 5", cache_name, cache.rank);
  } else {
    check.rank(cache_name, cache, 4);
  }
  check.kv_dtype(cache_name, cache);
  check.same_dtype(rows_name, rows, cache_name, cache);
  const PagedLayout layout = layout_of(a, cache);
  const int slots = slot_axis(layout);
  check.that(cache.dim(slots) > 0, "{}: dimension {} (block size) is 0, expected > 0", cache_name, slots);
  check_inner_dims(check, layout, cache_name, cache, rows_name, rows);
  const std::int64_t tokens = a.slot_mapping.dim(0);
  check.that(rows.dim(0) >= tokens, "{}: dimension 0 is {}, expected >= {} (slot_mapping dimension 0)",
             rows_name, rows.dim(0), tokens);
  const Checked all_slots = Checked(cache.dim(0)) * cache.dim(slots);
  check.that(!all_slots.overflow, "{}: {} blocks of {} slots overflow 64 bits", cache_name, cache.dim(0),
             cache.dim(slots));
  if (a.scatter_mode == ScatterMode::kNct)
    check_nct(check, rows_name, rows, tokens, a.nct_strides[nct], a.nct_offsets[nct]);
}

// All rules of the operator, in the order in which they are reported. With kNct, key and value become the
// views that it stands for.
Status check_args(ScatterPaKvCacheArgs& a, const Context& context) {
  Checker check(Operator::kScatterPaKvCache, context);
  check.that(a.cache_mode <= CacheMode::kPaNz, "cache_mode: {}, expected kNorm or kPaNz",
             static_cast<int>(a.cache_mode));
  check.that(a.scatter_mode <= ScatterMode::kNct, "scatter_mode: {}, expected kNone, kNhsd or kNct",
             static_cast<int>(a.scatter_mode));
  check.that(a.cache_mode == CacheMode::kNorm || a.scatter_mode == ScatterMode::kNone,
             "scatter_mode: {}, expected kNone with cache_mode kPaNz",
             a.scatter_mode == ScatterMode::kNhsd ? "kNhsd" : "kNct");
  check.index_policy(a.index_policy);
  const bool nct = a.scatter_mode == ScatterMode::kNct;
  // A tensor of rank 0 is how some front ends pass none.
  if (a.value && a.value->rank == 0) a.value.reset();
  if (a.value_cache && a.value_cache->rank == 0) a.value_cache.reset();
  check.tensor("key", nct ? unstrided(a.key) : a.key);
  check.output("key_cache", a.key_cache);
  check.tensor("slot_mapping", a.slot_mapping);
  if (a.value) check.tensor("value", nct ? unstrided(*a.value) : *a.value);
  if (a.value_cache) check.output("value_cache", *a.value_cache);
  check.rank("slot_mapping", a.slot_mapping, 1);
  check.index_dtype("slot_mapping", a.slot_mapping);
  check_pair(check, a, "key", a.key, "key_cache", a.key_cache, 0);
  if (!check.ok()) return check.take();
  if (absent(a.value) && absent(a.value_cache)) {
    a.value.reset();
    return check.take();
  }
  check.that(a.value.has_value(), "value: absent, expected rows for value_cache");
  check.that(a.value_cache.has_value(), "value_cache: absent, expected the cache of value");
  if (!check.ok()) return check.take();
  check_pair(check, a, "value", *a.value, "value_cache", *a.value_cache, 1);
  check.dim("value_cache", *a.value_cache, slot_axis(layout_of(a, *a.value_cache)),
            a.key_cache.dim(slot_axis(layout_of(a, a.key_cache))), "block size of key_cache");
  return check.take();
}

}  // namespace

Status ScatterPaKvCachePlan::check(const ScatterPaKvCacheBuffers& buffers) const {
  Status status = check_workspace(*this, buffers.workspace);
  need(status, *this, "key", buffers.key, key.active);
  need(status, *this, "key_cache", buffers.key_cache, key.active && key.blocks > 0);
  need(status, *this, "slot_mapping", buffers.slot_mapping, key.active || value.active);
  need(status, *this, "value", buffers.value, value.active);
  need(status, *this, "value_cache", buffers.value_cache, value.active && value.blocks > 0);
  return status;
}

std::string ScatterPaKvCachePlan::describe_problem() const {
  std::string text = fmt::format("  problem         {} tokens into blocks of {} slots\n", tokens, block_size);
  for (const auto& [name, side] : {std::pair{"key  ", &key}, std::pair{"value", &value}}) {
    text += side->active ? fmt::format("  {}           into {} blocks; {}\n", name, side->blocks,
                                       internal::describe(side->move))
                         : fmt::format("  {}           empty: skipped\n", name);
  }
  return text + cpu::describe_units(tokens, key.move.token_bytes + value.move.token_bytes, threads, "tokens");
}

}  // namespace internal

ScatterPaKvCacheBuffers buffers(const ScatterPaKvCacheArgs& args) noexcept {
  ScatterPaKvCacheBuffers b;
  b.key = args.key.data;
  b.key_cache = args.key_cache.data;
  b.slot_mapping = args.slot_mapping.data;
  b.value = args.value ? args.value->data : nullptr;
  b.value_cache = args.value_cache ? args.value_cache->data : nullptr;
  return b;
}

Result<Plan> plan(const ScatterPaKvCacheArgs& given, const Context& context) noexcept {
  using namespace internal;
  return guarded_plan([&]() -> Result<Plan> {
    ScatterPaKvCacheArgs args = given;
    if (Status status = check_args(args, context); !status.ok()) return status;
    auto body = std::make_shared<ScatterPaKvCachePlan>();
    body->tokens = args.slot_mapping.dim(0);
    body->block_size = args.key_cache.dim(slot_axis(layout_of(args, args.key_cache)));
    const auto side = [&](const TensorView& rows, const TensorView& cache, std::int64_t& slots) {
      if (body->tokens == 0 || is_empty(rows)) return PagedSide{};
      PagedSide made = make_paged_side(layout_of(args, cache), cache, rows, Direction::kRowsToCache);
      slots = made.blocks * made.block_size;
      return made;
    };
    body->key = side(args.key, args.key_cache, body->key_slots);
    if (args.value) body->value = side(*args.value, *args.value_cache, body->value_slots);
    body->slot_mapping = IndexView(args.slot_mapping);
    body->policy = args.index_policy;
    body->pinned = {is_pinned(args.key), is_pinned(args.key_cache), is_pinned(args.slot_mapping),
                    args.value && is_pinned(*args.value), args.value_cache && is_pinned(*args.value_cache)};
    const bool cuda = context.state().queue != nullptr;
    // report and reject look for repeated slots: they sort (slot, token) pairs, or hash them on a GPU.
    if (body->policy != IndexPolicy::kDefault && (body->key.active || body->value.active)) {
      const std::int64_t each = cuda ? cuda::FirstUse::kBytesPerEntry : std::int64_t{sizeof(IndexUse)};
      const Checked bytes = Checked(body->tokens) * each + kWorkspaceAlign;
      if (bytes.overflow) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("scatter_pa_kv_cache: slot_mapping: {} slots are too many to look for "
                                  "repeated ones: the workspace overflows 64 bits",
                                  body->tokens));
      }
      body->workspace_bytes = bytes.value;
    }
    const auto table = cuda ? scatter_pa_kv_cache_cuda() : scatter_pa_kv_cache_cpu();
    if (Status status = pick(table, context, *body); !status.ok()) return status;
    return Plan(std::move(body));
  });
}

Status run(const Plan& plan, const ScatterPaKvCacheBuffers& buffers, const Context& context) noexcept {
  return internal::run_plan<internal::ScatterPaKvCachePlan>(Operator::kScatterPaKvCache, plan, buffers,
                                                            context);
}

Status scatter_pa_kv_cache(const ScatterPaKvCacheArgs& args, const Context& context,
                           ErrorRecord* error_record) noexcept {
  ScatterPaKvCacheBuffers b = buffers(args);
  b.error_record = error_record;
  return internal::plan_and_run(args, b, context);
}

}  // namespace kvferry
