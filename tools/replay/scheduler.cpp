// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/scheduler.hpp"
#include "tools/replay/numbers.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace kvferry::replay {

Scheduler::Scheduler(const Trace& trace, const PrefixTree& tree, const SchedulerOptions& options)
    : trace_(trace),
      tree_(tree),
      options_(options),
      cache_(tree, options.page_tokens, options.device_pages, options.host_pages) {}

bool Scheduler::is_due(const Request& r) const {
  if (options_.speed <= 0) return true;
  return static_cast<double>(clock_) * options_.step_ms >=
         static_cast<double>(r.timestamp_ms) / options_.speed;
}

Status Scheduler::admit(Sink& sink) {
  while (next_ < std::ssize(trace_.requests) && running() < options_.max_running) {
    const auto index = static_cast<std::int32_t>(next_);
    const Request& r = trace_.requests[usize(index)];
    const std::int64_t page_count = (r.tokens() + options_.page_tokens - 1) / options_.page_tokens;
    if (page_count > options_.device_pages) {
      counts_.refused.push_back(index);
      ++next_;
      continue;
    }
    if (!is_due(r)) break;
    Running run;
    run.request = index;
    run.pages = page_count;
    if (!spare_tables_.empty()) {
      run.table = std::move(spare_tables_.back());
      spare_tables_.pop_back();
    }
    // A power of two: one plan serves all tables of a size.
    run.table.resize(std::bit_ceil(usize(page_count)));
    const auto chain = tree_.chain(usize(index));
    const std::size_t reusable = std::min(chain.size(), usize((r.input_length - 1) / kHashBlock));
    if (!cache_.admit(chain.first(reusable), pages(run), admission_)) {
      spare_tables_.push_back(std::move(run.table));
      break;
    }
    ++next_;
    const Admission& a = admission_;
    run.held = a.hit_blocks;
    run.done = cache_.prefix_pages(a.hit_blocks) * options_.page_tokens;
    ++counts_.admitted;
    counts_.prompt_tokens += r.input_length;
    counts_.longest_request = std::max(counts_.longest_request, r.tokens());
    counts_.device_hit_tokens += a.device_hit_pages * options_.page_tokens;
    counts_.host_hit_tokens += a.host_hit_pages * options_.page_tokens;
    counts_.dropped_blocks += a.dropped_blocks;
    counts_.dropped_tokens += a.dropped_pages * options_.page_tokens;
    for (const Moves* moves : {&a.evicted, &a.fetched}) {
      counts_.most_moved_pages = std::max<std::int64_t>(counts_.most_moved_pages, std::ssize(moves->pages));
    }
    running_.push_back(std::move(run));
    if (!a.evicted.empty()) {
      ++counts_.evictions;
      counts_.evicted_blocks += std::ssize(a.evicted.blocks);
      counts_.evicted_tokens += std::ssize(a.evicted.pages) * options_.page_tokens;
      if (Status s = sink.evict(index, a.evicted); !s.ok()) return s;
    }
    if (!a.fetched.empty()) {
      ++counts_.fetches;
      counts_.fetched_blocks += std::ssize(a.fetched.blocks);
      counts_.fetched_tokens += std::ssize(a.fetched.pages) * options_.page_tokens;
      if (Status s = sink.fetch(index, a.fetched); !s.ok()) return s;
    }
  }
  counts_.max_running = std::max(counts_.max_running, running());
  return {};
}

Status Scheduler::move(Sink& sink) {
  decode_.clear();
  std::int64_t budget = options_.chunk;
  for (Running& r : running_) {
    r.chunk_end = 0;
    if (r.done < request(r).input_length) continue;
    const std::int64_t position = request(r).input_length + r.generated;
    const std::int64_t page = r.table[usize(position / options_.page_tokens)];
    decode_.push_back({r.request, static_cast<std::int32_t>(position),
                       page * options_.page_tokens + position % options_.page_tokens, pages(r)});
    --budget;
  }
  if (!decode_.empty()) {
    ++counts_.decode_scatters;
    counts_.generated_tokens += std::ssize(decode_);
    if (Status s = sink.decode(decode_); !s.ok()) return s;
  }
  for (Running& r : running_) {
    const std::int64_t left = request(r).input_length - r.done;
    if (left == 0) continue;
    if (budget <= 0) break;
    const std::int64_t n = std::min(left, budget);
    budget -= n;
    r.chunk_end = r.done + n;
    counts_.gathers += r.done > 0;
    counts_.gathered_tokens += r.done;
    counts_.longest_gather = std::max(counts_.longest_gather, r.done);
    ++counts_.prefill_scatters;
    counts_.computed_tokens += n;
    if (Status s = sink.prefill({r.request, r.done, r.chunk_end, r.table}); !s.ok()) return s;
  }
  return {};
}

void Scheduler::settle() {
  std::size_t kept = 0;
  for (Running& r : running_) {
    const Request& q = request(r);
    const auto chain = tree_.chain(usize(r.request));
    if (r.chunk_end > 0) {
      r.done = r.chunk_end;
      for (; r.held < std::ssize(chain) && (r.held + 1) * kHashBlock <= r.done; ++r.held) {
        const auto completion = cache_.complete(chain[usize(r.held)], pages(r));
        counts_.shared_blocks += completion == TieredCache::Completion::kShared;
        counts_.promoted_blocks += completion == TieredCache::Completion::kPromoted;
      }
    } else if (r.done == q.input_length) {
      ++r.generated;
    }
    if (r.done == q.input_length && r.generated == q.output_length) {
      cache_.release(chain.first(usize(r.held)), pages(r));
      spare_tables_.push_back(std::move(r.table));
      ++counts_.finished;
    } else {
      if (&running_[kept] != &r) running_[kept] = std::move(r);
      ++kept;
    }
  }
  running_.resize(kept);
}

Status Scheduler::step(Sink& sink) {
  if (Status s = admit(sink); !s.ok()) return s;
  if (running_.empty()) {
    if (next_ == std::ssize(trace_.requests)) return sink.end_step(counts_);  // the rest was refused
    // Nothing to do before the next arrival. The rounding may be one short.
    const auto arrival = static_cast<double>(trace_.requests[usize(next_)].timestamp_ms) / options_.speed;
    const std::int64_t before = clock_;
    clock_ = std::max(clock_, static_cast<std::int64_t>(std::ceil(arrival / options_.step_ms)));
    while (!is_due(trace_.requests[usize(next_)])) ++clock_;
    counts_.idle_steps += clock_ - before;
    if (Status s = admit(sink); !s.ok()) return s;
  }
  if (Status s = move(sink); !s.ok()) return s;
  settle();
  ++clock_;
  ++counts_.steps;
  counts_.running = running();
  counts_.device_high_water = cache_.device().high_water();
  counts_.host_high_water = cache_.host().high_water();
  counts_.device_pages = cache_.device().used_pages();
  counts_.running_pages = counts_.device_pages - cache_.evictable_pages();
  counts_.most_running_pages = std::max(counts_.most_running_pages, counts_.running_pages);
  counts_.host_pages = cache_.host().used_pages();
  return sink.end_step(counts_);
}

Status Scheduler::run(Sink& sink) {
  while (!done()) {
    if (Status s = step(sink); !s.ok()) return s;
  }
  return {};
}

std::string Scheduler::audit() const {
  std::vector<TieredCache::Holder> holders;
  holders.reserve(running_.size());
  for (const Running& r : running_) {
    holders.push_back({tree_.chain(usize(r.request)).first(usize(r.held)), {r.table.data(), usize(r.pages)}});
  }
  return cache_.audit(holders);
}

Counts simulate(const Trace& trace, const PrefixTree& tree, const SchedulerOptions& options) {
  class Nothing final : public Sink {
   public:
    Status evict(std::int32_t, const Moves&) override { return {}; }
    Status fetch(std::int32_t, const Moves&) override { return {}; }
    Status decode(std::span<const DecodeToken>) override { return {}; }
    Status prefill(const PrefillChunk&) override { return {}; }
    Status end_step(const Counts&) override { return {}; }
  } nothing;
  Scheduler scheduler(trace, tree, options);
  // Nothing of it can fail.
  static_cast<void>(scheduler.run(nothing));
  return scheduler.counts();
}

}  // namespace kvferry::replay
