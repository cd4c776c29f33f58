// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/selector.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "backends/cpu/parallel_for.hpp"
#include "harness/random.hpp"

namespace kvferry::replay {

SelectedSet::SelectedSet(std::int64_t longest)
    : bits_(usize(longest / 64 + 1)), last_bits_(usize(longest / 64 + 1)) {}

bool SelectedSet::contains(std::int32_t id) const {
  const auto word = static_cast<std::size_t>(id) / 64;  // a negative one is past the end
  return word < bits_.size() && (bits_[word] >> (id % 64) & 1) != 0;
}

void SelectedSet::assign(std::span<const std::int32_t> ids, std::int64_t tokens) {
  for (const std::int32_t id : last_ids_) last_bits_[usize(id / 64)] = 0;
  std::swap(ids_, last_ids_);
  std::swap(bits_, last_bits_);
  last_size_ = begun_ ? std::ssize(last_ids_) : -1;
  begun_ = true;
  common_ = 0;
  ids_.clear();
  for (const std::int32_t id : ids) {
    if (id < 0) break;
    if (id >= tokens) continue;
    const auto word = usize(id / 64);
    const std::uint64_t bit = std::uint64_t{1} << (id % 64);
    if ((bits_[word] & bit) != 0) continue;
    bits_[word] |= bit;
    common_ += (last_bits_[word] & bit) != 0;
    ids_.push_back(id);
  }
}

Selector::Selector(const Context& context, const Trace& trace, const Options& options, IdSource& source)
    : context_(context),
      trace_(trace),
      options_(options),
      source_(source),
      table_columns_((options.longest + options.page_tokens - 1) / options.page_tokens) {}

Result<std::unique_ptr<Selector>> Selector::make(const Context& context, const Trace& trace,
                                                 const Options& options, IdSource& source) {
  std::unique_ptr<Selector> s(new Selector(context, trace, options, source));
  const std::int64_t requests = options.requests, k = options.k;
  const std::int64_t tokens = requests * cache_tokens(k);
  for (int layer = 0; layer < options.layers; ++layer) {
    Result<KeyValue> cache = KeyValue::make(options.shard, tokens, tokens, context);
    if (!cache.ok()) return cache.status();
    s->layers_.push_back({std::move(cache).value(), std::vector<std::int32_t>(usize(requests * (k + 1)))});
  }
  s->selection_table_.resize(usize(tokens / kPageTokens));
  std::iota(s->selection_table_.begin(), s->selection_table_.end(), 0);
  s->sets_.assign(usize(requests * options.layers), SelectedSet(options.longest));
  s->full_table_.resize(usize(requests * s->table_columns_));
  s->table_request_.assign(usize(requests), -1);
  s->topk_.resize(usize(requests * k));
  s->counters_.resize(usize(requests * 3));
  for (auto* of_requests : {&s->state_rows_, &s->lengths_, &s->steps_, &s->fetch_counts_, &s->actual_seq_}) {
    of_requests->resize(usize(requests));
  }
  for (std::int64_t i = requests - 1; i >= 0; --i) s->free_states_.push_back(static_cast<std::int32_t>(i));
  return s;
}

void Selector::begin_step(std::span<const DecodeToken> tokens) {
  next_rows_.clear();
  std::size_t old = 0;
  std::vector<std::size_t> taken;  // new requests: they may take what this step frees
  const auto give_back = [&] { free_states_.push_back(rows_[old++].state); };
  for (const DecodeToken& t : tokens) {
    while (old < rows_.size() && rows_[old].request < t.request) give_back();
    if (old < rows_.size() && rows_[old].request == t.request) {
      next_rows_.push_back(rows_[old++]);
    } else {
      taken.push_back(next_rows_.size());
      next_rows_.push_back({t.request, -1});
    }
  }
  while (old < rows_.size()) give_back();
  std::ranges::sort(free_states_, std::greater<>());
  rows_.swap(next_rows_);
  for (const std::size_t i : taken) {
    rows_[i].state = free_states_.back();
    free_states_.pop_back();
    for (int layer = 0; layer < options_.layers; ++layer) {
      layers_[usize(layer)].status[usize((rows_[i].state + 1) * (options_.k + 1) - 1)] = 0;
      sets_[usize(stream(layer, i))].reset();
    }
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const DecodeToken& t = tokens[i];
    state_rows_[i] = rows_[i].state;
    lengths_[i] = t.position + 1;
    steps_[i] = t.position - trace_.requests[usize(t.request)].input_length;
    if (table_request_[i] == t.request) continue;
    table_request_[i] = t.request;
    std::ranges::copy(t.table, full_table_.begin() + static_cast<std::int64_t>(i) * table_columns_);
  }
}

GatherSelectionKvCacheArgs Selector::prepare(int layer, const KeyValue& pool) {
  const std::int64_t batches = std::ssize(rows_), k = options_.k;
  internal::cpu::parallel_for(context_.state(), batches, [&](std::int64_t i) {
    const std::size_t row = usize(i);
    const std::span ids(topk_.data() + i * k, usize(k));
    source_.choose({stream(layer, row), rows_[row].request, steps_[row], layer, lengths_[row]}, ids);
    sets_[usize(stream(layer, row))].assign(ids, lengths_[row]);
  });
  const Shard& shard = options_.shard;
  const std::int64_t columns = cache_tokens(k) / kPageTokens;
  const auto caches = [&](const KeyValue& memory, Part part, std::int64_t pages, std::int64_t page_tokens) {
    return contiguous(memory.data(part), shard.model.dtype,
                      {pages, page_tokens, row_bytes_of(shard, part) / size_of(shard.model.dtype)});
  };
  const auto ints = [](std::vector<std::int32_t>& values, std::initializer_list<std::int64_t> shape) {
    return contiguous(values.data(), DType::kInt32, shape);
  };
  Layer& mine = layers_[usize(layer)];
  GatherSelectionKvCacheArgs args;
  args.selection_kv_cache = caches(mine.cache, Part::kKey, options_.requests * columns, kPageTokens);
  args.full_kv_cache = caches(pool, Part::kKey, options_.pool_pages, options_.page_tokens);
  if (shard.value_row_bytes > 0) {
    args.selection_k_rope = caches(mine.cache, Part::kValue, options_.requests * columns, kPageTokens);
    args.full_k_rope = caches(pool, Part::kValue, options_.pool_pages, options_.page_tokens);
  }
  args.selection_kv_block_table = ints(selection_table_, {options_.requests, columns});
  args.selection_kv_block_status = ints(mine.status, {options_.requests, 1, k + 1});
  args.selection_topk_indices = ints(topk_, {batches, 1, k});
  args.full_kv_block_table = ints(full_table_, {batches, table_columns_});
  args.full_kv_actual_seq = ints(lengths_, {batches});
  args.selection_kv_actual_seq = ints(actual_seq_, {options_.requests});
  args.status_row = ints(state_rows_, {batches});
  args.counters = ints(counters_, {batches, 3});
  args.fetch_counts = ints(fetch_counts_, {batches});
  args.selection_topk_block_size = 1;
  args.q_len_mode = QLenMode::kAllRows;  // one query token a request
  return args;
}

SelectionTotals Selector::finish(int layer) {
  SelectionTotals call;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    const SelectedSet& set = sets_[usize(stream(layer, row))];
    call.ids += set.size();
    call.hits += counters_[3 * row];
    call.misses += counters_[3 * row + 1];
    call.moved += counters_[3 * row + 2];
    call.fetched += fetch_counts_[row];
    if (set.size() < options_.k || set.last_size() < options_.k) continue;
    ++call.pairs;
    call.common += set.common();
    if (lengths_[row] < source_.least_measured_tokens()) continue;
    ++call.free_pairs;
    call.free_common += set.common();
  }
  for (const auto member :
       {&SelectionTotals::ids, &SelectionTotals::hits, &SelectionTotals::misses, &SelectionTotals::moved,
        &SelectionTotals::fetched, &SelectionTotals::pairs, &SelectionTotals::common,
        &SelectionTotals::free_pairs, &SelectionTotals::free_common}) {
    totals_.*member += call.*member;
  }
  return call;
}

std::string Selector::check_state(int layer) const {
  const auto hash = [](std::int32_t id) { return harness::mix(static_cast<std::uint64_t>(id)); };
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    const SelectedSet& set = sets_[usize(stream(layer, row))];
    const std::int32_t* slots = status(layer, row);
    const auto wrong = [&](const std::string& what) {
      const Request& r = trace_.requests[usize(rows_[row].request)];
      return fmt::format("gather_selection_kv_cache: request {} (line {}), layer {}, {} tokens: {}",
                         rows_[row].request, r.line, layer, lengths_[row], what);
    };
    const std::int64_t valid = slots[options_.k], returned = actual_seq_[row];
    if (valid != set.size() || returned != set.size()) {
      return wrong(
          fmt::format("{} valid tokens in the state, {} returned, expected {}", valid, returned, set.size()));
    }
    // As many members as the set has, with the sum of their hashes: no other, none twice.
    std::uint64_t sum = 0;
    for (std::int64_t p = 0; p < valid; ++p) {
      if (!set.contains(slots[p]))
        return wrong(fmt::format("slot {} holds id {}, which was not selected", p, slots[p]));
      sum += hash(slots[p]);
    }
    for (const std::int32_t id : set.ids()) sum -= hash(id);
    if (sum != 0) return wrong("an id is in two slots");
  }
  return {};
}

void Selector::add_spans(int layer, std::vector<RowSpan>& spans) const {
  const std::int64_t cache_rows = cache_tokens(options_.k);
  for (const Part part : parts_of(options_.shard)) {
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const std::int32_t* slots = status(layer, row);
      std::byte* at = layers_[usize(layer)].cache.data(part) +
                      rows_[row].state * cache_rows * row_bytes_of(options_.shard, part);
      for (std::int64_t p = 0; p < slots[options_.k]; ++p) {
        const std::int64_t id = slots[p];
        spans.push_back({at + p * row_bytes_of(options_.shard, part),
                         trace_.prefix_block(rows_[row].request, id), rows_[row].request, layer, id, 1,
                         part});
      }
    }
  }
}

}  // namespace kvferry::replay
