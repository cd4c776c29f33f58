// SPDX-License-Identifier: Apache-2.0
//
// Selector: decode with sparse attention. Every running request has a small selection cache in each layer, in
// fast memory, that gather_selection_kv_cache keeps filled with K of its tokens out of the full pool.
//
// It decides which state row belongs to which request, chooses the ids, lays out the call and judges its
// result; the mover runs it. Only requests that decode have a row: a request takes the lowest free one, whose
// status it resets by a length of 0.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvferry/context.hpp"
#include "kvferry/ops/gather_selection_kv_cache.hpp"
#include "tools/replay/key_value.hpp"
#include "tools/replay/locality.hpp"
#include "tools/replay/rows.hpp"
#include "tools/replay/scheduler.hpp"

namespace kvferry::replay {

// Which positions a stream has selected: the list as the operator must read it, and the one before.
class SelectedSet {
 public:
  explicit SelectedSet(std::int64_t longest = 0);

  void reset() { begun_ = false; }
  // Up to the first negative id, without repeated ones and those at or past `tokens`.
  void assign(std::span<const std::int32_t> ids, std::int64_t tokens);
  bool contains(std::int32_t id) const;
  std::int64_t size() const { return std::ssize(ids_); }
  const std::vector<std::int32_t>& ids() const { return ids_; }
  // Of the list before; -1 after a reset.
  std::int64_t last_size() const { return last_size_; }
  std::int64_t common() const { return common_; }  // ids that were in it too

 private:
  std::vector<std::int32_t> ids_, last_ids_;
  std::vector<std::uint64_t> bits_, last_bits_;
  std::int64_t common_ = 0, last_size_ = -1;
  bool begun_ = false;
};

// Sums over calls; ids of different layers count each.
struct SelectionTotals {
  std::int64_t ids = 0;  // selected, as counted here; the next two are the operator's counters
  std::int64_t hits = 0, misses = 0;
  std::int64_t moved = 0;
  std::int64_t fetched = 0;  // read from the full pool
  // Pairs of consecutive sets of K ids, all of them and those of sequences that leave a choice.
  std::int64_t pairs = 0, common = 0;
  std::int64_t free_pairs = 0, free_common = 0;
};

class Selector {
 public:
  static constexpr std::int64_t kPageTokens = 128;  // of the selection caches

  struct Options {
    Shard shard;
    int layers = 1;
    std::int64_t k = 2048;
    std::int64_t requests = 1;  // that decode at a time
    std::int64_t longest = 0;   // tokens of a sequence
    std::int64_t pool_pages = 0, page_tokens = 16;
  };

  // Tokens of a request's selection cache: K in whole pages.
  static std::int64_t cache_tokens(std::int64_t k) {
    return (k + kPageTokens - 1) / kPageTokens * kPageTokens;
  }

  // Allocates and touches. Context, trace and source must outlive the selector.
  static Result<std::unique_ptr<Selector>> make(const Context& context, const Trace& trace,
                                                const Options& options, IdSource& source);

  // The requests of a step: by number, ascending; those of the step before that are missing have ended.
  void begin_step(std::span<const DecodeToken> tokens);
  // Chooses the ids of a layer and lays out its call on the layer's pool.
  GatherSelectionKvCacheArgs prepare(int layer, const KeyValue& pool);
  // After the call: adds its counters to the totals; returns what they were.
  SelectionTotals finish(int layer);
  // Whether the status names exactly the chosen ids; if not, a line that says what is wrong.
  std::string check_state(int layer) const;
  // Every valid token of the selection caches. REQUIRES that the state is right.
  void add_spans(int layer, std::vector<RowSpan>& spans) const;

  const SelectionTotals& totals() const { return totals_; }

 private:
  struct Row {
    std::int32_t request = -1;
    std::int32_t state = 0;
  };
  struct Layer {
    KeyValue cache;
    std::vector<std::int32_t> status;  // [requests, K + 1]
  };

  Selector(const Context& context, const Trace& trace, const Options& options, IdSource& source);
  std::int64_t stream(int layer, std::size_t row) const { return rows_[row].state * options_.layers + layer; }
  const std::int32_t* status(int layer, std::size_t row) const {
    return layers_[usize(layer)].status.data() + rows_[row].state * (options_.k + 1);
  }

  const Context& context_;
  const Trace& trace_;
  Options options_;
  IdSource& source_;
  std::int64_t table_columns_;

  std::vector<Layer> layers_;
  std::vector<std::int32_t> selection_table_;  // pages of state row i are i * columns, ...
  std::vector<SelectedSet> sets_;              // of each stream

  // Of this step; element or matrix row i is the i-th decoding request.
  std::vector<Row> rows_;
  std::vector<std::int32_t> full_table_;
  std::vector<std::int32_t> table_request_;  // whose pages a row of full_table_ holds; -1: nobody's
  std::vector<std::int32_t> state_rows_, lengths_, steps_;
  std::vector<std::int32_t> topk_, counters_, fetch_counts_, actual_seq_;
  std::vector<std::int32_t> free_states_;  // lowest last
  std::vector<Row> next_rows_;
  SelectionTotals totals_;
};

}  // namespace kvferry::replay
