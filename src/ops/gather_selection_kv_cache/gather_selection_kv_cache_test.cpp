// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "harness/random.hpp"
#include "harness/testing.hpp"
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_cases.hpp"
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_oracle.hpp"
#include "ops/gather_selection_kv_cache/selection_contract.hpp"

namespace kvferry::harness {
namespace {

using Ints = std::vector<std::int32_t>;
using Bytes = std::vector<std::uint8_t>;

std::byte* bytes(auto& vector) {
  return reinterpret_cast<std::byte*>(vector.data());
}

// One sequence of 1-byte tokens 100, 101, ...; pages of 4 blocks, in reverse order in both caches.
struct Hand {
  Hand(std::int64_t k, std::int64_t block) : n(k), bs(block) {
    status.assign(to_size(k + 1), -1);
    topk.resize(to_size(k));
    const std::int64_t page = 4 * bs;
    for (std::int64_t t = 0; t < 8 * page; ++t)
      full.push_back(static_cast<std::uint8_t>(100 + (7 - t / page) * page + t % page));
    for (std::int32_t i = 7; i >= 0; --i) table.push_back(i);
    selection.assign(full.size(), 7);
  }

  // One step; the tokens that the selection holds afterwards, up to its length and one more.
  std::vector<int> step(std::int32_t kv, Ints ids, std::int32_t q = 1) {
    ids.resize(to_size(n), -1);
    topk = ids;
    SelectionOracle oracle;
    const std::int64_t page = 4 * bs;
    oracle.layers = {{{bytes(selection), 1, {8, page, 1}, {page, 1, 1}},
                      {bytes(full), 1, {8, page, 1}, {page, 1, 1}},
                      {},
                      {}}};
    oracle.selection_table = oracle.full_table = {bytes(table), 4, {1, 8}, {8, 1}};
    oracle.status = {bytes(status), 4, {1, 1, 1, n + 1}, {1, 1, 1, 1}};
    oracle.topk = {bytes(topk), 4, {1, 1, n}, {n, n, 1}};
    oracle.kv_lens = {reinterpret_cast<std::byte*>(&kv), 4, {1}, {1}};
    oracle.q_lens = Array{reinterpret_cast<std::byte*>(&q), 4, {1}, {1}};
    oracle.out = {bytes(out), 4, {2}, {1}};
    oracle.counters = Array{bytes(counters), 4, {1, 3}, {3, 1}};
    oracle.fetch_counts = Array{reinterpret_cast<std::byte*>(&fetches), 4, {1}, {1}};
    oracle.block_size = bs;
    oracle.reject = reject;
    oracle.run();
    record = oracle.record;
    refusal = oracle.refusal;
    std::vector<int> held;
    for (std::int64_t t = 0; t <= out[0]; ++t)
      held.push_back(selection[to_size((7 - t / page) * page + t % page)]);
    return held;
  }

  std::int64_t n;
  std::int64_t bs;
  bool reject = false;
  Ints status, topk, table, out = {-9, -9}, counters = {-9, -9, -9};
  std::int32_t fetches = -9;
  Bytes full, selection;
  ExpectedRecord record;
  std::vector<std::string> refusal;
};

TEST(GatherSelectionKvCacheOracle, Selects) {
  Hand hand(4, 1);
  EXPECT_EQ(hand.step(10, {7, 2, 9, 0}), (std::vector<int>{107, 102, 109, 100, 7}));
  EXPECT_EQ(hand.status, (Ints{7, 2, 9, 0, 4}));
  EXPECT_EQ(hand.out, (Ints{4, 0}));
  EXPECT_EQ(hand.counters, (Ints{0, 4, 0}));
  EXPECT_EQ(hand.fetches, 4);
  // 7 and 9 are too large now, 2 is the newest token and may have been a draft; 0 moves out of slot 3.
  EXPECT_EQ(hand.step(3, {7, 2, 9, 0}), (std::vector<int>{102, 100, 109}));
  EXPECT_EQ(hand.status, (Ints{2, 0, -1, -1, 2}));
  EXPECT_EQ(hand.counters, (Ints{1, 1, 1}));
  EXPECT_EQ(hand.step(10, {5, -1, 3, 2}), (std::vector<int>{105, 100}));
  EXPECT_EQ(hand.step(10, {5, 5, 3}), (std::vector<int>{105, 103, 109}));
  EXPECT_EQ(hand.counters, (Ints{1, 1, 0}));
  EXPECT_EQ(hand.step(10, {-1}), (std::vector<int>{105}));
  EXPECT_EQ(hand.status, (Ints{-1, -1, -1, -1, 0}));
  EXPECT_EQ(hand.step(0, {1}), (std::vector<int>{105}));  // inactive
  EXPECT_EQ(hand.out, (Ints{0, 0}));
}

TEST(GatherSelectionKvCacheOracle, PartialBlocks) {
  Hand hand(4, 4);
  EXPECT_EQ(hand.step(10, {2, 0}), (std::vector<int>{100, 101, 102, 103, 108, 109, 7}));
  EXPECT_EQ(hand.status, (Ints{0, 2, -1, -1, 6}));
  hand.step(11, {2, 0});
  EXPECT_EQ(hand.out[0], 7);
  EXPECT_EQ(hand.counters, (Ints{1, 1, 0}));
  hand.step(12, {2, 0});  // full now, but it was cached as a part
  EXPECT_EQ(hand.out[0], 8);
  EXPECT_EQ(hand.counters, (Ints{1, 1, 0}));
  hand.step(13, {3, 2, 0});
  EXPECT_EQ(hand.status, (Ints{0, 2, 3, -1, 9}));
  EXPECT_EQ(hand.counters, (Ints{2, 1, 0}));

  Hand back(4, 4);
  back.step(12, {2, 0});
  EXPECT_EQ(back.status, (Ints{2, 0, -1, -1, 8}));
  back.step(10, {2, 0});
  EXPECT_EQ(back.status, (Ints{0, 2, -1, -1, 6}));
  EXPECT_EQ(back.counters, (Ints{1, 1, 1}));

  Hand pushed(4, 4);
  pushed.step(16, {0, 1, 2, 3});
  EXPECT_EQ(pushed.step(17, {4, 3, 1, 0}),
            (std::vector<int>{100, 101, 102, 103, 104, 105, 106, 107, 112, 113, 114, 115, 116, 113}));
  EXPECT_EQ(pushed.status, (Ints{0, 1, 3, 4, 13}));
  EXPECT_EQ(pushed.counters, (Ints{3, 1, 1}));
}

TEST(GatherSelectionKvCacheOracle, CompactsAndIgnoresGarbage) {
  Hand hand(8, 1);
  hand.step(30, {0, 1, 2, 3, 4, 5, 6, 7});
  hand.full.assign(hand.full.size(), 1);  // nothing is read
  EXPECT_EQ(hand.step(30, {6, 5, 7}), (std::vector<int>{106, 105, 107, 103}));
  EXPECT_EQ(hand.counters, (Ints{3, 0, 3}));
  hand.status = {6, 5, 5, 7, -3, 9, 9, 9, 3};  // 5 twice, 7 behind the length
  EXPECT_EQ(hand.step(30, {7, 5}), (std::vector<int>{1, 105, 107}));
  EXPECT_EQ(hand.counters, (Ints{1, 1, 0}));
  hand.status[8] = -1;
  hand.step(30, {7, 5});
  EXPECT_EQ(hand.counters, (Ints{0, 2, 0}));
}

TEST(GatherSelectionKvCacheOracle, BadEntries) {
  Hand hand(4, 1);
  hand.table[1] = 8;  // of both caches: tokens 4 to 7, slots 4 to 7
  EXPECT_EQ(hand.step(40, {6, 33, 1}), (std::vector<int>{0, 0, 101, 7}));
  EXPECT_EQ(hand.status, (Ints{-1, -1, 1, -1, 3}));
  EXPECT_EQ(hand.counters, (Ints{0, 3, 0}));
  EXPECT_EQ(hand.record.bad, 2U);
  EXPECT_EQ(hand.record.column, 0);
  EXPECT_EQ(hand.record.id, 6);
  EXPECT_EQ(hand.record.which, kBadSource);
  hand.step(40, {33, 6});
  EXPECT_EQ(hand.record.which, kBadColumn);
  const Ints before = hand.status;
  hand.reject = true;
  hand.step(40, {1, 6});
  EXPECT_TRUE(std::find(hand.refusal.begin(), hand.refusal.end(), "full_kv_block_table") !=
              hand.refusal.end());
  EXPECT_EQ(hand.status, before);
  hand.step(40, {1, 0}, 2);
  EXPECT_EQ(hand.refusal, (std::vector<std::string>{"full_q_actual_seq", "0", "2", "1"}));
}

TEST_P(RegisteredCaseTest, Selection) {
  EXPECT_GT(check_cases(GetParam().name), 0);
}
INSTANTIATE_TEST_SUITE_P(, RegisteredCaseTest, registered(gather_selection_kv_cache_info(), false),
                         test_name);
TEST_P(RegisteredCaseLong, Selection) {
  EXPECT_GT(check_cases(GetParam().name), 0);
}
INSTANTIATE_TEST_SUITE_P(, RegisteredCaseLong, registered(gather_selection_kv_cache_info(), true), test_name);

TEST(GatherSelectionKvCache, EveryRuleOfPlan) {
  for (const SelectionBreaker& rule : selection_breakers()) {
    for (const std::string& form : split(rule.forms, ' ')) {
      check_cases(
          "gather_selection_kv_cache:b=2,s=2,k=6,bs=2,sblk=4,fblk=6,kv=9;14,srow=3;0;2;1,snb=12,form=" +
          form + ",policy={default|reject},break=" + rule.name);
    }
  }
}

TEST(GatherSelectionKvCache, Random) {
  check_random_cases(gather_selection_kv_cache_info(), 1, random_cases(3000));
}
TEST(GatherSelectionKvCacheLong, Random) {
  check_random_cases(gather_selection_kv_cache_info(), 1'000'000, random_cases(50'000));
}

// Calls into the library on a world.

enum class How { kRun, kScheduleAndCopy, kCall };

GatherSelectionKvCacheArgs args_of(SelectionWorld& w, const Ints& q, QLenMode mode, bool tnd,
                                   bool with_status_row) {
  const std::int64_t states = static_cast<std::int64_t>(w.status.size()) / (w.k + 1);
  const std::int64_t table_rows = static_cast<std::int64_t>(w.out.size());
  const auto cache = [](Bytes& memory, std::int64_t page, std::int64_t row) {
    return contiguous(memory.data(), DType::kUInt8,
                      {static_cast<std::int64_t>(memory.size()) / (page * row), page, row});
  };
  GatherSelectionKvCacheArgs args;
  args.selection_kv_cache = cache(w.selection_kv, w.selection_page, w.kv_bytes);
  args.full_kv_cache = cache(w.full_kv, w.full_page, w.kv_bytes);
  if (w.rope_bytes > 0) {
    args.selection_k_rope = cache(w.selection_rope, w.selection_page, w.rope_bytes);
    args.full_k_rope = cache(w.full_rope, w.full_page, w.rope_bytes);
  }
  args.selection_kv_block_table =
      contiguous(w.selection_table.data(), DType::kInt32, {table_rows, w.selection_columns});
  if (tnd) {
    args.selection_kv_block_status = contiguous(w.status.data(), DType::kInt32, {states, 1, w.k + 1});
    args.selection_topk_indices = contiguous(w.topk.data(), DType::kInt32, {w.rows(), 1, w.k});
  } else {
    const std::int64_t s = with_status_row ? 1 : w.rows_per_batch;
    args.selection_kv_block_status = contiguous(w.status.data(), DType::kInt32, {states / s, s, 1, w.k + 1});
    args.selection_topk_indices =
        contiguous(w.topk.data(), DType::kInt32, {w.batches, w.rows_per_batch, 1, w.k});
  }
  args.full_kv_block_table = contiguous(w.full_table.data(), DType::kInt32, {w.batches, w.full_columns});
  args.full_kv_actual_seq = contiguous(w.kv.data(), DType::kInt32, {w.batches});
  if (mode != QLenMode::kAllRows) args.full_q_actual_seq = contiguous(q.data(), DType::kInt32, {w.batches});
  args.selection_kv_actual_seq = contiguous(w.out.data(), DType::kInt32, {table_rows});
  if (with_status_row) args.status_row = contiguous(w.status_row.data(), DType::kInt32, {w.rows()});
  args.counters = contiguous(w.counters.data(), DType::kInt32, {w.rows(), 3});
  args.fetch_counts = contiguous(w.fetch_counts.data(), DType::kInt32, {w.batches});
  args.selection_topk_block_size = w.block;
  args.q_len_mode = mode;
  return args;
}

Status call(const GatherSelectionKvCacheArgs& args, How how, const Context& context) {
  Stream* const stream = context.options().stream;
  if (how == How::kCall) {
    const Status status = gather_selection_kv_cache(args, context);
    return status.ok() && stream != nullptr ? stream->wait() : status;
  }
  const Result<Plan> planned = plan(args, context);
  if (!planned.ok()) return planned.status();
  Bytes workspace(to_size(planned->workspace_bytes()), 0xa5);
  GatherSelectionKvCacheBuffers pointers = buffers(args);
  pointers.workspace = {workspace.data(), planned->workspace_bytes()};
  Status status;
  if (how == How::kRun) {
    status = run(planned.value(), pointers, context);
  } else {
    status = schedule(planned.value(), pointers, context);
    if (status.ok()) status = copy(planned.value(), pointers, context);
  }
  const Status waited = stream != nullptr ? stream->wait() : Status();
  return status.ok() ? waited : status;
}

// Every implementation that runs here, by 1, 2 and 3 threads, with and without a stream.
class Contexts {
 public:
  Contexts() {
    for (const std::string& name : gather_selection_kv_cache_info().implementations()) {
      for (const int threads : {1, 2, 3}) {
        for (Stream* stream : {static_cast<Stream*>(nullptr), &stream_}) {
          ContextOptions options;
          options.implementation = name;
          options.threads = threads;
          options.stream = stream;
          contexts_.emplace_back(options);
        }
      }
    }
  }
  const std::vector<Context>& all() const { return contexts_; }

 private:
  Stream stream_;  // before the contexts that use it
  std::vector<Context> contexts_;
};

// Sequences that grow, fall back, end and begin, and what a caller must do for them: one world in which the
// library takes one step after the other.
class Chain {
 public:
  struct Shape {
    bool many_ids = false;
    bool blocks = false;
    bool rolls_back = false;
  };

  Chain(std::uint64_t seed, const Shape& shape) : random_(seed), rolls_back_(shape.rolls_back) {
    SelectionWorld& w = world_;
    if (shape.many_ids) {
      w.batches = random_.between(1, 2);
      w.rows_per_batch = random_.between(1, 2);
      w.block = shape.blocks ? 2 : 1;
      w.k = random_.pick(std::vector<std::int64_t>{512, 1000, 2048});
    } else {
      w.batches = random_.between(1, 4);
      w.rows_per_batch = random_.one_in(5) ? random_.between(5, 16) : random_.between(1, 4);
      w.block = shape.blocks ? random_.pick(std::vector<std::int64_t>{2, 3, 4, 8, 16, 64}) : 1;
      w.k = random_.between(1, std::clamp<std::int64_t>(6000 / (w.rows() * w.block), 1, 60));
    }
    w.selection_page = w.block * random_.between(1, 6);
    w.full_page = w.block * random_.between(1, 6);
    w.kv_bytes = random_.between(1, 24);
    w.rope_bytes = random_.one_in(3) ? 0 : random_.between(1, 9);
    capacity_ = w.k * w.block * 3 / 2 + 8 * w.rows_per_batch + 3 * w.block;
    overlap_ = 10 * random_.between(0, 10);
    with_status_row_ = random_.one_in(3);

    const std::int64_t states = w.rows() + (with_status_row_ ? random_.between(0, 3) : 0);
    const std::int64_t table_rows = states + random_.between(0, 2);
    w.selection_columns = (w.k * w.block - 1) / w.selection_page + 1 + random_.between(0, 1);
    w.full_columns = (capacity_ - 1) / w.full_page + 1;
    const std::int64_t selection_pages = table_rows * w.selection_columns + 1;
    const std::int64_t full_pages = w.batches * w.full_columns + 1;
    w.selection_table = shuffled(selection_pages, table_rows * w.selection_columns);
    w.full_table = shuffled(full_pages, w.batches * w.full_columns);
    w.selection_kv = noise(selection_pages * w.selection_page * w.kv_bytes);
    w.selection_rope = noise(selection_pages * w.selection_page * w.rope_bytes);
    w.full_kv = noise(full_pages * w.full_page * w.kv_bytes);
    w.full_rope = noise(full_pages * w.full_page * w.rope_bytes);
    w.status.assign(to_size(states * (w.k + 1)), -1);
    w.out.assign(to_size(table_rows), -9);
    w.counters.assign(to_size(3 * w.rows()), -9);
    w.fetch_counts.assign(to_size(w.batches), -9);
    w.topk.assign(to_size(w.rows() * w.k), -1);
    w.status_row.resize(to_size(w.rows()));
    std::iota(w.status_row.begin(), w.status_row.end(), 0);
    for (std::int64_t b = 0; b < w.batches; ++b) {
      w.kv.push_back(static_cast<std::int32_t>(random_.between(0, capacity_ / 2)));
      w.q.push_back(0);
      sequence_.push_back(++sequences_);
      last_write_.emplace_back(to_size(capacity_), 0);
    }
    lists_.resize(to_size(w.rows()));
    owner_.assign(to_size(states), 0);
    last_run_.assign(to_size(states), 0);
  }

  // One step of every row; empty, or what is wrong.
  std::string step(const Contexts& contexts) {
    ++now_;
    if (random_.one_in(6)) trade_places();
    for (std::int64_t b = 0; b < world_.batches; ++b) advance(b);
    if (with_status_row_ && random_.one_in(3)) map_rows();
    for (std::int64_t r = 0; r < world_.rows(); ++r) select(r);
    if (random_.one_in(5)) share_lists();
    for (std::int64_t r = 0; r < world_.rows(); ++r) write_list(r);
    reset_where_needed();

    Ints q(to_size(world_.batches));
    std::transform(world_.q.begin(), world_.q.end(), q.begin(),
                   [](std::int64_t n) { return static_cast<std::int32_t>(n); });
    QLenMode mode = random_.one_in(2) ? QLenMode::kCounts : QLenMode::kPrefixSum;
    const auto is_s = [&](std::int64_t n) { return n == world_.rows_per_batch; };
    if (std::all_of(world_.q.begin(), world_.q.end(), is_s) && random_.one_in(2)) mode = QLenMode::kAllRows;
    if (mode == QLenMode::kPrefixSum) std::partial_sum(q.begin(), q.end(), q.begin());

    const SelectionWorld before = world_;
    const GatherSelectionKvCacheArgs args = args_of(world_, q, mode, random_.one_in(2), with_status_row_);
    const Context& context = random_.pick(contexts.all());
    const How how = random_.pick(std::vector<How>{How::kRun, How::kScheduleAndCopy, How::kCall});
    const Status status = call(args, how, context);
    if (status.code() == StatusCode::kUnavailable) return {};  // the implementation: nothing happened
    if (!status.ok()) return status.message();
    for (std::int64_t r = 0; r < world_.rows(); ++r) {
      if (!active(r)) continue;
      owner_[state(r)] = sequence_[batch_of(r)];
      last_run_[state(r)] = now_;
    }
    return SelectionContract(before, world_).check();
  }

  std::int64_t k() const { return world_.k; }
  std::int64_t block() const { return world_.block; }
  bool rolled_back() const { return rolled_back_; }

 private:
  Ints shuffled(std::int64_t range, std::int64_t n) {
    Ints numbers(to_size(range));
    std::iota(numbers.begin(), numbers.end(), 0);
    random_.shuffle(numbers);
    numbers.resize(to_size(n));
    return numbers;
  }
  Bytes noise(std::int64_t n) {
    Bytes made(to_size(n));
    fill_random(bytes(made), n, random_.next());
    return made;
  }
  std::size_t batch_of(std::int64_t r) const { return to_size(r / world_.rows_per_batch); }
  std::size_t state(std::int64_t r) const { return to_size(world_.status_row[to_size(r)]); }
  std::int64_t visible(std::int64_t r) const {
    const std::size_t b = batch_of(r);
    const std::int64_t s = r % world_.rows_per_batch;
    return s < world_.q[b] ? world_.kv[b] - (world_.q[b] - 1 - s) : world_.kv[b];
  }
  bool active(std::int64_t r) const { return world_.status_row[to_size(r)] >= 0 && visible(r) > 0; }

  void write(std::int64_t b, std::int64_t begin, std::int64_t end) {
    SelectionWorld& w = world_;
    for (std::int64_t t = std::max<std::int64_t>(begin, 0); t < end; ++t) {
      const std::int64_t page = w.full_table[to_size(b * w.full_columns + t / w.full_page)];
      const std::int64_t token = page * w.full_page + t % w.full_page;
      fill_random(bytes(w.full_kv) + token * w.kv_bytes, w.kv_bytes, random_.next());
      fill_random(bytes(w.full_rope) + token * w.rope_bytes, w.rope_bytes, random_.next());
      last_write_[to_size(b)][to_size(t)] = now_;
    }
  }

  // The length and the query tokens of the next step; the new positions and the drafts get new bytes.
  void advance(std::int64_t b) {
    std::int32_t& kv = world_.kv[to_size(b)];
    const std::int64_t s = world_.rows_per_batch;
    const std::int64_t old = kv;
    std::int64_t next = old + random_.between(0, s);
    bool all_new = false;
    if (random_.one_in(15)) {  // another sequence takes the place
      sequence_[to_size(b)] = ++sequences_;
      next = random_.between(0, capacity_);
      all_new = true;
    } else if (random_.one_in(15) || next > capacity_) {
      next =
          rolls_back_ ? random_.between(0, capacity_) : std::min(capacity_, next + random_.between(0, 3 * s));
    } else if (rolls_back_ && random_.one_in(3)) {
      next = std::max<std::int64_t>(old - random_.between(1, s + world_.block), 0);
    }
    rolled_back_ = rolled_back_ || (next < old && !all_new);
    kv = static_cast<std::int32_t>(next);
    std::int64_t& q = world_.q[to_size(b)];
    q = random_.one_in(4)    ? random_.between(0, s)
        : random_.one_in(12) ? random_.pick(std::vector<std::int64_t>{-3, s + 2})
                             : s;
    write(b, all_new ? 0 : std::min(old, next - q), next);
  }

  // Rows or sequences change places with all that belongs to them.
  void trade_places() {
    SelectionWorld& w = world_;
    const auto swap_states = [&](std::int64_t a, std::int64_t c) {
      const auto swap_parts = [](Ints& ints, std::int64_t columns, std::int64_t x, std::int64_t y) {
        std::swap_ranges(ints.begin() + x * columns, ints.begin() + (x + 1) * columns,
                         ints.begin() + y * columns);
      };
      if (a == c) return;
      swap_parts(w.status, w.k + 1, a, c);
      swap_parts(w.selection_table, w.selection_columns, a, c);
      std::swap(owner_[to_size(a)], owner_[to_size(c)]);
      std::swap(last_run_[to_size(a)], last_run_[to_size(c)]);
    };
    const std::int64_t s = w.rows_per_batch;
    const std::int64_t b = random_.between(0, w.batches - 1);
    if (with_status_row_) {  // only the map
      std::swap(w.status_row[to_size(b * s)], w.status_row[to_size(b * s + random_.between(0, s - 1))]);
    } else if (random_.one_in(2)) {
      swap_states(b * s + random_.between(0, s - 1), b * s + random_.between(0, s - 1));
    } else {
      const std::int64_t c = random_.between(0, w.batches - 1);
      for (std::int64_t i = 0; i < s; ++i) {
        swap_states(b * s + i, c * s + i);
        std::swap(lists_[to_size(b * s + i)], lists_[to_size(c * s + i)]);
      }
      if (b != c) {
        std::swap_ranges(w.full_table.begin() + b * w.full_columns,
                         w.full_table.begin() + (b + 1) * w.full_columns,
                         w.full_table.begin() + c * w.full_columns);
      }
      std::swap(w.kv[to_size(b)], w.kv[to_size(c)]);
      std::swap(sequence_[to_size(b)], sequence_[to_size(c)]);
      std::swap(last_write_[to_size(b)], last_write_[to_size(c)]);
    }
  }

  void map_rows() {
    const auto states = static_cast<std::int64_t>(owner_.size());
    const Ints places = shuffled(states, states);
    std::copy_n(places.begin(), world_.rows(), world_.status_row.begin());
    if (random_.one_in(2)) world_.status_row[to_size(random_.between(0, world_.rows() - 1))] = -1;
  }

  // The next list of a row: some of the last one's ids, and others.
  void select(std::int64_t r) {
    const std::int64_t ids = std::max<std::int64_t>((visible(r) + world_.block - 1) / world_.block, 0);
    const std::int64_t n = random_.one_in(4) ? random_.between(0, world_.k) : world_.k;
    std::vector<std::int64_t> list;
    std::unordered_set<std::int64_t> seen;
    const auto take = [&](std::int64_t id) {
      if (id < ids && static_cast<std::int64_t>(list.size()) < n && seen.insert(id).second)
        list.push_back(id);
    };
    for (const std::int64_t id : lists_[to_size(r)]) {
      if (random_.between(1, 100) <= overlap_) take(id);
    }
    if (ids > 0 && random_.one_in(2)) take(ids - 1);
    for (std::int64_t i = 0; i < 2 * n && ids > 0; ++i) take(random_.between(0, ids - 1));
    random_.shuffle(list);
    lists_[to_size(r)] = std::move(list);
  }

  // Rows of one sequence that select the same, or each other's ids.
  void share_lists() {
    const std::int64_t s = world_.rows_per_batch;
    const std::int64_t b = random_.between(0, world_.batches - 1);
    const std::int64_t i = b * s + random_.between(0, s - 1);
    const std::int64_t j = b * s + random_.between(0, s - 1);
    if (random_.one_in(2)) {
      std::swap(lists_[to_size(i)], lists_[to_size(j)]);
    } else {
      for (std::int64_t r = b * s; r < (b + 1) * s; ++r) lists_[to_size(r)] = lists_[to_size(i)];
    }
  }

  // With repeats, ids that are too large, and something behind the end.
  void write_list(std::int64_t r) {
    const auto row = world_.topk.begin() + r * world_.k;
    const std::vector<std::int64_t>& list = lists_[to_size(r)];
    std::int64_t i = 0;
    const bool odd = random_.one_in(3);
    const auto put = [&](std::int64_t id) {
      if (i < world_.k) row[i++] = static_cast<std::int32_t>(id);
    };
    for (const std::int64_t id : list) {
      if (odd && random_.one_in(8)) put(random_.pick(list));
      if (odd && random_.one_in(8))
        put(random_.one_in(2) ? capacity_ : std::numeric_limits<std::int32_t>::max());
      put(id);
    }
    put(-random_.between(1, 9));
    while (i < world_.k) put(random_.between(-1, 9));
  }

  // What the header requires of a caller.
  void reset_where_needed() {
    SelectionWorld& w = world_;
    for (std::int64_t r = 0; r < w.rows(); ++r) {
      if (!active(r)) continue;
      const auto row = w.status.begin() + static_cast<std::int64_t>(state(r)) * (w.k + 1);
      if (owner_[state(r)] == sequence_[batch_of(r)] && !stale(r) && !random_.one_in(40)) continue;
      if (random_.one_in(2)) {
        std::fill(row, row + w.k + 1, -1);
      } else {
        row[w.k] = random_.one_in(2) ? 0 : -7;  // the ids stay
      }
    }
  }

  // True if the row holds bytes that were rewritten since, at positions that count as settled.
  bool stale(std::int64_t r) const {
    const SelectionWorld& w = world_;
    const auto row = w.status.begin() + static_cast<std::int64_t>(state(r)) * (w.k + 1);
    const std::int64_t settled = w.kv[batch_of(r)] - std::max<std::int64_t>(w.q[batch_of(r)], 0);
    const std::vector<std::int64_t>& writes = last_write_[batch_of(r)];
    for (std::int64_t p = 0; p < w.k && (p + 1) * w.block <= row[w.k]; ++p) {
      const std::int64_t begin = row[p] * w.block;
      if (row[p] < 0 || begin + w.block > settled) continue;
      const auto rewritten = [&](std::int64_t when) { return when > last_run_[state(r)]; };
      if (std::any_of(writes.begin() + begin, writes.begin() + begin + w.block, rewritten)) return true;
    }
    return false;
  }

  Random random_;
  SelectionWorld world_;
  bool rolls_back_;
  bool rolled_back_ = false;
  bool with_status_row_ = false;
  std::int64_t capacity_ = 0;  // tokens of a sequence
  std::int64_t overlap_ = 0;   // percent
  std::int64_t now_ = 0;
  std::int64_t sequences_ = 0;
  std::vector<std::int64_t> sequence_;                 // of each batch
  std::vector<std::vector<std::int64_t>> last_write_;  // step, of each batch and position
  std::vector<std::vector<std::int64_t>> lists_;       // of each row
  std::vector<std::int64_t> owner_, last_run_;         // of each row of status: sequence and step
};

void check_chains(std::uint64_t first, std::int64_t steps) {
  constexpr std::int64_t kStepsOfAChain = 25;
  const std::int64_t chains = std::max<std::int64_t>(steps / kStepsOfAChain, 8);
  const Contexts contexts;
  std::int64_t many_ids = 0;
  std::int64_t blocks = 0;
  std::int64_t rolled_back = 0;
  for (std::int64_t i = 0; i < chains; ++i) {
    Chain chain(first + static_cast<std::uint64_t>(i), {i % 8 == 0, i % 3 != 0, i % 2 == 0});
    for (std::int64_t step = 1; step <= kStepsOfAChain; ++step) {
      const std::string wrong = chain.step(contexts);
      ASSERT_EQ(wrong, "") << "chain " << first + static_cast<std::uint64_t>(i) << ", step " << step;
    }
    many_ids += chain.k() >= 512 ? 1 : 0;
    blocks += chain.block() > 1 ? 1 : 0;
    rolled_back += chain.rolled_back() ? 1 : 0;
  }
  EXPECT_GE(10 * many_ids, chains);
  EXPECT_GE(5 * blocks, chains);
  EXPECT_GE(5 * rolled_back, chains);
}

TEST(GatherSelectionKvCache, Chains) {
  check_chains(1, random_cases(3000));
}
TEST(GatherSelectionKvCacheLong, Chains) {
  check_chains(1'000'000, random_cases(100'000));
}

GatherSelectionKvCacheArgs args_of_two_queries(SelectionWorld& w) {
  static const Ints q = {2};  // outlives the views
  return args_of(w, q, QLenMode::kCounts, true, false);
}

// A world of one long sequence that two rows share, with a step behind it.
SelectionWorld warm_world(std::int64_t k, std::int64_t kv_bytes) {
  SelectionWorld w;
  w.rows_per_batch = 2;
  w.k = k;
  w.kv_bytes = kv_bytes;
  w.selection_page = w.full_page = 16;
  w.selection_columns = (k + 15) / 16;
  w.full_columns = 4 * w.selection_columns;
  w.selection_table.resize(to_size(2 * w.selection_columns));
  w.full_table.resize(to_size(w.full_columns));
  std::iota(w.selection_table.rbegin(), w.selection_table.rend(), 0);
  std::iota(w.full_table.rbegin(), w.full_table.rend(), 0);
  w.selection_kv.resize(to_size(2 * w.selection_columns * 16 * kv_bytes));
  w.full_kv.resize(to_size(w.full_columns * 16 * kv_bytes));
  fill_random(bytes(w.full_kv), static_cast<std::int64_t>(w.full_kv.size()), 5);
  w.kv = {static_cast<std::int32_t>(w.full_columns * 16)};
  w.q = {2};
  w.status.assign(to_size(2 * (k + 1)), -1);
  w.out = {0, 0};
  w.counters.resize(6);
  w.fetch_counts = {0};
  w.status_row = {0, 1};
  for (std::int64_t i = 0; i < 2 * k; ++i) w.topk.push_back(static_cast<std::int32_t>(i * 7 % (3 * k)));
  EXPECT_TRUE(call(args_of_two_queries(w), How::kCall, Context()).ok());
  for (std::int64_t i = 0; i < 2 * k; ++i) {  // of each row fewer, and some in common
    const std::int64_t id = i % k < k * 3 / 4 ? (i / k * k / 2 + i % k) * 5 % (3 * k) : -1;
    w.topk[to_size(i)] = static_cast<std::int32_t>(id);
  }
  return w;
}

TEST(SelectionContract, NoticesWhatIsWrong) {
  const SelectionWorld before = warm_world(40, 8);
  SelectionWorld right = before;
  ASSERT_TRUE(call(args_of_two_queries(right), How::kRun, Context()).ok());
  ASSERT_EQ(SelectionContract(before, right).check(), "");
  const auto wrong = [&](const char* what, auto&& spoil) {
    SelectionWorld spoiled = right;
    spoil(spoiled);
    EXPECT_NE(SelectionContract(before, spoiled).check(), "") << what;
  };
  const auto byte_of_slot = [&](const SelectionWorld& w, std::int64_t slot) {
    const std::int64_t page = w.selection_table[to_size(slot / 16)];
    return to_size((page * 16 + slot % 16) * w.kv_bytes);
  };
  wrong("length", [](SelectionWorld& w) { --w.status[40]; });
  wrong("output", [](SelectionWorld& w) { ++w.out[1]; });
  wrong("slots swapped", [&](SelectionWorld& w) {
    std::swap(w.status[0], w.status[1]);
    std::swap_ranges(w.selection_kv.begin() + static_cast<std::ptrdiff_t>(byte_of_slot(w, 0)),
                     w.selection_kv.begin() + static_cast<std::ptrdiff_t>(byte_of_slot(w, 1)),
                     w.selection_kv.begin() + static_cast<std::ptrdiff_t>(byte_of_slot(w, 1)));
  });
  wrong("id twice", [](SelectionWorld& w) { w.status[0] = w.status[1]; });
  wrong("id behind n", [](SelectionWorld& w) { w.status[39] = w.topk[0]; });
  wrong("byte of a slot", [&](SelectionWorld& w) { ++w.selection_kv[byte_of_slot(w, 3)]; });
  wrong("byte behind the length", [&](SelectionWorld& w) { ++w.selection_kv[byte_of_slot(w, 30)]; });
  wrong("hits", [](SelectionWorld& w) {
    ++w.counters[0];
    --w.counters[1];
  });
  wrong("moved", [](SelectionWorld& w) { ++w.counters[5]; });
  wrong("fetches", [](SelectionWorld& w) { ++w.fetch_counts[0]; });
  wrong("input", [](SelectionWorld& w) { ++w.full_kv[0]; });
}

TEST(GatherSelectionKvCache, SameInputsGiveTheSameStatus) {
  const SelectionWorld start = warm_world(1024, 600);
  std::optional<SelectionWorld> first;
  for (const int threads : {1, 2, 3}) {
    ContextOptions options;
    options.threads = threads;
    const Context context(options);
    for (int i = 0; i < (kThreadSanitizer ? 5 : 100); ++i) {
      SelectionWorld w = start;
      ASSERT_TRUE(call(args_of_two_queries(w), How::kRun, context).ok());
      if (!first) first = w;
      ASSERT_EQ(w.status, first->status) << threads;
      ASSERT_EQ(w.selection_kv, first->selection_kv) << threads;
      ASSERT_EQ(w.counters, first->counters) << threads;
      ASSERT_EQ(w.fetch_counts, first->fetch_counts) << threads;
    }
  }
  EXPECT_GT(first->counters[0], 0);
  EXPECT_GT(first->counters[2], 0);
  EXPECT_LT(first->fetch_counts[0], first->counters[1] + first->counters[4]);  // the rows share some
}

TEST(GatherSelectionKvCache, CopyNeedsASchedule) {
  SelectionWorld w = warm_world(40, 8);
  GatherSelectionKvCacheArgs args = args_of_two_queries(w);
  args.index_policy = IndexPolicy::kReject;
  const Context context;
  const Plan planned = plan(args, context).value();
  const Plan other = plan(args, context).value();
  GatherSelectionKvCacheBuffers pointers = buffers(args);
  const SelectionWorld before = w;
  const auto refuses = [&](const Plan& which, const char* why) {
    const Status status = copy(which, pointers, context);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << why;
    EXPECT_TRUE(contains_word(status.message(), "gather_selection_kv_cache")) << status.message();
    EXPECT_TRUE(contains_word(status.message(), "schedule")) << status.message();
    EXPECT_EQ(w.selection_kv, before.selection_kv) << why;
  };
  Bytes workspace(to_size(planned.workspace_bytes()));
  pointers.workspace = {workspace.data(), planned.workspace_bytes()};
  refuses(planned, "zero");
  fill_random(bytes(workspace), planned.workspace_bytes(), 3);
  refuses(planned, "garbage");
  const Status first = schedule(other, pointers, context);
  ASSERT_TRUE(first.ok()) << first.message();
  refuses(planned, "another plan's");

  // A refusal leaves everything, and the schedule before it is gone.
  w.status = before.status;
  ASSERT_TRUE(schedule(planned, pointers, context).ok());
  w.status = before.status;
  w.out = before.out;
  w.counters = before.counters;
  w.fetch_counts = before.fetch_counts;
  w.full_table.assign(w.full_table.size(), -1);
  EXPECT_EQ(schedule(planned, pointers, context).code(), StatusCode::kIndex);
  EXPECT_EQ(w.status, before.status);
  EXPECT_EQ(w.out, before.out);
  EXPECT_EQ(w.counters, before.counters);
  EXPECT_EQ(w.fetch_counts, before.fetch_counts);
  refuses(planned, "refused");

  // Without it, copy() may come again, and after run() too.
  w = before;
  ASSERT_TRUE(run(planned, pointers, context).ok());
  const Bytes right = w.selection_kv;
  EXPECT_NE(right, before.selection_kv);
  w.selection_kv = before.selection_kv;
  ASSERT_TRUE(copy(planned, pointers, context).ok());
  EXPECT_EQ(w.selection_kv, right);
}

// Runs in a process of its own. 0: the selection out of the file equals that out of memory.
int select_from_a_file(const std::string& path, std::int64_t pages) {
  constexpr std::int64_t kTokens = 16;
  constexpr std::int64_t kBytes = 1024;
  constexpr std::int64_t kPageBytes = kTokens * kBytes;
  constexpr std::int64_t kColumns = 12;
  const std::int64_t file_bytes = pages * kPageBytes;
  const rlimit limit = {std::size_t{1} << 30, std::size_t{1} << 30};
  if (setrlimit(RLIMIT_DATA, &limit) != 0) return 1;
  if (void* all = std::malloc(to_size(file_bytes))) {
    std::free(all);
    return 2;
  }
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0 || unlink(path.c_str()) != 0 || ftruncate(file, file_bytes) != 0) return 3;

  SelectionWorld w = warm_world(64, kBytes);  // brings everything but the full cache
  w.full_columns = kColumns;
  w.kv = {kColumns * kTokens};
  w.full_kv.resize(kColumns * kPageBytes);
  w.full_table.resize(kColumns);
  std::iota(w.full_table.begin(), w.full_table.end(), 0);
  SelectionWorld from_file = w;
  for (std::int64_t i = 0; i < kColumns; ++i) {
    const std::int64_t page = i % 2 == 0 ? pages - 1 - i : i * pages / kColumns;
    from_file.full_table[to_size(i)] = static_cast<std::int32_t>(page);
    const ssize_t written = pwrite(file, w.full_kv.data() + i * kPageBytes, kPageBytes, page * kPageBytes);
    if (written != kPageBytes) return 4;
  }
  void* const mapped = mmap(nullptr, to_size(file_bytes), PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return 5;

  ContextOptions options;
  options.threads = 2;
  const Context context(options);
  if (!call(args_of_two_queries(w), How::kRun, context).ok()) return 6;
  GatherSelectionKvCacheArgs args = args_of_two_queries(from_file);
  args.full_kv_cache = contiguous(mapped, DType::kUInt8, {pages, kTokens, kBytes});
  if (!call(args, How::kRun, context).ok()) return 7;
  if (w.counters[1] == 0 || w.counters != from_file.counters) return 8;
  return w.selection_kv == from_file.selection_kv && w.status == from_file.status ? 0 : 9;
}

TEST(GatherSelectionKvCache, FullCacheInAMappedFile) {
  if (kThreadSanitizer || kAddressSanitizer) GTEST_SKIP() << "a sanitizer's own memory is beyond any limit";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the other style forks where threads run
  const std::string path = fmt::format("{}selection_{}", testing::TempDir(), getpid());
  EXPECT_EXIT(std::_Exit(select_from_a_file(path, 3 << 16)), testing::ExitedWithCode(0), "");
}

TEST(GatherSelectionKvCache, EveryImplementationRuns) {
  check_that_all_ran(gather_selection_kv_cache_info());
}

}  // namespace
}  // namespace kvferry::harness
