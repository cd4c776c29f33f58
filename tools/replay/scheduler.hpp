// SPDX-License-Identifier: Apache-2.0
//
// Scheduler: continuous batching over a trace, deterministic and without a clock,
// and the traffic that it causes.
//
// A step:
//   1. admit requests in trace order while fewer than max_running run and the pages for prompt and output fit
//      (reserved whole at admission: nobody is preempted); the first one that does not fit waits, and so does
//      everybody behind it. With `speed`, none before its time: steps * step_ms >= timestamp / speed.
//   2. spend `chunk` tokens: one for each decoding request, the rest as prefill in admission order.
//   3. full prompt blocks that are complete now can be shared from the next step on; requests that have all
//   their
//      output end.
// A request that needs more pages than the device has is refused when its turn comes.
//
// Reuse counts full blocks and leaves at least one prompt token to compute: of a prompt of n tokens the first
// (n - 1) / 512 blocks can be hits, so a prompt of exactly k blocks computes its last one again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvferry/status.hpp"
#include "tools/replay/numbers.hpp"
#include "tools/replay/tiered_cache.hpp"
#include "tools/replay/trace.hpp"

namespace kvferry::replay {

struct SchedulerOptions {
  std::int64_t page_tokens = 16;
  std::int64_t device_pages = 0;
  std::int64_t host_pages = 0;
  std::int64_t max_running = 64;
  std::int64_t chunk = 2048;
  double speed = 0;  // 0: no clock
  double step_ms = 50;
};

// Tokens [begin, end) of the prompt are computed; [0, begin) are in the pool.
struct PrefillChunk {
  std::int32_t request;
  std::int64_t begin;
  std::int64_t end;
  std::span<const std::int32_t> table;  // of the whole request, padded to a power of two
};

struct DecodeToken {
  std::int32_t request;
  std::int32_t position;
  std::int64_t slot;
  std::span<const std::int32_t> table;  // of the whole request, its own pages only
};

struct Counts {
  std::int64_t finished = 0;
  std::vector<std::int32_t> refused;
  std::int64_t steps = 0;       // that moved tokens
  std::int64_t idle_steps = 0;  // waited for an arrival; `speed` only
  std::int64_t running = 0;     // after the last step
  std::int64_t max_running = 0;
  std::int64_t admitted = 0;
  std::int64_t prompt_tokens = 0;  // of admitted requests
  std::int64_t device_hit_tokens = 0;
  std::int64_t host_hit_tokens = 0;
  std::int64_t computed_tokens = 0;   // prefill
  std::int64_t generated_tokens = 0;  // decode
  std::int64_t gathered_tokens = 0;
  std::int64_t evicted_tokens = 0, evicted_blocks = 0;
  std::int64_t fetched_tokens = 0, fetched_blocks = 0;
  std::int64_t dropped_tokens = 0, dropped_blocks = 0;
  std::int64_t shared_blocks = 0;    // computed twice at the same time, the later copy freed
  std::int64_t promoted_blocks = 0;  // computed again while the block was on the host
  // What the movement needs, and how often each call happens per layer (per run for the moves).
  std::int64_t gathers = 0, prefill_scatters = 0, decode_scatters = 0, evictions = 0, fetches = 0;
  std::int64_t longest_gather = 0;
  std::int64_t most_moved_pages = 0;
  std::int64_t device_high_water = 0, host_high_water = 0;  // pages
  // After the last step, in pages: of running requests (and the most so far), all in use.
  std::int64_t running_pages = 0, most_running_pages = 0;
  std::int64_t device_pages = 0, host_pages = 0;
  std::int64_t longest_request = 0;  // tokens

  std::int64_t hit_tokens() const { return device_hit_tokens + host_hit_tokens; }
  // Whole run, all tokens that some operator moves, for progress.
  std::int64_t moved_tokens() const {
    return gathered_tokens + computed_tokens + generated_tokens + evicted_tokens + fetched_tokens;
  }
};

// Carries out what the scheduler decides, in this order within a step: evict and fetch of each admission,
// decode, prefill chunks. A failure stops the run. Spans are valid during the call.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual Status evict(std::int32_t request, const Moves& moves) = 0;
  virtual Status fetch(std::int32_t request, const Moves& moves) = 0;
  virtual Status decode(std::span<const DecodeToken> tokens) = 0;
  virtual Status prefill(const PrefillChunk& chunk) = 0;
  virtual Status end_step(const Counts& counts) = 0;
};

class Scheduler {
 public:
  // Trace and tree must outlive the scheduler.
  Scheduler(const Trace& trace, const PrefixTree& tree, const SchedulerOptions& options);

  bool done() const { return next_ == std::ssize(trace_.requests) && running_.empty(); }
  // REQUIRES !done().
  Status step(Sink& sink);
  Status run(Sink& sink);

  const Counts& counts() const { return counts_; }
  const TieredCache& cache() const { return cache_; }
  std::int64_t running() const { return std::ssize(running_); }
  std::string audit() const;  // of the cache, against the running requests

 private:
  struct Running {
    std::int32_t request = 0;
    std::int64_t done = 0;       // prompt tokens in the pool
    std::int64_t generated = 0;  // output tokens in the pool
    std::int64_t held = 0;       // full prompt blocks that it holds a reference on
    std::int64_t pages = 0;
    std::int64_t chunk_end = 0;  // of this step's prefill; 0: none
    std::vector<std::int32_t> table;
  };

  const Request& request(const Running& r) const { return trace_.requests[usize(r.request)]; }
  std::span<std::int32_t> pages(Running& r) { return {r.table.data(), usize(r.pages)}; }
  bool is_due(const Request& r) const;
  Status admit(Sink& sink);
  Status move(Sink& sink);
  void settle();

  const Trace& trace_;
  const PrefixTree& tree_;
  SchedulerOptions options_;
  TieredCache cache_;
  Counts counts_;
  std::int64_t next_ = 0;  // first request that was not looked at
  std::int64_t clock_ = 0;
  std::vector<Running> running_;  // in admission order
  std::vector<std::vector<std::int32_t>> spare_tables_;
  std::vector<DecodeToken> decode_;
  Admission admission_;
};

// The counts of a run that moves nothing.
Counts simulate(const Trace& trace, const PrefixTree& tree, const SchedulerOptions& options);

}  // namespace kvferry::replay
