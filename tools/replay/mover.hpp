// SPDX-License-Identifier: Apache-2.0
//
// Mover: carries out the traffic with the operators, on real memory, and checks what they wrote.
//
//   prefill chunk, each layer   gather_pa_kv_cache of [0, begin) into contiguous buffers,
//                               scatter_pa_kv_cache of [begin, end) out of contiguous buffers
//   decode, each layer          one scatter_pa_kv_cache with a token of every decoding request; with
//   selection
//                               one gather_selection_kv_cache for all of them after it
//   eviction, fetch             one swap_blocks for all layers, K and V
//
// Plans are made once for each size of problem and kept; the clock runs around run() only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvferry/context.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"
#include "kvferry/ops/scatter_pa_kv_cache.hpp"
#include "kvferry/ops/swap_blocks.hpp"
#include "tools/replay/key_value.hpp"
#include "tools/replay/models.hpp"
#include "tools/replay/rows.hpp"
#include "tools/replay/scheduler.hpp"
#include "tools/replay/selector.hpp"
#include "tools/replay/stats.hpp"

namespace kvferry::replay {

// For tests: flips bits of a row in the device pool after it was written and checked.
struct Fault {
  std::int32_t request = 0;
  std::int64_t position = 0;  // of the prompt
  std::int32_t layer = 0;
  Part part = Part::kKey;
  std::int64_t byte = 0;
  std::uint8_t bits = 1;
};

// Of the calls of each kind.
struct VerifyShare {
  bool all = false;
  double percent = 5;
  std::int64_t at_least = 1000;  // not with percent = 0

  std::int64_t wanted(std::int64_t calls) const;
};

struct Mismatch {
  Call call = Call::kGather;
  std::int64_t number = 0;  // of the call among its kind, from 1
  BadRow row;
};
// One line: operator, request, layer, position, both bytes.
std::string to_string(const Mismatch& mismatch, const Trace& trace);

struct MoverOptions {
  Shard shard;
  int layers = 1;
  SchedulerOptions scheduler;
  VerifyShare verify;
  std::uint64_t seed = 1;
  std::optional<Fault> fault;
  std::int64_t select = 0;        // K; 0: decode without selection
  IdSource* id_source = nullptr;  // with selection; must outlive the mover
  std::function<void(const Counts&)> on_step;
};

// Bytes that a run touches. With selection the device has the selection caches and the host the pool.
struct Footprint {
  std::int64_t device = 0;
  std::int64_t host = 0;
  std::int64_t buffers = 0;  // the operators' contiguous sides
  std::int64_t total() const { return device + host + buffers; }
};
// `counts` are those of the simulated run.
Footprint footprint(const MoverOptions& options, const Counts& counts);

class Mover final : public Sink {
 public:
  // Allocates and touches everything. Context, trace and tree must outlive the mover.
  static Result<std::unique_ptr<Mover>> make(const Context& context, const Trace& trace,
                                             const PrefixTree& tree, const MoverOptions& options,
                                             const Counts& counts);

  Status evict(std::int32_t request, const Moves& moves) override;
  Status fetch(std::int32_t request, const Moves& moves) override;
  Status decode(std::span<const DecodeToken> tokens) override;
  Status prefill(const PrefillChunk& chunk) override;
  Status end_step(const Counts& counts) override;

  const PerCall<CallStats>& stats() const { return stats_; }
  // Zeros without selection.
  SelectionTotals selection() const { return selector_ ? selector_->totals() : SelectionTotals(); }
  // After the first one every method fails.
  const std::optional<Mismatch>& mismatch() const { return mismatch_; }

 private:
  // Rows of one owner that follow one another in some KeyValue, whatever the layer.
  struct Segment {
    std::int64_t row;
    std::int64_t hash_id;
    std::int32_t request;
    std::int64_t first;
    std::int64_t rows;
  };
  using PlanKey = std::pair<std::int64_t, std::int64_t>;

  Mover(const Context& context, const Trace& trace, const PrefixTree& tree, const MoverOptions& options);
  Status allocate(const Counts& counts);
  Status allocate(KeyValue& memory, std::int64_t rows, std::int64_t touched_rows) const;

  std::span<const Part> parts() const { return parts_of(options_.shard); }
  // [blocks, page tokens, heads, head size] of the device pool.
  TensorView cache_view(int layer, Part part) const;
  // [rows, heads, head size].
  TensorView rows_view(const KeyValue& memory, std::int64_t rows, Part part) const;

  // The plan for a problem of this size, made from make_args() if there is none yet.
  template <class MakeArgs>
  Result<Plan> planned(Call call, std::map<PlanKey, Plan>& plans, PlanKey key, MakeArgs make_args);
  template <class Buffers>
  Status timed_run(Call call, const Plan& plan, Buffers buffers, std::int64_t tokens, std::int64_t bytes);

  Status gather(int layer, const PrefillChunk& chunk);
  // Rows 0, 1, ... of the staging buffers to the slots in `slots_`.
  Status scatter(Call call, int layer);
  Status copy(Call call, std::int32_t request, const Moves& moves);
  Status select(int layer);

  // Positions [begin, end) of a request that lie in consecutive rows from `row` on.
  void add_contiguous(std::vector<Segment>& segments, std::int32_t request, std::int64_t begin,
                      std::int64_t end, std::int64_t row) const;
  // The destinations of moved blocks.
  void add_blocks(std::vector<Segment>& segments, std::int32_t request, const Moves& moves) const;
  void add_spans(const KeyValue& memory, int layer, std::span<const Segment> segments);
  void fill_staging(int layer, std::span<const Segment> segments);
  // Checks spans_, which the last call of this kind wrote.
  Status check_spans(Call call);
  void inject_fault(int layer, const PrefillChunk& chunk);

  const Context& context_;
  const Trace& trace_;
  const PrefixTree& tree_;
  MoverOptions options_;
  RowChecker rows_;

  std::vector<KeyValue> device_;  // a layer each
  std::vector<KeyValue> host_;
  KeyValue gathered_;
  KeyValue staged_;
  std::int64_t gathered_rows_ = 0;
  std::int64_t staged_rows_ = 0;

  std::unique_ptr<Selector> selector_;

  std::map<PlanKey, Plan> scatter_plans_, gather_plans_, copy_plans_, select_plans_;
  std::vector<std::byte> workspace_;
  std::vector<std::int64_t> slots_;
  std::vector<PagePair> mapping_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
  std::vector<TensorView> copy_views_;
  std::vector<Segment> staged_segments_, gathered_segments_, pool_segments_;
  std::vector<RowSpan> spans_;

  PerCall<CallStats> stats_;
  PerCall<CallSampler> samplers_;
  std::optional<Mismatch> mismatch_;
};

}  // namespace kvferry::replay
