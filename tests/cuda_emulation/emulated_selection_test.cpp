// SPDX-License-Identifier: Apache-2.0
//
// gather_selection_kv_cache, step after step on the same state: this CPU and the CUDA backend in the
// emulation, which must agree on every byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "harness/instance.hpp"
#include "harness/random.hpp"
#include "kvferry/ops/gather_selection_kv_cache.hpp"
#include "tests/cuda_emulation/queue.hpp"

namespace kvferry::emulation {
namespace {

using harness::Random;
using harness::to_size;
using Ints = std::vector<std::int32_t>;

struct Sizes {
  std::int64_t batches = 1, rows_per_batch = 1, k = 1, block = 1;
  std::int64_t selection_page = 1, full_page = 1, kv_bytes = 1, rope_bytes = 0;
  std::int64_t states = 0;  // of a pool; 0: each row has its own
  std::int64_t blocks = 1;  // of a sequence, at most

  std::int64_t rows() const { return batches * rows_per_batch; }
  std::int64_t status_rows() const { return states > 0 ? states : rows(); }
  std::int64_t selection_columns() const { return (k * block - 1) / selection_page + 1; }
  std::int64_t full_columns() const { return (blocks * block - 1) / full_page + 1; }
  std::int64_t selection_pages() const { return (status_rows() + 1) * selection_columns(); }
  std::int64_t full_pages() const { return batches * full_columns() + 1; }
};

enum Name : std::size_t {
  kSelectionKv,
  kSelectionRope,
  kTable,
  kStatus,
  kTopK,
  kFullKv,
  kFullRope,
  kFullTable,
  kKv,
  kQ,
  kOut,
  kStatusRow,
  kCounters,
  kFetchCounts,
  kNames
};
constexpr const char* kTexts[kNames] = {"selection_kv_cache",
                                        "selection_k_rope",
                                        "selection_kv_block_table",
                                        "selection_kv_block_status",
                                        "selection_topk_indices",
                                        "full_kv_cache",
                                        "full_k_rope",
                                        "full_kv_block_table",
                                        "full_kv_actual_seq",
                                        "full_q_actual_seq",
                                        "selection_kv_actual_seq",
                                        "status_row",
                                        "counters",
                                        "fetch_counts"};

// All tensors twice: what the CPU works on, and what the device does.
class World {
 public:
  World(const Sizes& sizes, Random& random) : s_(sizes) {
    const std::int64_t words[kNames] = {0,
                                        0,
                                        (s_.status_rows() + 1) * s_.selection_columns(),
                                        s_.status_rows() * (s_.k + 1),
                                        s_.rows() * s_.k,
                                        0,
                                        0,
                                        s_.batches * s_.full_columns(),
                                        s_.batches,
                                        s_.batches,
                                        s_.status_rows() + 1,
                                        s_.rows(),
                                        3 * s_.rows(),
                                        s_.batches};
    for (std::size_t i = 0; i < kNames; ++i) host_[i].resize(to_size(4 * words[i]));
    host_[kSelectionKv].resize(to_size(s_.selection_pages() * s_.selection_page * s_.kv_bytes));
    host_[kSelectionRope].resize(to_size(s_.selection_pages() * s_.selection_page * s_.rope_bytes));
    host_[kFullKv].resize(to_size(s_.full_pages() * s_.full_page * s_.kv_bytes));
    host_[kFullRope].resize(to_size(s_.full_pages() * s_.full_page * s_.rope_bytes));
    for (const Name name : {kSelectionKv, kSelectionRope, kFullKv, kFullRope, kOut, kCounters, kFetchCounts})
      harness::fill_random(host_[name].data(), static_cast<std::int64_t>(host_[name].size()), random.next());
    std::fill(host_[kStatus].begin(), host_[kStatus].end(), std::byte{0xff});
    number(kTable, s_.selection_pages(), random);
    number(kFullTable, s_.full_pages(), random);
    number(kStatusRow, s_.status_rows(), random);
    for (std::size_t i = 0; i < kNames; ++i)
      device_[i] = harness::Memory(static_cast<std::int64_t>(host_[i].size()), harness::Placement::kGuarded,
                                   4 * random.between(0, 3));
  }

  const Sizes& sizes() const { return s_; }
  std::int32_t* ints(Name name) { return reinterpret_cast<std::int32_t*>(host_[name].data()); }

  // Pairs of arguments: of the CPU, and of the device; the full caches in pinned memory if asked.
  GatherSelectionKvCacheArgs args(bool device, bool pinned, QLenMode mode, IndexPolicy policy) {
    const auto view = [&](Name name, DType dtype, std::initializer_list<std::int64_t> shape) {
      std::byte* const data = device ? device_[name].data() : host_[name].data();
      TensorView made = contiguous(data, dtype, shape);
      const bool host = pinned && is_full(name);
      if (device) made.device = {host ? DeviceType::kCudaHost : DeviceType::kCuda, 0};
      return made;
    };
    const DType ints = DType::kInt32, bytes = DType::kUInt8;
    GatherSelectionKvCacheArgs a;
    a.selection_kv_cache = view(kSelectionKv, bytes, {s_.selection_pages(), s_.selection_page, s_.kv_bytes});
    a.full_kv_cache = view(kFullKv, bytes, {s_.full_pages(), s_.full_page, s_.kv_bytes});
    if (s_.rope_bytes > 0) {
      a.selection_k_rope =
          view(kSelectionRope, bytes, {s_.selection_pages(), s_.selection_page, s_.rope_bytes});
      a.full_k_rope = view(kFullRope, bytes, {s_.full_pages(), s_.full_page, s_.rope_bytes});
    }
    a.selection_kv_block_table = view(kTable, ints, {s_.status_rows() + 1, s_.selection_columns()});
    a.selection_kv_block_status = view(kStatus, ints, {s_.status_rows(), 1, s_.k + 1});
    a.selection_topk_indices = view(kTopK, ints, {s_.rows(), 1, s_.k});
    a.full_kv_block_table = view(kFullTable, ints, {s_.batches, s_.full_columns()});
    a.full_kv_actual_seq = view(kKv, ints, {s_.batches});
    a.full_q_actual_seq = view(kQ, ints, {s_.batches});
    a.selection_kv_actual_seq = view(kOut, ints, {s_.status_rows() + 1});
    if (s_.states > 0) a.status_row = view(kStatusRow, ints, {s_.rows()});
    a.counters = view(kCounters, ints, {s_.rows(), 3});
    a.fetch_counts = view(kFetchCounts, ints, {s_.batches});
    a.selection_topk_block_size = s_.block;
    a.q_len_mode = mode;
    a.index_policy = policy;
    return a;
  }

  // The memory of those arguments is the device's until the result dies.
  std::vector<std::shared_ptr<void>> lend(const std::shared_ptr<EmulatedQueue>& queue, bool pinned) const {
    std::vector<std::shared_ptr<void>> lent;
    for (std::size_t i = 0; i < kNames; ++i) {
      if (!host_[i].empty())
        lent.push_back(
            emulation::lend(queue, device_[i].data(), host_[i].size(), {.pinned = pinned && is_full(i)}));
    }
    return lent;
  }

  void to_device() {
    for (std::size_t i = 0; i < kNames; ++i) std::copy(host_[i].begin(), host_[i].end(), device_[i].data());
  }
  // The first difference, empty for none.
  std::string difference() const {
    for (std::size_t i = 0; i < kNames; ++i) {
      if (device_[i].damage()) return std::string(kTexts[i]) + ": a write outside";
      const auto at = std::mismatch(host_[i].begin(), host_[i].end(), device_[i].data());
      if (at.first != host_[i].end())
        return std::string(kTexts[i]) + ": byte " + std::to_string(at.first - host_[i].begin());
    }
    return {};
  }

 private:
  static bool is_full(std::size_t name) { return name == kFullKv || name == kFullRope; }
  // Distinct numbers below `range`.
  void number(Name name, std::int64_t range, Random& random) {
    Ints numbers(to_size(range));
    std::iota(numbers.begin(), numbers.end(), 0);
    random.shuffle(numbers);
    std::copy_n(numbers.begin(), host_[name].size() / 4, ints(name));
  }

  Sizes s_;
  std::array<std::vector<std::byte>, kNames> host_;
  std::array<harness::Memory, kNames> device_;
};

// Inputs of the next step: sequences that grow and fall back, lists that mostly stay, entries that are bad.
class Steps {
 public:
  Steps(World& world, std::uint64_t seed) : w_(world), s_(world.sizes()), random_(seed) {
    for (std::int64_t b = 0; b < s_.batches; ++b)
      w_.ints(kKv)[b] = static_cast<std::int32_t>(random_.between(0, s_.blocks * s_.block));
    overlap_ = random_.between(0, 100);
  }

  void next(QLenMode mode) {
    std::int32_t sum = 0;
    for (std::int64_t b = 0; b < s_.batches; ++b) {
      std::int32_t& kv = w_.ints(kKv)[b];
      const auto most = static_cast<std::int32_t>(s_.blocks * s_.block);
      kv += static_cast<std::int32_t>(random_.between(random_.one_in(5) ? -2 * s_.block : 0, s_.block + 1));
      kv = random_.one_in(30) ? 0 : std::min(kv, most);
      const auto q = static_cast<std::int32_t>(random_.one_in(3) ? random_.between(-1, s_.rows_per_batch + 1)
                                                                 : s_.rows_per_batch);
      sum += q;
      w_.ints(kQ)[b] = mode == QLenMode::kPrefixSum ? sum : q;
      for (std::int64_t s = 0; s < s_.rows_per_batch; ++s) select(b * s_.rows_per_batch + s, kv);
    }
    if (s_.states > 0 && random_.one_in(2)) {
      std::int32_t* const rows = w_.ints(kStatusRow);
      std::swap(rows[random_.between(0, s_.rows() - 1)], rows[random_.between(0, s_.rows() - 1)]);
      if (random_.one_in(3)) {
        rows[random_.between(0, s_.rows() - 1)] =
            static_cast<std::int32_t>(random_.between(-2, s_.status_rows()));
      }
    }
    if (random_.one_in(4)) w_.ints(kStatus)[random_.between(0, s_.status_rows() - 1) * (s_.k + 1) + s_.k] = 0;
    if (random_.one_in(2)) {  // an id in two slots
      std::int32_t* const row = w_.ints(kStatus) + random_.between(0, s_.status_rows() - 1) * (s_.k + 1);
      row[random_.between(0, s_.k - 1)] = row[random_.between(0, s_.k - 1)];
    }
    spoil(kTable, (s_.status_rows() + 1) * s_.selection_columns());
    spoil(kFullTable, s_.batches * s_.full_columns());
  }

 private:
  void select(std::int64_t r, std::int64_t kv) {
    std::int32_t* const list = w_.ints(kTopK) + r * s_.k;
    const std::int64_t ids = std::max<std::int64_t>((kv - 1) / s_.block + 1, 1);
    const bool shares = r % s_.rows_per_batch > 0 && random_.one_in(2);
    if (shares) std::copy_n(list - s_.k, s_.k, list);
    for (std::int64_t i = 0; i < s_.k; ++i) {
      if (random_.between(1, 100) > (shares ? 90 : overlap_) || list[i] < 0)
        list[i] = static_cast<std::int32_t>(random_.between(0, ids - 1));
      if (random_.one_in(50)) list[i] = static_cast<std::int32_t>(ids - 1);
    }
    if (random_.one_in(3)) std::rotate(list, list + random_.between(0, s_.k - 1), list + s_.k);
    if (random_.one_in(2)) {
      std::swap(list[random_.between(0, s_.k - 1)], list[random_.between(0, s_.k - 1)]);
    } else {
      list[random_.between(0, s_.k - 1)] = static_cast<std::int32_t>(random_.between(-2, 0));
    }
  }

  // Puts back what was spoilt before, and now and then spoils another entry.
  void spoil(Name name, std::int64_t entries) {
    Spoilt& spoilt = name == kTable ? table_ : full_table_;
    if (spoilt.entry >= 0) w_.ints(name)[spoilt.entry] = spoilt.page;
    spoilt.entry = random_.one_in(3) ? random_.between(0, entries - 1) : -1;
    if (spoilt.entry < 0) return;
    spoilt.page = w_.ints(name)[spoilt.entry];
    w_.ints(name)[spoilt.entry] = random_.one_in(2) ? -1 : std::numeric_limits<std::int32_t>::max();
  }

  struct Spoilt {
    std::int64_t entry = -1;
    std::int32_t page = 0;
  };
  World& w_;
  const Sizes& s_;
  Random random_;
  std::int64_t overlap_ = 0;  // percent
  Spoilt table_, full_table_;
};

bool same(const ErrorRecord& a, const ErrorRecord& b) {
  return a.bad == b.bad && a.batch == b.batch && a.column == b.column && a.id == b.id && a.which == b.which &&
         a.op == b.op;
}

struct Totals {
  std::int64_t hits = 0, moved = 0, misses = 0, fetches = 0, bad = 0;
};

// How often each thing happened goes to `totals`.
void check_chain(const Sizes& sizes, std::uint64_t seed, int steps, Totals& totals) {
  Random random(seed);
  World world(sizes, random);
  Steps next(world, random.next());
  const auto queue = std::make_shared<EmulatedQueue>(seed, 90, random.between(1, 2));
  const kvferry::Context device = make_context(queue), cpu;
  for (int step = 1; step <= steps; ++step) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(step));
    const QLenMode mode =
        random.pick(std::vector<QLenMode>{QLenMode::kCounts, QLenMode::kPrefixSum, QLenMode::kAllRows});
    const IndexPolicy policy = random.one_in(2) ? IndexPolicy::kReport : IndexPolicy::kDefault;
    next.next(mode);
    world.to_device();
    ErrorRecord expected;
    const auto on_cpu = world.args(false, false, mode, policy);
    Status status = gather_selection_kv_cache(on_cpu, cpu, &expected);
    ASSERT_TRUE(status.ok()) << status.message();

    const bool pinned = random.one_in(2);
    const auto lent = world.lend(queue, pinned);
    const auto on_device = world.args(true, pinned, mode, policy);
    const Result<Plan> planned = plan(on_device, device);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    Buffer<std::byte> workspace(to_size(planned->workspace_bytes()), random.between(0, 64));
    Buffer<ErrorRecord> record(1);
    record[0] = {};
    harness::fill_random(workspace.data(), planned->workspace_bytes(), random.next());
    GatherSelectionKvCacheBuffers pointers = buffers(on_device);
    pointers.workspace = {workspace.data(), planned->workspace_bytes()};
    pointers.error_record = record.data();
    if (random.one_in(2)) {
      status = run(planned.value(), pointers, device);
    } else {
      status = schedule(planned.value(), pointers, device);
      if (status.ok()) status = copy(planned.value(), pointers, device);
    }
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(queue->finish(), "");
    ASSERT_EQ(world.difference(), "");
    ASSERT_TRUE(workspace.intact());
    ASSERT_TRUE(same(record[0], expected))
        << record[0].bad << " bad, first " << record[0].batch << ", " << record[0].column << "; expected "
        << expected.bad << ", " << expected.batch << ", " << expected.column;
    for (std::int64_t r = 0; r < sizes.rows(); ++r) {
      totals.hits += world.ints(kCounters)[3 * r];
      totals.misses += world.ints(kCounters)[3 * r + 1];
      totals.moved += world.ints(kCounters)[3 * r + 2];
    }
    for (std::int64_t b = 0; b < sizes.batches; ++b) totals.fetches += world.ints(kFetchCounts)[b];
    totals.bad += static_cast<std::int64_t>(expected.bad);
  }
}

TEST(EmulatedSelection, Chains) {
  Totals totals;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(1000 + seed);
    Sizes s;
    s.batches = random.between(1, 4);
    s.rows_per_batch = random.pick(std::vector<std::int64_t>{1, 1, 2, 4});
    s.block = random.pick(std::vector<std::int64_t>{1, 2, 3, 4, 16, 64});
    s.k = random.between(1, std::clamp<std::int64_t>(2000 / (s.rows() * s.block), 1, 60));
    s.selection_page = s.block * random.between(1, 5);
    s.full_page = s.block * random.between(1, 5);
    s.kv_bytes = random.pick(std::vector<std::int64_t>{1, 7, 16, 48, 200});
    s.rope_bytes = random.one_in(3) ? 0 : random.between(1, 20);
    s.states = random.one_in(2) ? s.rows() + random.between(0, 3) : 0;
    s.blocks = 2 * s.k + 3;
    check_chain(s, seed, 12, totals);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(totals.hits, 1000);
  EXPECT_GT(totals.moved, 100);
  EXPECT_GT(totals.fetches, 1000);
  EXPECT_LT(totals.fetches, totals.misses);  // rows share some
  EXPECT_GT(totals.bad, 10);
}

// Tables in shared memory and in the workspace, and more passes than one.
TEST(EmulatedSelection, ManyIds) {
  Totals totals;
  for (const std::int64_t k : {2048, 2049, 4500}) {
    Sizes s;
    s.k = k;
    s.rows_per_batch = 2;
    s.selection_page = s.full_page = 64;
    s.kv_bytes = 16;
    s.rope_bytes = 8;
    s.blocks = 2 * k;
    check_chain(s, static_cast<std::uint64_t>(k), 3, totals);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(totals.hits, 1000);
  EXPECT_GT(totals.moved, 100);
}

// More rows than SelectionCopy adds up, and than SelectionStates has shared memory for.
TEST(EmulatedSelection, ManyRows) {
  Totals totals;
  for (const auto& [batches, steps] : {std::pair{257, 3}, std::pair{1025, 1}}) {
    Sizes s;
    s.batches = batches;
    s.k = 3;
    s.block = 2;
    s.selection_page = s.full_page = 4;
    s.kv_bytes = 4;
    s.states = batches + 5;
    s.blocks = 6;
    check_chain(s, static_cast<std::uint64_t>(batches), steps, totals);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(totals.hits, 100);
  EXPECT_GT(totals.bad, 0);
}

// The host cannot see whose schedule a workspace holds; the device does.
TEST(EmulatedSelection, CopyOfAnotherScheduleDoesNothing) {
  Random random(1);
  Sizes s;
  s.k = s.blocks = 8;
  s.kv_bytes = 16;
  World world(s, random);
  world.ints(kKv)[0] = 8;
  world.ints(kQ)[0] = 1;
  std::iota(world.ints(kTopK), world.ints(kTopK) + 8, 0);
  world.to_device();
  const auto queue = std::make_shared<EmulatedQueue>(1);
  const auto lent = world.lend(queue, false);
  const kvferry::Context device = make_context(queue);
  const auto args = world.args(true, false, QLenMode::kCounts, IndexPolicy::kDefault);
  const Plan first = plan(args, device).value(), second = plan(args, device).value();
  Buffer<std::byte> workspace(to_size(first.workspace_bytes()));
  harness::fill_random(workspace.data(), first.workspace_bytes(), 3);
  GatherSelectionKvCacheBuffers pointers = buffers(args);
  pointers.workspace = {workspace.data(), first.workspace_bytes()};
  const auto selection = [&] {
    const auto* const data = static_cast<const std::byte*>(pointers.selection_kv_cache);
    return std::vector<std::byte>(data, data + s.selection_pages() * s.selection_page * s.kv_bytes);
  };
  const auto before = selection();
  ASSERT_TRUE(copy(first, pointers, device).ok());
  ASSERT_EQ(queue->finish(), "");
  EXPECT_EQ(selection(), before);
  ASSERT_TRUE(schedule(first, pointers, device).ok());
  ASSERT_TRUE(copy(second, pointers, device).ok());
  ASSERT_EQ(queue->finish(), "");
  EXPECT_EQ(selection(), before);
  ASSERT_TRUE(copy(first, pointers, device).ok());
  ASSERT_EQ(queue->finish(), "");
  EXPECT_NE(selection(), before);
}

}  // namespace
}  // namespace kvferry::emulation
