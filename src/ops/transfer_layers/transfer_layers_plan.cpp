// SPDX-License-Identifier: Apache-2.0
#include "ops/transfer_layers/transfer_layers_plan.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "backends/cpu/parallel_for.hpp"
#include "core/checked_math.hpp"
#include "core/checks.hpp"
#include "ops/cuda_implementation.hpp"
#include "ops/index_entries.hpp"

namespace kvferry {
namespace internal {
namespace {

using Args = TransferLayersArgs;

// "key_caches[3]", without allocating: there are hundreds of pools and mostly nothing to report.
class PoolName {
 public:
  PoolName(const char* tensor, std::size_t layer) {
    std::snprintf(text_.data(), text_.size(), "%s[%zu]", tensor, layer);
  }
  const char* get() const { return text_.data(); }

 private:
  std::array<char, 40> text_;
};

void check_pools(Checker& check, const Args& a, const char* name, std::span<const TensorView> pools) {
  const TensorView& first = a.key_caches.front();
  for (std::size_t l = 0; l < pools.size() && check.ok(); ++l) {
    const PoolName pool(name, l);
    const bool written = a.direction == TransferDirection::kChunkToPools;
    written ? check.output(pool.get(), pools[l]) : check.tensor(pool.get(), pools[l]);
    check.rank(pool.get(), pools[l], 4);
    check.kv_dtype(pool.get(), pools[l]);
    check.same_dtype(pool.get(), pools[l], "key_caches[0]", first);
    for (const int axis : {0, 1, 2, 3})
      check.dim(pool.get(), pools[l], axis, first.dim(axis), "key_caches[0]");
  }
}

// All rules of the operator, in the order in which they are reported.
Status check_args(const Args& a, const Context& context) {
  Checker check(Operator::kTransferLayers, context);
  check.that(a.chunk_layout <= ChunkLayout::kPageFirst,
             "chunk_layout: {}, expected kLayerFirst or kPageFirst", static_cast<int>(a.chunk_layout));
  check.that(a.direction <= TransferDirection::kChunkToPools,
             "direction: {}, expected kPoolsToChunk or kChunkToPools", static_cast<int>(a.direction));
  check.index_policy(a.index_policy);
  check.that(a.value_caches.empty() || a.value_caches.size() == a.key_caches.size(),
             "value_caches: {} pools, expected none or {} (layers of key_caches)", a.value_caches.size(),
             a.key_caches.size());
  if (!a.key_caches.empty()) {
    check_pools(check, a, "key_caches", a.key_caches);
    check_pools(check, a, "value_caches", a.value_caches);
    check.that(a.key_caches[0].dim(1) > 0, "key_caches[0]: dimension 1 (block size) is 0, expected > 0");
  }
  a.direction == TransferDirection::kPoolsToChunk ? check.output("chunk", a.chunk)
                                                  : check.tensor("chunk", a.chunk);
  check.tensor("block_ids", a.block_ids);
  check.rank("chunk", a.chunk, 6);
  check.rank("block_ids", a.block_ids, 1);
  check.index_dtype("block_ids", a.block_ids);
  const int layer_axis = a.chunk_layout == ChunkLayout::kLayerFirst ? 0 : 1;
  check.dim("chunk", a.chunk, layer_axis, static_cast<std::int64_t>(a.key_caches.size()),
            "layers of key_caches");
  check.dim("chunk", a.chunk, 1 - layer_axis, a.block_ids.dim(0), "block_ids dimension 0");
  if (a.key_caches.empty()) {
    check.that(a.chunk.dim(2) == 1 || a.chunk.dim(2) == 2, "chunk: dimension 2 is {}, expected 1 or 2 (K, V)",
               a.chunk.dim(2));
    return check.take();
  }
  check.dim("chunk", a.chunk, 2, a.value_caches.empty() ? 1 : 2,
            a.value_caches.empty() ? "K alone, there are no value_caches" : "K and V");
  check.same_dtype("chunk", a.chunk, "key_caches[0]", a.key_caches[0]);
  for (const int axis : {1, 2, 3})
    check.dim("chunk", a.chunk, axis + 2, a.key_caches[0].dim(axis),
              fmt::format("key_caches[0] dimension {}", axis));
  const Checked uses =
      Checked(a.block_ids.dim(0)) * std::max<std::int64_t>(sizeof(IndexUse), cuda::FirstUse::kBytesPerEntry);
  check.that(!(uses + kWorkspaceAlign).overflow, "block_ids: {} ids are too many to sort in 64 bits",
             a.block_ids.dim(0));
  return check.take();
}

bool same_strides(const TensorView& a, const TensorView& b) {
  for (const int axis : {1, 2, 3}) {
    if (a.dim(axis) > 1 && a.stride(axis) != b.stride(axis)) return false;
  }
  return true;
}

TokenMove make_move(const TensorView& pool, const TensorView& chunk, bool to_chunk) {
  const auto axis = [&](int i) {
    return to_chunk ? Axis{pool.dim(i), pool.stride(i), chunk.stride(i + 2)}
                    : Axis{pool.dim(i), chunk.stride(i + 2), pool.stride(i)};
  };
  const std::array axes = {axis(2), axis(3)};
  const std::int64_t in_pool = step_bytes(pool, 1), in_chunk = step_bytes(chunk, 3);
  return make_token_move({make_nest(axes, size_of(pool.dtype))}, to_chunk ? in_pool : in_chunk,
                         to_chunk ? in_chunk : in_pool);
}

}  // namespace

Status TransferLayersPlan::check(const TransferLayersBuffers& buffers) const {
  Status status = check_workspace(*this, buffers.workspace);
  if (nothing_to_do()) return status;
  need(status, *this, "chunk", buffers.chunk, true);
  need(status, *this, "block_ids", buffers.block_ids, true);
  const bool values = parts == 2;
  need(status, *this, "key_caches", buffers.key_caches, true);
  need(status, *this, "value_caches", buffers.value_caches, values);
  for (std::int64_t l = 0; l < layers && status.ok() && blocks > 0; ++l) {
    const auto layer = static_cast<std::size_t>(l);
    need(status, *this, PoolName("key_caches", layer).get(), buffers.key_caches[l], true);
    if (values) need(status, *this, PoolName("value_caches", layer).get(), buffers.value_caches[l], true);
  }
  return status;
}

std::string TransferLayersPlan::describe_problem() const {
  std::string text =
      fmt::format("  problem         {} layers x {} blocks of {} slots, {}, {} {}\n", layers, entries,
                  block_size, parts == 2 ? "K and V" : "K alone", to_chunk ? "out to" : "in from",
                  page_first ? "a page-first chunk" : "a layer-first chunk");
  if (nothing_to_do()) return text + "  slot            empty: skipped\n";
  for (const TokenMove& move : moves)
    text += fmt::format("  slot            of {} blocks; {}\n", blocks, internal::describe(move));
  return text + cpu::describe_units(units(), moves.front().token_bytes, threads, "slots");
}

}  // namespace internal

TransferLayersBuffers buffers(const TransferLayersArgs& args, std::span<void*> pointers) noexcept {
  std::size_t i = 0;
  for (const auto& pools : {args.key_caches, args.value_caches}) {
    for (const TensorView& pool : pools) pointers[i++] = pool.data;
  }
  TransferLayersBuffers b;
  b.key_caches = pointers.data();
  b.value_caches = args.value_caches.empty() ? nullptr : pointers.data() + args.key_caches.size();
  b.chunk = args.chunk.data;
  b.block_ids = args.block_ids.data;
  return b;
}

Result<Plan> plan(const TransferLayersArgs& args, const Context& context) noexcept {
  using namespace internal;
  return guarded_plan([&]() -> Result<Plan> {
    if (Status status = check_args(args, context); !status.ok()) return status;
    auto body = std::make_shared<TransferLayersPlan>();
    body->page_first = args.chunk_layout == ChunkLayout::kPageFirst;
    body->to_chunk = args.direction == TransferDirection::kPoolsToChunk;
    body->policy = args.index_policy;
    body->layers = static_cast<std::int64_t>(args.key_caches.size());
    body->entries = args.block_ids.dim(0);
    body->parts = args.chunk.dim(2);
    body->block_size = args.chunk.dim(3);
    body->block_ids = IndexView(args.block_ids);
    body->chunk_base = offset_bytes(args.chunk);
    body->layer_step = step_bytes(args.chunk, body->page_first ? 1 : 0);
    body->entry_step = step_bytes(args.chunk, body->page_first ? 0 : 1);
    body->part_step = step_bytes(args.chunk, 2);
    body->pinned_chunk = is_pinned(args.chunk);
    body->pinned_ids = is_pinned(args.block_ids);
    const bool cuda = context.state().queue != nullptr;
    if (!is_empty(args.chunk)) {
      body->blocks = args.key_caches[0].dim(0);
      std::vector<const TensorView*> strided;  // the pool that each of the moves was made from
      for (std::size_t l = 0; l < args.key_caches.size(); ++l) {
        for (const auto& pools : {args.key_caches, args.value_caches}) {
          if (pools.empty()) continue;
          const TensorView& pool = pools[l];
          std::size_t move = 0;
          while (move < strided.size() && !same_strides(pool, *strided[move])) ++move;
          if (move == strided.size()) {
            strided.push_back(&pool);
            body->moves.push_back(make_move(pool, args.chunk, body->to_chunk));
          }
          body->pools.push_back({offset_bytes(pool), step_bytes(pool, 0), move, is_pinned(pool)});
        }
      }
      const std::int64_t entry_bytes =
          cuda ? cuda::FirstUse::kBytesPerEntry : static_cast<std::int64_t>(sizeof(IndexUse));
      if (body->looks_for_repeats()) body->workspace_bytes = body->entries * entry_bytes + kWorkspaceAlign;
    }
    const auto table = cuda ? transfer_layers_cuda() : transfer_layers_cpu();
    if (Status status = pick(table, context, *body); !status.ok()) return status;
    return Plan(std::move(body));
  });
}

Status run(const Plan& plan, const TransferLayersBuffers& buffers, const Context& context) noexcept {
  return internal::run_plan<internal::TransferLayersPlan>(Operator::kTransferLayers, plan, buffers, context);
}

Status transfer_layers(const TransferLayersArgs& args, const Context& context,
                       ErrorRecord* error_record) noexcept {
  using namespace internal;
  return guarded_run([&]() -> Status {
    // The stream keeps the plan of enqueued work, and through it the pointers of this call.
    struct Call {
      Plan plan;
      std::vector<void*> pointers;
    };
    Result<Plan> planned = plan(args, context);
    if (!planned.ok()) return planned.status();
    const auto call = std::make_shared<Call>();
    call->plan = std::move(planned).value();
    call->pointers.resize(args.key_caches.size() + args.value_caches.size());
    TransferLayersBuffers b = buffers(args, call->pointers);
    b.error_record = error_record;
    const Plan keeps_pointers(std::shared_ptr<const PlanBody>(call, call->plan.body().get()));
    return run_in_context(keeps_pointers, b, context);
  });
}

}  // namespace kvferry
