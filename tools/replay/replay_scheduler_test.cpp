// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tools/replay/content.hpp"
#include "tools/replay/generator.hpp"
#include "tools/replay/replay_testing.hpp"
#include "tools/replay/scheduler.hpp"

namespace kvferry::replay {
namespace {

// "3/14/15": the ids from the first block of the prompt to this one.
using Key = std::vector<std::int64_t>;
std::string print(const Key& key) {
  return fmt::format("{}", fmt::join(key, "/"));
}

Key key_of(const PrefixTree& tree, std::int32_t block) {
  Key key;
  for (; block >= 0; block = tree.parent(block)) key.insert(key.begin(), tree.hash_id(block));
  return key;
}

std::string print_evict(std::int32_t request, const std::vector<Key>& keys) {
  std::string text = fmt::format("evict for {}:", request);
  for (const Key& k : keys) text += " " + print(k);
  return text;
}
std::string print_fetch(std::int32_t request, const std::vector<Key>& keys) {
  std::string text = fmt::format("fetch for {}:", request);
  for (const Key& k : keys) text += " " + print(k);
  return text;
}
std::string print_prefill(std::int32_t request, std::int64_t begin, std::int64_t end) {
  return fmt::format("prefill {}: {}..{}", request, begin, end);
}
std::string print_decode(std::int32_t request, std::int64_t position) {
  return fmt::format("decode {}: {}", request, position);
}

// Writes down what the scheduler does, moves a hash for every token, checks every token that is gathered,
// and audits the cache after every step.
class Recorder final : public Sink {
 public:
  Recorder(const Trace& trace, const PrefixTree& tree, const SchedulerOptions& options)
      : trace_(trace),
        tree_(tree),
        page_(options.page_tokens),
        device_(usize(options.device_pages * page_)),
        host_(usize(options.host_pages * page_)) {}

  Status evict(std::int32_t request, const Moves& moves) override {
    events.push_back(print_evict(request, keys(moves)));
    copy(moves, device_, host_);
    return {};
  }
  Status fetch(std::int32_t request, const Moves& moves) override {
    events.push_back(print_fetch(request, keys(moves)));
    copy(moves, host_, device_);
    return {};
  }
  Status decode(std::span<const DecodeToken> tokens) override {
    for (const DecodeToken& t : tokens) {
      events.push_back(print_decode(t.request, t.position));
      device_[usize(t.slot)] = token(t.request, t.position);
    }
    return {};
  }
  Status prefill(const PrefillChunk& chunk) override {
    events.push_back(print_prefill(chunk.request, chunk.begin, chunk.end));
    for (std::int64_t p = 0; p < chunk.end; ++p) {
      std::uint64_t& slot = device_[usize(chunk.table[usize(p / page_)] * page_ + p % page_)];
      if (p >= chunk.begin) slot = token(chunk.request, p);
      if (slot != token(chunk.request, p))
        return {StatusCode::kIndex, fmt::format("{} is wrong at {}", chunk.request, p)};
    }
    return {};
  }
  Status end_step(const Counts&) override {
    const std::string problem = scheduler->audit();
    return problem.empty() ? Status() : Status(StatusCode::kIndex, problem);
  }

  std::vector<std::string> events;
  const Scheduler* scheduler = nullptr;

 private:
  std::uint64_t token(std::int32_t request, std::int64_t position) const {
    const Request& r = trace_.requests[usize(request)];
    const std::int64_t block = position / kHashBlock;
    const std::uint64_t identity =
        block < r.full_blocks() ? block_identity(trace_.ids(r)[usize(block)]) : request_identity(request);
    return row_seed(identity, position);
  }
  std::vector<Key> keys(const Moves& moves) const {
    std::vector<Key> result;
    result.reserve(moves.blocks.size());
    for (const Moves::Block& b : moves.blocks) result.push_back(key_of(tree_, b.block));
    return result;
  }
  void copy(const Moves& moves, std::vector<std::uint64_t>& from, std::vector<std::uint64_t>& to) const {
    for (const PagePair& p : moves.pages)
      std::copy_n(from.begin() + p.src * page_, page_, to.begin() + p.dst * page_);
  }

  const Trace& trace_;
  const PrefixTree& tree_;
  std::int64_t page_;
  std::vector<std::uint64_t> device_;
  std::vector<std::uint64_t> host_;
};

// The rules again, as directly as they can be written: blocks by the ids of their whole prefix, counts of
// pages instead of pages, lists that are searched.
class Naive {
 public:
  Naive(const Trace& trace, const SchedulerOptions& options)
      : trace_(trace), o_(options), free_(options.device_pages) {}

  std::vector<std::string> run() {
    while (next_ < trace_.requests.size() || !running_.empty()) step();
    return std::move(events_);
  }
  std::int64_t hit_tokens = 0, refused = 0, dropped = 0;

 private:
  struct Running {
    std::size_t request;
    std::int64_t done, generated = 0;
    std::vector<Key> held;
    std::int64_t end = 0;
  };

  std::int64_t pages_before(std::int64_t blocks) const { return 512 * blocks / o_.page_tokens; }
  std::int64_t pages(const Key& k) const {
    return pages_before(std::ssize(k)) - pages_before(std::ssize(k) - 1);
  }
  std::int64_t pages(const std::vector<Key>& keys) const {
    std::int64_t sum = 0;
    for (const Key& k : keys) sum += pages(k);
    return sum;
  }
  std::int64_t pages_of_request(std::size_t r) const {
    return (trace_.requests[r].tokens() + o_.page_tokens - 1) / o_.page_tokens;
  }
  Key key(std::size_t request, std::int64_t blocks) const {
    const auto ids = trace_.ids(trace_.requests[request]).first(usize(blocks));
    return {ids.begin(), ids.end()};
  }
  static bool contains(const std::vector<Key>& list, const Key& k) {
    return std::find(list.begin(), list.end(), k) != list.end();
  }
  static void erase(std::vector<Key>& list, const Key& k) {
    list.erase(std::find(list.begin(), list.end(), k));
  }

  bool try_admit(std::size_t request) {
    const Request& r = trace_.requests[request];
    std::vector<Key> hits, host_hits;
    std::int64_t on_device = 0;
    for (std::int64_t j = 1; 512 * j < r.input_length; ++j) {
      const Key k = key(request, j);
      if (contains(host_, k)) {
        host_hits.push_back(k);
      } else if (contains(idle_, k) || references_.contains(k)) {
        on_device += pages(k);
      } else {
        break;
      }
      hits.push_back(k);
    }
    const std::int64_t needed = pages_of_request(request) - on_device;
    std::vector<Key> idle = idle_;
    for (const Key& k : hits) {
      if (contains(idle, k)) erase(idle, k);
    }
    if (needed > free_ + pages(idle)) return false;
    idle_ = idle;
    for (const Key& k : hits) ++references_[k];
    for (const Key& k : host_hits) erase(host_, k);
    std::vector<Key> leaving;
    while (free_ < needed) {
      leaving.push_back(idle_.front());
      free_ += pages(idle_.front());
      idle_.erase(idle_.begin());
    }
    // The oldest of (host, leaving) go until the rest fits beside what is being fetched.
    const std::int64_t room = o_.host_pages - pages(host_hits);
    while (pages(host_) + pages(leaving) > room) {
      std::vector<Key>& oldest = host_.empty() ? leaving : host_;
      oldest.erase(oldest.begin());
      ++dropped;
    }
    host_.insert(host_.end(), leaving.begin(), leaving.end());
    free_ -= needed;
    const auto index = static_cast<std::int32_t>(request);
    if (pages(leaving) > 0) events_.push_back(print_evict(index, leaving));
    if (pages(host_hits) > 0) events_.push_back(print_fetch(index, host_hits));
    const std::int64_t done = pages_before(std::ssize(hits)) * o_.page_tokens;
    hit_tokens += done;
    running_.push_back({request, done, 0, hits, 0});
    return true;
  }

  void step() {
    while (next_ < trace_.requests.size() && std::ssize(running_) < o_.max_running) {
      const auto time = static_cast<double>(trace_.requests[next_].timestamp_ms);
      const bool early = o_.speed > 0 && static_cast<double>(clock_) * o_.step_ms < time / o_.speed;
      if (pages_of_request(next_) > o_.device_pages) {
        ++refused;
      } else if (early || !try_admit(next_)) {
        break;
      }
      ++next_;
    }
    ++clock_;
    std::int64_t budget = o_.chunk;
    for (Running& r : running_) {
      const Request& q = trace_.requests[r.request];
      if (r.done < q.input_length) continue;
      events_.push_back(print_decode(static_cast<std::int32_t>(r.request), q.input_length + r.generated++));
      --budget;
      r.end = -1;  // decoded in this step
    }
    for (Running& r : running_) {
      const Request& q = trace_.requests[r.request];
      const std::int64_t n = std::min(budget, q.input_length - r.done);
      if (r.end < 0 || n <= 0) continue;
      events_.push_back(print_prefill(static_cast<std::int32_t>(r.request), r.done, r.done + n));
      r.end = r.done + n;
      budget -= n;
    }
    for (Running& r : running_) {
      if (r.end > 0) r.done = r.end;
      r.end = 0;
      for (std::int64_t j = std::ssize(r.held) + 1; 512 * j <= r.done; ++j) {
        const Key k = key(r.request, j);
        if (contains(host_, k)) {
          erase(host_, k);
        } else if (references_.contains(k) || contains(idle_, k)) {
          free_ += pages(k);
          if (contains(idle_, k)) erase(idle_, k);
        }
        ++references_[k];
        r.held.push_back(k);
      }
      const Request& q = trace_.requests[r.request];
      if (r.done < q.input_length || r.generated < q.output_length) continue;
      free_ += pages_of_request(r.request) - pages(r.held);
      while (!r.held.empty()) {
        const Key k = r.held.back();
        r.held.pop_back();
        if (--references_[k] > 0) continue;
        references_.erase(k);
        idle_.push_back(k);
      }
      r.end = -2;
    }
    std::erase_if(running_, [](const Running& r) { return r.end == -2; });
  }

  const Trace& trace_;
  SchedulerOptions o_;
  std::size_t next_ = 0;
  std::int64_t clock_ = 0;
  std::int64_t free_;
  std::map<Key, int> references_;
  std::vector<Key> idle_, host_;  // oldest first
  std::vector<Running> running_;
  std::vector<std::string> events_;
};

TEST(ReplayScheduler, DoesWhatTheNaiveOneDoes) {
  std::int64_t evictions = 0, fetches = 0, shared = 0, promoted = 0, refused = 0, dropped = 0, idle = 0;
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    harness::Random random(seed);
    const Trace trace = random_trace(random, 40, 7);
    const PrefixTree tree(trace);
    SchedulerOptions o;
    o.page_tokens = std::vector<std::int64_t>{16, 48, 512, 100, 1000}[seed % 5];
    o.device_pages = random.between(2500, 9000) / o.page_tokens;
    o.host_pages = random.between(0, 6000) / o.page_tokens;
    o.max_running = random.between(1, 6);
    o.chunk = random.between(1, 1500);
    if (seed % 3 == 0) o.speed = 0.5;
    o.step_ms = 30;

    Scheduler scheduler(trace, tree, o);
    Recorder recorder(trace, tree, o);
    recorder.scheduler = &scheduler;
    const Status status = scheduler.run(recorder);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message();
    Naive naive(trace, o);
    const std::vector<std::string> expected = naive.run();
    const auto where =
        std::mismatch(recorder.events.begin(), recorder.events.end(), expected.begin(), expected.end());
    ASSERT_TRUE(where.first == recorder.events.end() && where.second == expected.end())
        << "seed " << seed << " event " << where.first - recorder.events.begin() << ": '"
        << (where.first == recorder.events.end() ? "end" : *where.first) << "', expected '"
        << (where.second == expected.end() ? "end" : *where.second) << "'";
    const Counts& c = scheduler.counts();
    EXPECT_EQ(c.hit_tokens(), naive.hit_tokens);
    EXPECT_EQ(std::ssize(c.refused), naive.refused);
    EXPECT_EQ(c.dropped_blocks, naive.dropped);
    EXPECT_EQ(c.finished + naive.refused, std::ssize(trace.requests));
    EXPECT_EQ(c.prompt_tokens, c.hit_tokens() + c.computed_tokens);
    // Nothing is lost at the end: all pages are free or hold blocks that nobody uses.
    EXPECT_EQ(scheduler.cache().device().free_pages() + scheduler.cache().evictable_pages(), o.device_pages);
    evictions += c.evictions;
    fetches += c.fetches;
    shared += c.shared_blocks;
    promoted += c.promoted_blocks;
    refused += naive.refused;
    dropped += naive.dropped;
    idle += c.idle_steps;
    // The run that moves nothing counts the same.
    const Counts simulated = simulate(trace, tree, o);
    EXPECT_EQ(simulated.gathered_tokens, c.gathered_tokens);
    EXPECT_EQ(simulated.moved_tokens(), c.moved_tokens());
  }
  // The runs reach every rule.
  EXPECT_GT(evictions, 0);
  EXPECT_GT(fetches, 0);
  EXPECT_GT(shared, 0);
  EXPECT_GT(promoted, 0);
  EXPECT_GT(refused, 0);
  EXPECT_GT(dropped, 0);
  EXPECT_GT(idle, 0);
}

TEST(ReplayScheduler, AWholePromptInTheCacheComputesItsLastBlock) {
  Trace trace;
  for (int i = 0; i < 2; ++i) {
    Request r;
    r.input_length = 1024;
    r.output_length = 1;
    r.first_id = trace.hash_ids.size();
    trace.hash_ids.insert(trace.hash_ids.end(), {1, 2});
    trace.requests.push_back(r);
  }
  const PrefixTree tree(trace);
  SchedulerOptions o;
  o.device_pages = 1000;
  o.max_running = 1;
  const Counts c = simulate(trace, tree, o);
  EXPECT_EQ(c.hit_tokens(), 512);
  EXPECT_EQ(c.computed_tokens, 1024 + 512);
  EXPECT_EQ(c.shared_blocks, 1);
  EXPECT_EQ(c.generated_tokens, 2);
}

TEST(ReplayScheduler, SpeedWaitsForArrivals) {
  Trace trace = generate_trace(1, 40);
  const PrefixTree tree(trace);
  SchedulerOptions o;
  o.device_pages = 1 << 16;
  const Counts at_once = simulate(trace, tree, o);
  EXPECT_EQ(at_once.idle_steps, 0);
  o.speed = 1;
  o.step_ms = 1;
  const Counts timed = simulate(trace, tree, o);
  EXPECT_GE(timed.steps + timed.idle_steps, trace.requests.back().timestamp_ms);
  EXPECT_LT(timed.max_running, at_once.max_running);
}

// The facts of the published trace, from the replay's own cache.
class ReplayRealTrace : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = real_trace_path();
    if (path.empty())
      GTEST_SKIP() << "no ../shared/data/mooncake_conversation_trace.jsonl beside the checkout";
    Result<Trace> read = read_trace(path, -1);
    ASSERT_TRUE(read.ok()) << read.status().message();
    trace_ = std::move(read).value();
    tree_ = std::make_unique<PrefixTree>(trace_);
  }
  double hit_percent(const SchedulerOptions& o) {
    counts_ = simulate(trace_, *tree_, o);
    return 100 * static_cast<double>(counts_.hit_tokens()) / static_cast<double>(counts_.prompt_tokens);
  }

  Trace trace_;
  std::unique_ptr<PrefixTree> tree_;
  Counts counts_;
};

TEST_F(ReplayRealTrace, HitRatesOfAPlainLru) {
  EXPECT_EQ(trace_.requests.size(), 12031U);
  SchedulerOptions o;
  o.max_running = 1;
  for (const auto& [tokens, percent] : {std::pair{1 << 20, 5.7}, {1 << 22, 19.1}, {160 << 20, 37.3}}) {
    o.device_pages = tokens / o.page_tokens;
    EXPECT_NEAR(hit_percent(o), percent, 0.15) << tokens << " tokens";
    EXPECT_EQ(counts_.finished, 12031);
  }
}

TEST_F(ReplayRealTrace, TwoTiersAndSixtyFourRunning) {
  SchedulerOptions o;
  o.device_pages = (1 << 20) / o.page_tokens;
  o.host_pages = (1 << 22) / o.page_tokens;
  EXPECT_NEAR(hit_percent(o), 22.38, 0.01);
  EXPECT_EQ(counts_.finished, 12031);
  EXPECT_EQ(counts_.steps, 71457);
}

}  // namespace
}  // namespace kvferry::replay
