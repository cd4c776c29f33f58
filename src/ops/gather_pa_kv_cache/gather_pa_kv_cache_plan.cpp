// SPDX-License-Identifier: Apache-2.0
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_plan.hpp"

#include "backends/cpu/parallel_for.hpp"
#include "core/checks.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_ascend.hpp"
#include "ops/paged_cuda.hpp"

namespace kvferry {
namespace internal {
namespace {

// All rules of the operator, in the order in which they are reported.
Status check_args(const GatherPaKvCacheArgs& a, const Context& context) {
  Checker check(Operator::kGatherPaKvCache, context);
  check.tensor("key_cache", a.key_cache);
  check.tensor("value_cache", a.value_cache);
  check.output("key", a.key);
  check.output("value", a.value);

  const bool norm = a.cache_mode == CacheMode::kNorm;
  check.that(norm || a.cache_mode == CacheMode::kPaNz, "cache_mode: {}, expected kNorm or kPaNz",
             static_cast<int>(a.cache_mode));
  check.index_policy(a.index_policy);
  check.rank("key_cache", a.key_cache, 4);
  check.rank("value_cache", a.value_cache, 4);
  check.rank("key", a.key, norm ? 3 : 2);
  check.rank("value", a.value, norm ? 3 : 2);

  check.kv_dtype("key_cache", a.key_cache);
  check.kv_dtype("value_cache", a.value_cache);
  check.same_dtype("key", a.key, "key_cache", a.key_cache);
  check.same_dtype("value", a.value, "value_cache", a.value_cache);

  const PagedLayout layout = norm ? PagedLayout::kNbshd : PagedLayout::kNz4;
  const int slots = slot_axis(layout);
  check.that(a.key_cache.dim(slots) > 0, "key_cache: dimension {} (block size) is 0, expected > 0", slots);
  check.dim("value_cache", a.value_cache, slots, a.key_cache.dim(slots), "block size of key_cache");
  check_inner_dims(check, layout, "key_cache", a.key_cache, "key", a.key);
  check_inner_dims(check, layout, "value_cache", a.value_cache, "value", a.value);
  check.dim("value", a.value, 0, a.key.dim(0), "key dimension 0");

  if (!check.ok()) return check.take();
  check_reads(check, a.block_tables, a.seq_lens, a.seq_offset, a.is_seq_lens_cumsum, a.key.dim(0),
              is_empty(a.key) && is_empty(a.value));
  return check.take();
}

}  // namespace

Status GatherPaKvCachePlan::check(const GatherPaKvCacheBuffers& buffers) const {
  Status status = check_workspace(*this, buffers.workspace);
  const bool any = key.active || value.active;
  need(status, *this, "key_cache", buffers.key_cache, key.active && key.blocks > 0);
  need(status, *this, "key", buffers.key, key.active);
  need(status, *this, "value_cache", buffers.value_cache, value.active && value.blocks > 0);
  need(status, *this, "value", buffers.value, value.active);
  need(status, *this, "block_tables", buffers.block_tables, any);
  need(status, *this, "seq_lens", buffers.seq_lens, any);
  need(status, *this, "seq_offset", buffers.seq_offset, any && reads.has_offset);
  return status;
}

std::string GatherPaKvCachePlan::describe_problem() const {
  std::string text = fmt::format("  problem         {} batches x {} columns of {} slots, {} rows\n",
                                 reads.batches, reads.table_width, reads.block_size, reads.rows);
  for (const auto& [name, side] : {std::pair{"key  ", &key}, std::pair{"value", &value}}) {
    text += side->active ? fmt::format("  {}           from {} blocks; {}\n", name, side->blocks,
                                       internal::describe(side->move))
                         : fmt::format("  {}           empty: skipped\n", name);
  }
  text += cpu::describe_units(reads.rows, key.move.token_bytes + value.move.token_bytes, threads, "rows");
  return text + ascend;
}

}  // namespace internal

GatherPaKvCacheBuffers buffers(const GatherPaKvCacheArgs& args) noexcept {
  GatherPaKvCacheBuffers b;
  b.key_cache = args.key_cache.data;
  b.value_cache = args.value_cache.data;
  b.block_tables = args.block_tables.data;
  b.seq_lens = args.seq_lens.data;
  b.seq_offset = args.seq_offset ? args.seq_offset->data : nullptr;
  b.key = args.key.data;
  b.value = args.value.data;
  return b;
}

Result<Plan> plan(const GatherPaKvCacheArgs& args, const Context& context) noexcept {
  using namespace internal;
  return guarded_plan([&]() -> Result<Plan> {
    if (Status status = check_args(args, context); !status.ok()) return status;
    const PagedLayout layout = args.cache_mode == CacheMode::kNorm ? PagedLayout::kNbshd : PagedLayout::kNz4;
    auto body = std::make_shared<GatherPaKvCachePlan>();
    body->reads = make_reads(args.block_tables, args.seq_lens, args.seq_offset, args.is_seq_lens_cumsum,
                             args.key.dim(0), args.key_cache.dim(slot_axis(layout)), args.index_policy);
    if (!is_empty(args.key)) {
      body->key = make_paged_side(layout, args.key_cache, args.key, Direction::kCacheToRows);
      body->reads.add_cache("key_cache", kBadKey, body->key.blocks);
    }
    if (!is_empty(args.value)) {
      body->value = make_paged_side(layout, args.value_cache, args.value, Direction::kCacheToRows);
      body->reads.add_cache("value_cache", kBadValue, body->value.blocks);
    }
    body->ascend = describe_ascend(args);
    body->pinned = {is_pinned(args.key_cache),
                    is_pinned(args.value_cache),
                    is_pinned(args.block_tables),
                    is_pinned(args.seq_lens),
                    args.seq_offset && is_pinned(*args.seq_offset),
                    is_pinned(args.key),
                    is_pinned(args.value)};
    const bool cuda = context.state().queue != nullptr;
    body->workspace_bytes = cuda ? cuda_reads_workspace(body->reads) : body->reads.workspace_bytes();
    const auto table = cuda ? gather_pa_kv_cache_cuda() : gather_pa_kv_cache_cpu();
    if (Status status = pick(table, context, *body); !status.ok()) return status;
    return Plan(std::move(body));
  });
}

Status run(const Plan& plan, const GatherPaKvCacheBuffers& buffers, const Context& context) noexcept {
  return internal::run_plan<internal::GatherPaKvCachePlan>(Operator::kGatherPaKvCache, plan, buffers,
                                                           context);
}

Status gather_pa_kv_cache(const GatherPaKvCacheArgs& args, const Context& context,
                          ErrorRecord* error_record) noexcept {
  GatherPaKvCacheBuffers b = buffers(args);
  b.error_record = error_record;
  return internal::plan_and_run(args, b, context);
}

}  // namespace kvferry
