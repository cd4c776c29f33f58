// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/mover.hpp"
#include "tools/replay/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

namespace kvferry::replay {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// How often the run makes each kind of call.
std::int64_t expected_calls(Call call, const Counts& counts, int layers) {
  switch (call) {
    case Call::kScatterPrefill:
      return counts.prefill_scatters * layers;
    case Call::kScatterDecode:
      return counts.decode_scatters * layers;
    case Call::kGather:
      return counts.gathers * layers;
    case Call::kEvict:
      return counts.evictions;
    case Call::kFetch:
      return counts.fetches;
    case Call::kSelect:
      return counts.decode_scatters * layers;
  }
  return 0;
}

std::int64_t staging_rows(const SchedulerOptions& options) {
  return std::max(options.chunk, options.max_running);
}

}  // namespace

std::int64_t VerifyShare::wanted(std::int64_t calls) const {
  if (all) return calls;
  if (percent <= 0) return 0;
  const auto share = static_cast<std::int64_t>(std::ceil(static_cast<double>(calls) * percent / 100));
  return std::min(calls, std::max(share, at_least));
}

std::string to_string(const Mismatch& mismatch, const Trace& trace) {
  const BadRow& row = mismatch.row;
  std::string owner =
      fmt::format("request {} (line {})", row.request, trace.requests[usize(row.request)].line);
  if (row.hash_id >= 0) owner += fmt::format(", prefix block {}", row.hash_id);
  return fmt::format(
      "{} {}, call {}: {}, layer {}, {}, position {}, byte {}: expected 0x{:02x}, saw 0x{:02x}",
      operator_of(mismatch.call), purpose_of(mismatch.call), mismatch.number, owner, row.layer,
      row.part == Part::kKey ? "key" : "value", row.position, row.byte, row.expected, row.seen);
}

Footprint footprint(const MoverOptions& options, const Counts& counts) {
  const std::int64_t token_layer = options.shard.token_layer_bytes();
  const std::int64_t page = options.scheduler.page_tokens * token_layer * options.layers;
  const std::int64_t pool = counts.device_high_water * page;
  const std::int64_t buffers = (counts.longest_gather + staging_rows(options.scheduler)) * token_layer;
  if (options.select == 0) return {pool, counts.host_high_water * page, buffers};
  return {counts.max_running * Selector::cache_tokens(options.select) * token_layer * options.layers, pool,
          buffers};
}

Mover::Mover(const Context& context, const Trace& trace, const PrefixTree& tree, const MoverOptions& options)
    : context_(context),
      trace_(trace),
      tree_(tree),
      options_(options),
      rows_(context, options.shard.key_row_bytes, options.shard.value_row_bytes) {}

Result<std::unique_ptr<Mover>> Mover::make(const Context& context, const Trace& trace, const PrefixTree& tree,
                                           const MoverOptions& options, const Counts& counts) {
  std::unique_ptr<Mover> mover(new Mover(context, trace, tree, options));
  for (const Call call : calls_of(options.select > 0)) {
    const std::int64_t calls = expected_calls(call, counts, options.layers);
    const std::uint64_t seed = harness::mix(options.seed) + static_cast<std::uint64_t>(call);
    mover->samplers_[call] = CallSampler(calls, options.verify.wanted(calls), seed);
  }
  if (Status s = mover->allocate(counts); !s.ok()) return s;
  return mover;
}

Status Mover::allocate(const Counts& counts) {
  const SchedulerOptions& scheduler = options_.scheduler;
  const std::int64_t page = scheduler.page_tokens;
  device_.resize(usize(options_.layers));
  host_.resize(usize(options_.layers));
  for (KeyValue& pool : device_) {
    if (Status s = allocate(pool, scheduler.device_pages * page, counts.device_high_water * page); !s.ok())
      return s;
  }
  for (KeyValue& pool : host_) {
    if (Status s = allocate(pool, scheduler.host_pages * page, counts.host_high_water * page); !s.ok())
      return s;
  }
  gathered_rows_ = counts.longest_gather;
  if (Status s = allocate(gathered_, gathered_rows_, gathered_rows_); !s.ok()) return s;
  staged_rows_ = staging_rows(scheduler);
  if (Status s = allocate(staged_, staged_rows_, staged_rows_); !s.ok()) return s;
  if (options_.select == 0 || counts.decode_scatters == 0) return {};
  Result<std::unique_ptr<Selector>> made = Selector::make(context_, trace_,
                                                          {.shard = options_.shard,
                                                           .layers = options_.layers,
                                                           .k = options_.select,
                                                           .requests = counts.max_running,
                                                           .longest = counts.longest_request,
                                                           .pool_pages = scheduler.device_pages,
                                                           .page_tokens = page},
                                                          *options_.id_source);
  if (!made.ok()) return made.status();
  selector_ = std::move(made).value();
  return {};
}

Status Mover::allocate(KeyValue& memory, std::int64_t rows, std::int64_t touched_rows) const {
  Result<KeyValue> made = KeyValue::make(options_.shard, rows, touched_rows, context_);
  if (!made.ok()) return made.status();
  memory = std::move(made).value();
  return {};
}

TensorView Mover::cache_view(int layer, Part part) const {
  const Shard& shard = options_.shard;
  const bool exists = part == Part::kKey || shard.value_row_bytes > 0;
  return contiguous(device_[usize(layer)].data(part), shard.model.dtype,
                    {options_.scheduler.device_pages, options_.scheduler.page_tokens, shard.heads,
                     exists ? shard.model.head_size : 0});
}

TensorView Mover::rows_view(const KeyValue& memory, std::int64_t rows, Part part) const {
  const Shard& shard = options_.shard;
  const bool exists = part == Part::kKey || shard.value_row_bytes > 0;
  return contiguous(memory.data(part), shard.model.dtype,
                    {rows, shard.heads, exists ? shard.model.head_size : 0});
}

template <class MakeArgs>
Result<Plan> Mover::planned(Call call, std::map<PlanKey, Plan>& plans, PlanKey key, MakeArgs make_args) {
  const auto it = plans.find(key);
  if (it != plans.end()) return it->second;
  const auto args = make_args();
  const std::int64_t start = now_ns();
  Result<Plan> made = plan(args, context_);
  CallStats& s = stats_[call];
  s.plan_ns += now_ns() - start;
  if (!made.ok()) return made;
  ++s.plans;
  if (std::cmp_greater(made->workspace_bytes(), workspace_.size()))
    workspace_.resize(usize(made->workspace_bytes()));
  plans.emplace(key, made.value());
  return made;
}

template <class Buffers>
Status Mover::timed_run(Call call, const Plan& plan, Buffers buffers, std::int64_t tokens,
                        std::int64_t bytes) {
  buffers.workspace = {workspace_.data(), std::ssize(workspace_)};
  const std::int64_t start = now_ns();
  Status status = run(plan, buffers, context_);
  const std::int64_t ns = now_ns() - start;
  CallStats& s = stats_[call];
  ++s.calls;
  s.tokens += tokens;
  s.bytes += bytes;
  s.ns += ns;
  s.latency.add(ns);
  if (s.implementation.empty()) s.implementation = plan.implementation();
  return status;
}

Status Mover::gather(int layer, const PrefillChunk& chunk) {
  const auto done = static_cast<std::int32_t>(chunk.begin);
  const auto width = std::ssize(chunk.table);
  // N is what the buffers hold, in powers of two: longer prompts share a plan.
  const std::int64_t rows =
      std::min(gathered_rows_, static_cast<std::int64_t>(std::bit_ceil(usize(chunk.begin))));
  const KeyValue& pool = device_[usize(layer)];
  Result<Plan> plan = planned(Call::kGather, gather_plans_, {width, rows}, [&] {
    GatherPaKvCacheArgs args;
    args.key_cache = cache_view(layer, Part::kKey);
    args.value_cache = cache_view(layer, Part::kValue);
    args.block_tables = contiguous(chunk.table.data(), DType::kInt32, {1, width});
    args.seq_lens = contiguous(&done, DType::kInt32, {1});
    args.key = rows_view(gathered_, rows, Part::kKey);
    args.value = rows_view(gathered_, rows, Part::kValue);
    args.is_seq_lens_cumsum = false;
    return args;
  });
  if (!plan.ok()) return plan.status();
  GatherPaKvCacheBuffers buffers;
  buffers.key_cache = pool.data(Part::kKey);
  buffers.value_cache = pool.data(Part::kValue);
  buffers.block_tables = chunk.table.data();
  buffers.seq_lens = &done;
  buffers.key = gathered_.data(Part::kKey);
  buffers.value = gathered_.data(Part::kValue);
  return timed_run(Call::kGather, plan.value(), buffers, layer == 0 ? done : 0,
                   done * options_.shard.token_layer_bytes());
}

Status Mover::scatter(Call call, int layer) {
  const auto tokens = std::ssize(slots_);
  const KeyValue& pool = device_[usize(layer)];
  Result<Plan> plan = planned(call, scatter_plans_, {tokens, 0}, [&] {
    ScatterPaKvCacheArgs args;
    args.key = rows_view(staged_, staged_rows_, Part::kKey);
    args.key_cache = cache_view(layer, Part::kKey);
    args.slot_mapping = contiguous(slots_.data(), DType::kInt64, {tokens});
    if (parts().size() > 1) {
      args.value = rows_view(staged_, staged_rows_, Part::kValue);
      args.value_cache = cache_view(layer, Part::kValue);
    }
    return args;
  });
  if (!plan.ok()) return plan.status();
  ScatterPaKvCacheBuffers buffers;
  buffers.key = staged_.data(Part::kKey);
  buffers.key_cache = pool.data(Part::kKey);
  buffers.slot_mapping = slots_.data();
  buffers.value = staged_.data(Part::kValue);
  buffers.value_cache = pool.data(Part::kValue);
  return timed_run(call, plan.value(), buffers, layer == 0 ? tokens : 0,
                   tokens * options_.shard.token_layer_bytes());
}

Status Mover::copy(Call call, std::int32_t request, const Moves& moves) {
  const std::vector<KeyValue>& from = call == Call::kEvict ? device_ : host_;
  const std::vector<KeyValue>& to = call == Call::kEvict ? host_ : device_;
  const std::int64_t page = options_.scheduler.page_tokens;
  const std::int64_t pages = std::ssize(moves.pages);
  // `count` says how much of the mapping is meant, so that a few plans serve every length.
  mapping_.assign(moves.pages.begin(), moves.pages.end());
  mapping_.resize(std::bit_ceil(mapping_.size()));
  const std::int64_t longest = std::ssize(mapping_);
  sources_.clear();
  destinations_.clear();
  for (std::size_t layer = 0; layer < from.size(); ++layer) {
    for (const Part part : parts()) {
      sources_.push_back(from[layer].data(part));
      destinations_.push_back(to[layer].data(part));
    }
  }
  Result<Plan> plan = planned(call, copy_plans_, {longest, call == Call::kEvict ? 1 : 0}, [&] {
    copy_views_.clear();
    for (const bool is_src : {true, false}) {
      const bool device = is_src == (call == Call::kEvict);
      for (const KeyValue& layer : is_src ? from : to) {
        for (const Part part : parts()) {
          copy_views_.push_back(
              contiguous(layer.data(part), DType::kUInt8,
                         {device ? options_.scheduler.device_pages : options_.scheduler.host_pages, page,
                          rows_.row_bytes(part)}));
        }
      }
    }
    SwapBlocksArgs args;
    args.src = std::span(copy_views_).first(sources_.size());
    args.dst = std::span(copy_views_).subspan(sources_.size());
    args.mapping = contiguous(mapping_.data(), DType::kInt32, {longest, 2});
    args.count = contiguous(&pages, DType::kInt64, {1});
    return args;
  });
  if (!plan.ok()) return plan.status();
  SwapBlocksBuffers buffers;
  buffers.src = sources_.data();
  buffers.dst = destinations_.data();
  buffers.mapping = mapping_.data();
  buffers.count = &pages;
  const std::int64_t tokens = pages * page;
  const std::int64_t bytes = tokens * options_.shard.token_layer_bytes() * options_.layers;
  if (Status s = timed_run(call, plan.value(), buffers, tokens, bytes); !s.ok()) return s;
  if (!samplers_[call].take()) return {};
  pool_segments_.clear();
  add_blocks(pool_segments_, request, moves);
  spans_.clear();
  for (int layer = 0; layer < options_.layers; ++layer) add_spans(to[usize(layer)], layer, pool_segments_);
  return check_spans(call);
}

void Mover::add_blocks(std::vector<Segment>& segments, std::int32_t request, const Moves& moves) const {
  const std::int64_t page = options_.scheduler.page_tokens;
  for (const Moves::Block& b : moves.blocks) {
    // Its first page ends inside it, but may start before it: with tokens of the blocks before.
    std::int64_t at = tree_.depth(b.block) * kHashBlock / page * page;
    for (const PagePair& pair : std::span(moves.pages).subspan(usize(b.first), usize(b.count))) {
      std::int64_t row = pair.dst * page;
      for (const std::int64_t page_end = at + page; at < page_end;) {
        std::int32_t owner = b.block;
        while (tree_.depth(owner) > at / kHashBlock) owner = tree_.parent(owner);
        const std::int64_t rows = std::min(page_end, (at / kHashBlock + 1) * kHashBlock) - at;
        const std::int64_t id = tree_.hash_id(owner);
        Segment* last = segments.empty() ? nullptr : &segments.back();
        if (last != nullptr && last->row + last->rows == row && last->first + last->rows == at &&
            last->hash_id == id) {
          last->rows += rows;
        } else {
          segments.push_back({row, id, request, at, rows});
        }
        row += rows;
        at += rows;
      }
    }
  }
}

void Mover::add_contiguous(std::vector<Segment>& segments, std::int32_t request, std::int64_t begin,
                           std::int64_t end, std::int64_t row) const {
  while (begin < end) {
    // Cut at every block, private tokens too: pieces are what the threads share out.
    const std::int64_t block = begin / kHashBlock;
    const std::int64_t rows = std::min(end, (block + 1) * kHashBlock) - begin;
    segments.push_back({row, trace_.prefix_block(request, begin), request, begin, rows});
    row += rows;
    begin += rows;
  }
}

void Mover::add_spans(const KeyValue& memory, int layer, std::span<const Segment> segments) {
  for (const Part part : parts()) {
    for (const Segment& s : segments) {
      spans_.push_back({memory.data(part) + s.row * rows_.row_bytes(part), s.hash_id, s.request, layer,
                        s.first, s.rows, part});
    }
  }
}

void Mover::fill_staging(int layer, std::span<const Segment> segments) {
  spans_.clear();
  add_spans(staged_, layer, segments);
  rows_.fill(spans_);
}

Status Mover::check_spans(Call call) {
  const RowChecker::Outcome outcome = rows_.check(spans_);
  CallStats& s = stats_[call];
  ++s.verified_calls;
  s.verified_bytes += outcome.bytes;
  s.mismatched_rows += outcome.bad_rows;
  if (!outcome.first) return {};
  mismatch_ = Mismatch{call, s.calls, *outcome.first};
  return {StatusCode::kInvalidArgument, to_string(*mismatch_, trace_)};
}

Status Mover::evict(std::int32_t request, const Moves& moves) {
  return copy(Call::kEvict, request, moves);
}

Status Mover::fetch(std::int32_t request, const Moves& moves) {
  return copy(Call::kFetch, request, moves);
}

Status Mover::decode(std::span<const DecodeToken> tokens) {
  slots_.clear();
  staged_segments_.clear();
  pool_segments_.clear();
  for (const DecodeToken& t : tokens) {
    staged_segments_.push_back({std::ssize(slots_), -1, t.request, t.position, 1});
    pool_segments_.push_back({t.slot, -1, t.request, t.position, 1});
    slots_.push_back(t.slot);
  }
  if (selector_) selector_->begin_step(tokens);
  for (int layer = 0; layer < options_.layers; ++layer) {
    fill_staging(layer, staged_segments_);
    if (Status s = scatter(Call::kScatterDecode, layer); !s.ok()) return s;
    if (samplers_[Call::kScatterDecode].take()) {
      spans_.clear();
      add_spans(device_[usize(layer)], layer, pool_segments_);
      if (Status s = check_spans(Call::kScatterDecode); !s.ok()) return s;
    }
    if (!selector_) continue;
    if (Status s = select(layer); !s.ok()) return s;
  }
  return {};
}

Status Mover::select(int layer) {
  const GatherSelectionKvCacheArgs args = selector_->prepare(layer, device_[usize(layer)]);
  Result<Plan> plan =
      planned(Call::kSelect, select_plans_, {args.full_kv_block_table.dim(0), 0}, [&] { return args; });
  if (!plan.ok()) return plan.status();
  if (Status s = timed_run(Call::kSelect, plan.value(), buffers(args), 0, 0); !s.ok()) return s;
  const SelectionTotals call = selector_->finish(layer);
  CallStats& stats = stats_[Call::kSelect];
  stats.tokens += layer == 0 ? call.ids : 0;
  stats.bytes += (call.fetched + call.moved) * options_.shard.token_layer_bytes();
  if (!samplers_[Call::kSelect].take()) return {};
  if (std::string wrong = selector_->check_state(layer); !wrong.empty()) {
    return {StatusCode::kInvalidArgument, std::move(wrong)};
  }
  spans_.clear();
  selector_->add_spans(layer, spans_);
  return check_spans(Call::kSelect);
}

Status Mover::prefill(const PrefillChunk& chunk) {
  const std::int64_t page = options_.scheduler.page_tokens;
  staged_segments_.clear();
  gathered_segments_.clear();
  pool_segments_.clear();
  slots_.clear();
  add_contiguous(gathered_segments_, chunk.request, 0, chunk.begin, 0);
  add_contiguous(staged_segments_, chunk.request, chunk.begin, chunk.end, 0);
  for (std::int64_t p = chunk.begin; p < chunk.end; ++p) {
    slots_.push_back(chunk.table[usize(p / page)] * page + p % page);
  }
  // The same rows where the slots are consecutive.
  for (const Segment& s : staged_segments_) {
    for (std::int64_t at = s.first, end = at; at < s.first + s.rows; at = end) {
      const std::int64_t* slot = slots_.data() + (at - chunk.begin);
      while (end < s.first + s.rows && slot[end - at] == slot[0] + (end - at)) ++end;
      pool_segments_.push_back({slot[0], s.hash_id, s.request, at, end - at});
    }
  }
  for (int layer = 0; layer < options_.layers; ++layer) {
    if (chunk.begin > 0) {
      if (Status s = gather(layer, chunk); !s.ok()) return s;
      if (samplers_[Call::kGather].take()) {
        spans_.clear();
        add_spans(gathered_, layer, gathered_segments_);
        if (Status s = check_spans(Call::kGather); !s.ok()) return s;
      }
    }
    fill_staging(layer, staged_segments_);
    if (Status s = scatter(Call::kScatterPrefill, layer); !s.ok()) return s;
    if (samplers_[Call::kScatterPrefill].take()) {
      spans_.clear();
      add_spans(device_[usize(layer)], layer, pool_segments_);
      if (Status s = check_spans(Call::kScatterPrefill); !s.ok()) return s;
    }
    if (options_.fault) inject_fault(layer, chunk);
  }
  return {};
}

void Mover::inject_fault(int layer, const PrefillChunk& chunk) {
  const Fault& f = *options_.fault;
  if (f.request != chunk.request || f.layer != layer || f.position < chunk.begin || f.position >= chunk.end)
    return;
  const std::int64_t row = slots_[usize(f.position - chunk.begin)];
  std::byte* at = device_[usize(layer)].data(f.part) + row * rows_.row_bytes(f.part) + f.byte;
  *at ^= std::byte{f.bits};
}

Status Mover::end_step(const Counts& counts) {
  if (options_.on_step) options_.on_step(counts);
  return {};
}

}  // namespace kvferry::replay
