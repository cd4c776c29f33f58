// SPDX-License-Identifier: Apache-2.0
//
// Which tokens a sparse-attention model selects: where the ids of a decode step come from.
//
// The built-in model: a recency window, sink tokens at the front, and between them positions of which most
// stay from step to step, so that two consecutive sets have a given overlap, as an indexer's do. No scores:
// the ids come without order, the rest first (from a random start), then sinks and window.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/replay/numbers.hpp"

namespace kvferry::replay {

// One layer of one decode step of a request.
struct Choice {
  std::int64_t stream = 0;   // the state that a request keeps for a layer; step 0 begins a new one
  std::int32_t request = 0;  // in the trace
  std::int32_t step = 0;
  std::int32_t layer = 0;
  std::int64_t tokens = 0;  // of the sequence, this step's included; one more in each step
};

class IdSource {
 public:
  virtual ~IdSource() = default;
  // Fills `ids` (K of them); -1 ends the list. Calls for different streams may run at the same time.
  virtual void choose(const Choice& choice, std::span<std::int32_t> ids) = 0;
  // Sequences of fewer tokens are no measure of the overlap: they have too few others to choose from.
  virtual std::int64_t least_measured_tokens() const { return 0; }
};

class LocalityModel final : public IdSource {
 public:
  struct Options {
    std::int64_t k = 2048;
    double overlap_percent = 58.85;  // a new token is always selected, so (k - 1) / k at most
    std::uint64_t seed = 1;
    std::int64_t streams = 1;
    std::int64_t longest = 0;  // tokens of a sequence
  };
  explicit LocalityModel(const Options& options);

  // All positions while there are no more than K. Deterministic: depends on seed, request, layer and step.
  void choose(const Choice& choice, std::span<std::int32_t> ids) override;
  std::int64_t least_measured_tokens() const override { return 2 * k_ - overlap_ / kUnit + 1; }

  std::int64_t sinks() const { return sinks_; }
  std::int64_t window() const { return window_; }

 private:
  static constexpr std::int64_t kUnit = 1'000'000;  // of an id

  struct Stream {
    std::vector<std::int32_t> rest;    // the set without sinks and window
    std::vector<std::uint64_t> taken;  // bit: the position is in rest
    std::uint64_t random = 0;
    std::int64_t due = 0;  // replacements that were not made yet, in units
    bool begun = false;
  };

  void begin(Stream& s, const Choice& choice) const;
  // A position in [sinks, end) that is not taken, near a random one. REQUIRES that there is one.
  std::int64_t take(Stream& s, std::int64_t end) const;

  std::int64_t k_, sinks_, window_, rest_;
  std::int64_t overlap_;  // ids that stay, in units
  std::uint64_t seed_;
  std::vector<Stream> streams_;
};

}  // namespace kvferry::replay
