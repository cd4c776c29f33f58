// SPDX-License-Identifier: Apache-2.0
//
// The paged gather, thread by thread, against the operator's oracle: any layout, alignment and order.
#include "backends/cuda/paged_gather.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "harness/layout.hpp"
#include "harness/random.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_oracle.hpp"
#include "ops/paged_cuda.hpp"
#include "tests/cuda_emulation/emulation_testing.hpp"
#include "tests/cuda_emulation/sanitizers.hpp"

namespace kvferry::emulation {
namespace {

using harness::Array;
using harness::Random;
using internal::cuda::PagedGather;
using internal::cuda::PagedSequence;

// A tensor of any layout in a buffer of exactly its size.
class Tensor {
 public:
  Tensor(DType dtype, std::vector<std::int64_t> shape, std::string_view layout, std::int64_t skew)
      : dtype_(dtype),
        shape_(std::move(shape)),
        layout_(harness::make_layout(shape_, layout)),
        memory_(static_cast<std::size_t>(layout_.storage_elements * size_of(dtype)), skew) {}

  TensorView view() const { return strided(memory_.data(), dtype_, shape_, layout_.strides, layout_.offset); }
  Array array(std::byte* data) const {
    return {data, size_of(dtype_), shape_, layout_.strides, layout_.offset};
  }
  Array array() const { return array(memory_.data()); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(memory_.size()); }
  const Buffer<std::byte>& memory() const { return memory_; }

 private:
  DType dtype_;
  std::vector<std::int64_t> shape_;
  harness::Layout layout_;
  Buffer<std::byte> memory_;
};

struct Problem {
  DType dtype = DType::kUInt16;
  bool nz = false;
  std::int64_t blocks = 8, block_size = 16;
  std::int64_t heads = 2, key_d = 64, value_d = 0;
  std::string key_cache, value_cache, key, value;  // layouts
  std::int64_t cache_skew = 0, rows_skew = 0, table_skew = 0;
  DType table = DType::kInt32;
  std::vector<std::int64_t> lengths{100};
  std::vector<std::int64_t> offsets;  // empty, or one a batch
  bool cumsum = false;                // sums instead of lengths
  std::int64_t first_sum = 0;         // negative: tokens are skipped, and a batch starts inside a page
  std::int64_t rows = 100, width = 8;
  std::uint32_t task_shift = 30;
  std::uint32_t grid = 4;
  std::int64_t bad_ids = 0;  // one in so many; 0: none
  std::uint64_t seed = 1;
  LaunchOptions options;
};

class Gather {
 public:
  explicit Gather(const Problem& p)
      : p_(p),
        key_cache_(p.dtype, cache_shape(p.key_d), p.key_cache, p.cache_skew),
        value_cache_(p.dtype, cache_shape(p.value_d), p.value_cache, p.cache_skew),
        key_(p.dtype, rows_shape(p.key_d), p.key, p.rows_skew),
        value_(p.dtype, rows_shape(p.value_d), p.value, p.rows_skew),
        table_(p.table, {batches(), p.width}, "", p.table_skew),
        lengths_(DType::kInt64, {batches() + (p.cumsum ? 1 : 0)}, "", 0),
        offsets_(DType::kInt64, {batches()}, "", 0) {
    std::uint64_t seed = p.seed;
    for (const Tensor* t : {&key_cache_, &value_cache_, &key_, &value_})
      harness::fill_random(t->memory().data(), t->bytes(), ++seed);
    Random random(p.seed);
    std::int64_t sum = p.first_sum;
    if (p.cumsum) harness::store_index(lengths_.array(), {0}, sum);
    for (std::int64_t i = 0; i < batches(); ++i) {
      const std::int64_t length = p.lengths[harness::to_size(i)];
      sum += length;
      harness::store_index(lengths_.array(), {p.cumsum ? i + 1 : i}, p.cumsum ? sum : length);
      harness::store_index(offsets_.array(), {i}, p.offsets.empty() ? 0 : p.offsets[harness::to_size(i)]);
      for (std::int64_t c = 0; c < p.width; ++c) {
        const bool bad = p.bad_ids != 0 && random.one_in(p.bad_ids);
        const std::int64_t id = !bad               ? random.between(0, p.blocks - 1)
                                : random.one_in(2) ? -1
                                                   : p.blocks + random.between(0, 3);
        harness::store_index(table_.array(), {i, c}, id);
      }
    }
  }

  // Through the kernel; what the oracle says.
  void check() {
    std::vector<std::byte> key(key_.memory().data(), key_.memory().data() + key_.bytes());
    std::vector<std::byte> value(value_.memory().data(), value_.memory().data() + value_.bytes());
    harness::GatherOracle oracle;
    oracle.key_cache = key_cache_.array();
    oracle.value_cache = value_cache_.array();
    oracle.block_tables = table_.array();
    oracle.seq_lens = lengths_.array();
    if (!p_.offsets.empty()) oracle.seq_offset = offsets_.array();
    oracle.key = key_.array(key.data());
    oracle.value = value_.array(value.data());
    oracle.nz = p_.nz;
    oracle.cumsum = p_.cumsum;
    oracle.run();

    const Report report = run();
    ASSERT_FALSE(report.finding) << p_.options << ": " << report.finding->text;
    for (const auto& [tensor, expected] : {std::pair(&key_, &key), std::pair(&value_, &value)}) {
      const std::byte* seen = tensor->memory().data();
      const auto differs = std::mismatch(expected->begin(), expected->end(), seen);
      ASSERT_EQ(differs.first, expected->end())
          << (tensor == &key_ ? "key" : "value") << " byte " << differs.first - expected->begin();
      EXPECT_TRUE(tensor->memory().intact());
    }
  }

  Report run() {
    using namespace internal;
    const PagedLayout layout = p_.nz ? PagedLayout::kNz4 : PagedLayout::kNbshd;
    const TensorView key = key_.view(), value = value_.view();
    PagedReads reads = make_reads(table_.view(), lengths_.view(),
                                  p_.offsets.empty() ? std::nullopt : std::optional(offsets_.view()),
                                  p_.cumsum, p_.rows, p_.block_size, IndexPolicy::kDefault);
    reads.add_cache("key_cache", kBadKey, p_.blocks);
    std::vector<GatherSequence> sequences(harness::to_size(batches()));
    std::int64_t tokens = 0;
    EXPECT_TRUE(resolve_reads(reads, {table_.view().data, lengths_.view().data, offsets_.view().data},
                              Operator::kGatherPaKvCache, nullptr, sequences, tokens)
                    .ok());
    const Buffer<PagedSequence> on_device(sequences.size() + 1);
    std::int64_t tasks = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const GatherSequence& s = sequences[i];
      on_device[i] = {s.row, s.column, s.slot, s.tokens, tasks};
      if (s.tokens > 0) tasks += PagedGather::tasks_of(s.slot, s.tokens, p_.block_size, p_.task_shift);
    }
    on_device[sequences.size()] = {};
    on_device[sequences.size()].first_task = tasks;

    PagedGather::Params params{};
    params.sequences = on_device.device();
    params.batches = batches();
    params.table = cuda_table(reads, table_.view().data);
    params.block_size = p_.block_size;
    params.task_shift = p_.task_shift;
    for (const auto& [cache, rows] :
         {std::pair(key_cache_.view(), key), std::pair(value_cache_.view(), value)}) {
      if (rows.dim(rows.rank - 1) == 0 || rows.dim(0) == 0) continue;
      const PagedSide side = make_paged_side(layout, cache, rows, Direction::kCacheToRows);
      EXPECT_EQ(side.move.nests.size(), 1U);
      const Nest& nest = side.move.nests.front();
      EXPECT_LE(nest.loop_count, static_cast<int>(cuda::PagedGatherSide::kLoops));
      params.sides[params.side_count++] = cuda_gather_side(side, nest, cache.data, rows.data);
    }
    return launch<PagedGather>(p_.grid, params, p_.options);
  }

 private:
  std::int64_t batches() const { return static_cast<std::int64_t>(p_.lengths.size()); }
  std::vector<std::int64_t> cache_shape(std::int64_t d) const {
    const std::int64_t e = 32 / size_of(p_.dtype);
    if (p_.nz) return {p_.blocks, p_.heads * d / e, p_.block_size, e};
    return {p_.blocks, p_.block_size, p_.heads, d};
  }
  std::vector<std::int64_t> rows_shape(std::int64_t d) const {
    if (p_.nz) return {p_.rows, p_.heads * d};
    return {p_.rows, p_.heads, d};
  }

  Problem p_;
  Tensor key_cache_, value_cache_, key_, value_, table_, lengths_, offsets_;
};

LaunchOptions random_order(Random& random) {
  LaunchOptions options;
  options.order = static_cast<Order>(random.between(0, 2));
  options.seed = random.next();
  if (random.one_in(2)) options.preempt_per_1024 = static_cast<std::uint32_t>(random.between(1, 100));
  return options;
}

Problem random_problem(std::uint64_t seed) {
  Random random(seed);
  Problem p;
  p.seed = seed;
  p.dtype = random.pick<DType>({DType::kInt8, DType::kUInt16, DType::kFloat32});
  p.nz = random.one_in(4);
  p.blocks = random.between(1, 9);
  p.block_size = random.one_in(4) ? 1 : random.between(1, 20);
  p.heads = random.between(1, 4);
  const std::int64_t e = 32 / size_of(p.dtype);
  const auto d = [&] {
    return p.nz ? e * random.between(1, 3) : random.pick<std::int64_t>({1, 3, 8, 16, 46, 64, 100});
  };
  p.key_d = d();
  p.value_d = random.one_in(3) ? 0 : d();
  for (std::string* layout : {&p.key_cache, &p.value_cache}) {
    if (random.one_in(2)) *layout = harness::random_layout(random, 4);
  }
  for (std::string* layout : {&p.key, &p.value}) {
    if (random.one_in(2)) *layout = harness::random_layout(random, p.nz ? 2 : 3);
  }
  if (random.one_in(2)) p.cache_skew = random.between(1, 15);
  if (random.one_in(2)) p.rows_skew = random.between(1, 15);
  p.table = random.one_in(2) ? DType::kInt32 : DType::kInt64;
  if (random.one_in(4)) p.table_skew = random.between(1, 7);
  p.width = random.between(1, 6);
  p.lengths.clear();
  std::int64_t tokens = 0;
  for (std::int64_t batch = random.between(1, 7); batch > 0; --batch) {
    // Sometimes more than the table has columns.
    p.lengths.push_back(random.one_in(4) ? 0 : random.between(1, p.width * p.block_size + 2));
    tokens += p.lengths.back();
  }
  if (random.one_in(3)) {
    for (std::size_t i = 0; i < p.lengths.size(); ++i)
      p.offsets.push_back(random.between(0, 2 * p.block_size));
  }
  p.cumsum = random.one_in(2);
  if (p.cumsum && random.one_in(2)) p.first_sum = random.between(-2 * p.block_size, 0);
  p.rows = std::max<std::int64_t>(tokens + random.between(-3, 3), 1);
  p.task_shift = static_cast<std::uint32_t>(random.between(0, 5));
  p.grid = static_cast<std::uint32_t>(random.between(1, 5));
  p.bad_ids = random.one_in(2) ? 0 : random.between(2, 8);
  p.options = random_order(random);
  return p;
}

TEST(EmulatedPagedGather, RandomProblems) {
  const std::int64_t problems = thread_sanitizer() ? 10 : 400;
  for (std::int64_t i = 0; i < problems && !HasFailure(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(i));
    Gather(random_problem(static_cast<std::uint64_t>(i))).check();
  }
}

// Pages of 128 tokens of 8 heads in bfloat16, both layouts, and heads whose rows are no multiple of 16 bytes.
TEST(EmulatedPagedGather, RealSizes) {
  Problem p;
  p.blocks = 40;
  p.block_size = 128;
  p.heads = 8;
  p.width = 10;
  p.lengths = {1000, 1, 0, 129, 128, 700};
  p.rows = 1958;
  p.task_shift = 5;
  p.grid = 6;
  p.bad_ids = 20;
  for (const auto& [d, layout] :
       {std::pair<int, const char*>(128, ""), {128, "order0213"}, {46, "order0213"}}) {
    SCOPED_TRACE(std::to_string(d) + " " + layout);
    p.key_d = p.value_d = d;
    p.key_cache = layout;
    Gather(p).check();
  }
}

// Blocks above 4 GiB: no 32-bit offset reaches them.
TEST(EmulatedPagedGather, CachesAbove4Gib) {
  using namespace internal::cuda;
  constexpr std::int64_t kBlock = std::int64_t{1} << 30, kSize = 5 * kBlock;
  const harness::Memory cache(kSize, harness::Placement::kSparse);
  const RegisteredRange range(cache.data(), static_cast<std::size_t>(kSize));
  const Buffer<std::uint8_t> rows(4 * 64);
  const Buffer<std::int32_t> table(std::vector<std::int32_t>{4, 1});
  const Buffer<PagedSequence> sequences(std::vector<PagedSequence>{{0, 0, 0, 4, 0}, {0, 0, 0, 0, 2}});
  PagedGather::Params params{};
  params.sequences = sequences.device();
  params.batches = 1;
  params.table = {DevicePtr<const std::uint8_t>::at(reinterpret_cast<const std::uint8_t*>(table.data())), 8,
                  4, 2, false};
  params.block_size = 2;
  params.task_shift = 1;
  params.side_count = 1;
  params.sides[0].cache =
      DevicePtr<const std::uint8_t>::at(reinterpret_cast<const std::uint8_t*>(cache.data()));
  params.sides[0].rows = rows.device();
  params.sides[0].blocks = 5;
  params.sides[0].block_step = kBlock;
  params.sides[0].slot_step = kBlock / 2;
  params.sides[0].row_step = 64;
  params.sides[0].piece = 64;
  for (const std::int64_t at : {4 * kBlock, 4 * kBlock + kBlock / 2, kBlock, kBlock + kBlock / 2})
    harness::fill_random(cache.data() + at, 64, static_cast<std::uint64_t>(at));
  const Report report = launch<PagedGather>(1, params);
  ASSERT_FALSE(report.finding) << report.finding->text;
  int row = 0;
  for (const std::int64_t at : {4 * kBlock, 4 * kBlock + kBlock / 2, kBlock, kBlock + kBlock / 2}) {
    EXPECT_EQ(std::memcmp(rows.data() + row * 64, cache.data() + at, 64), 0) << row;
    ++row;
  }
}

}  // namespace
}  // namespace kvferry::emulation
