// SPDX-License-Identifier: Apache-2.0
//
// Report: the numbers of one replay, as a table for people and as JSON for programs. The page
// with charts (html.hpp) is made from the JSON.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/replay/options.hpp"
#include "tools/replay/series.hpp"
#include "tools/replay/stats.hpp"

namespace kvferry::replay {

struct Report {
  Options options;
  Shard shard;
  std::string trace_name;
  std::int64_t trace_requests = 0;
  std::int64_t trace_prompt_tokens = 0;
  int threads = 1;
  double copy_limit_before = 0;  // GB/s; 0: not measured
  double copy_limit_after = 0;
  std::string copy_limit_method;
  Counts counts;
  PerCall<CallStats> calls;
  TimeSeries series;
  SelectionTotals selection;
  // Of each refused request.
  struct Refused {
    std::int64_t line;
    std::int64_t tokens;
  };
  std::vector<Refused> refused;
  std::optional<Mismatch> mismatch;
  std::string error;           // why the run ended early
  double replay_seconds = 0;   // the movement phase
  double elapsed_seconds = 0;  // everything
  std::int64_t peak_memory = 0;

  bool selects() const { return options.select > 0; }
  // Of so many rows of a layer.
  std::int64_t selected_bytes(std::int64_t rows) const { return rows * shard.token_layer_bytes(); }
  // Fast memory with selection caches for so many requests, and with the full cache in so many pages.
  std::int64_t selection_memory(std::int64_t requests) const {
    return requests * Selector::cache_tokens(options.select) * token_bytes();
  }
  std::int64_t full_memory(std::int64_t pages) const { return pages * options.block * token_bytes(); }
  std::int64_t device_bytes() const {
    return selects() ? selection_memory(counts.max_running) : device_tokens() * token_bytes();
  }
  // Whole pages.
  std::int64_t device_tokens() const {
    return selects() ? 0 : options.device_tokens / options.block * options.block;
  }
  std::int64_t host_tokens() const { return options.host_tokens / options.block * options.block; }
  double copy_limit() const { return (copy_limit_before + copy_limit_after) / 2; }
  std::int64_t token_bytes() const { return shard.token_layer_bytes() * options.layers; }
  // Bytes of the whole model are this many times those of the run.
  double whole_model_factor() const {
    return static_cast<double>(shard.model.layers) / options.layers * shard.distinct_ranks();
  }
  double operator_seconds() const;
  // What the bytes between the tiers would take over the link; none without one, or for other calls.
  std::optional<double> link_seconds(Call call) const;
};

// 0 of nothing.
double percent(std::int64_t part, std::int64_t whole);

nlohmann::json to_json(const Report& report);
std::string to_table(const Report& report);

}  // namespace kvferry::replay
