// SPDX-License-Identifier: Apache-2.0
//
// From a gather_dequant case to an Instance.
#include "ops/gather_dequant/gather_dequant_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "harness/operator_cases.hpp"
#include "harness/random.hpp"
#include "ops/gather_dequant/gather_dequant_oracle.hpp"
#include "ops/gather_dequant/gather_dequant_plan.hpp"
#include "ops/paged_cases.hpp"
#include "ops/registry.hpp"

namespace kvferry::harness {
namespace {

constexpr std::array kKeys = {
    KeyHelp{"dtype", "of cache: u8, i8 (default u8)"},
    KeyHelp{"idx", "dtype of the index tensors: i32, i64 (default i32)"},
    KeyHelp{"b", "batches (default: as many as lens or sums list, else 3)"},
    KeyHelp{"lens", "tokens of each batch, a list dealt out in turn (default: random, up to 3 blocks)"},
    KeyHelp{"cumsum", "seq_lens holds cumulative sums, a flag (default 0; 1 with sums)"},
    KeyHelp{"base", "first cumulative sum (default 0)"},
    KeyHelp{"sums", "the cumulative sums themselves, a list of b+1, instead of lens"},
    KeyHelp{"offset", "seq_offset in tokens, a list dealt out to the batches (default: no tensor)"},
    KeyHelp{"n", "rows of out (default: what lens or sums need)"},
    KeyHelp{"extra", "added to the default of n; may be negative"},
    KeyHelp{"w", "columns of the block table (default: what the batches need)"},
    KeyHelp{"bs", "tokens per block (default 4)"},
    KeyHelp{"nb", "blocks of cache (default: as many as table entries, up to 64 MiB)"},
    KeyHelp{"table",
            "ids: random (distinct while they last), dup, seq, same, or a list dealt out row by row"},
    KeyHelp{"put", "single entries, batch/column/id joined by ';'"},
    KeyHelp{"policy", "default, report, reject"},
    KeyHelp{"scales",
            "bits of the scales, a list; each is for 256 values (default: any bits, and half of "
            "them of the size that models have)"},
    KeyHelp{"codes", "all: every 256 values are the 256 codes (default: random bytes)"},
    KeyHelp{"c", "layout of cache (words: harness/layout.hpp); its last axis must stay dense"},
    KeyHelp{"o", "layout of out"},
    KeyHelp{"bt", "layout of block_tables"},
    KeyHelp{"sl", "layout of seq_lens"},
    KeyHelp{"so", "layout of seq_offset"},
    KeyHelp{"break", "break one rule of plan(), see gather_dequant_breakers()"},
};

constexpr std::array<std::pair<const char*, DType>, 2> kCacheTypes = {
    {{"u8", DType::kUInt8}, {"i8", DType::kInt8}}};

// Random bytes are random bits of a scale too: mostly absurd ones. Half of them get an exponent near 1.
void fill_rows(const Case& from, const Array& cache, bool sparse, Random& random) {
  const Shape scales = from.integers("scales", {});
  const std::string codes = from.text("codes", "");
  if (!codes.empty() && codes != "all") from.fail("codes", fmt::format("'{}' is not 'all'", codes));
  if (sparse) return;
  std::size_t next = 0;
  for (std::int64_t block = 0; block < cache.dim(0); ++block) {
    for (std::int64_t slot = 0; slot < cache.dim(1); ++slot) {
      std::byte* const row = cache.at({block, slot});
      for (std::int64_t i = 0; codes == "all" && i < 512; ++i) row[i] = static_cast<std::byte>(i & 255);
      for (std::int64_t group = 0; group < 4; ++group) {
        auto bits = static_cast<std::uint32_t>(random.next());
        if (!scales.empty()) {
          bits = static_cast<std::uint32_t>(scales[next++ / 2 % scales.size()]);
        } else if (random.one_in(2)) {
          bits = (bits & 0x007fffffU) | static_cast<std::uint32_t>(random.between(110, 130)) << 23;
        }
        std::memcpy(row + 512 + 4 * group, &bits, sizeof bits);
      }
    }
  }
}

std::unique_ptr<Instance> make_gather_dequant(const Case& from) {
  auto made = std::make_unique<Instance>(from);
  Instance& instance = *made;
  Random random(instance.seed() ^ 0xde9);

  const DType type = from.choice<DType>("dtype", kCacheTypes, DType::kUInt8);
  const DType index_type = from.choice<DType>("idx", index_types(), DType::kInt32);
  const IndexPolicy policy = from.choice<IndexPolicy>("policy", kIndexPolicies, IndexPolicy::kDefault);
  const std::int64_t bs = from.integer("bs", 4, 1, kAnySize);
  const ReadsCase reads = read_reads(from, bs, random);
  const std::int64_t room = std::max<std::int64_t>((std::int64_t{64} << 20) / 656 / bs, 1);
  const std::int64_t nb =
      from.integer("nb", std::clamp<std::int64_t>(reads.batches() * reads.width, 1, room), 0, kAnySize);
  const Shape table = make_table(from, reads, bs, nb, random);

  const std::size_t cache = instance.add_tensor("cache", false, type, Shape{nb, bs, 656}, from.text("c", ""));
  const ReadsTensors indices = add_reads(instance, from, index_type, reads, table);
  const std::size_t out =
      instance.add_tensor("out", true, DType::kBFloat16, Shape{reads.rows, 576}, from.text("o", ""));
  instance.fill_named_blocks(cache, table);
  const Storage& memory = instance.storages[instance.tensors[cache].storage];
  fill_rows(from, instance.array(cache), memory.live.placement() == Placement::kSparse, random);

  auto args = std::make_shared<GatherDequantArgs>();
  args->cache = instance.view(cache);
  args->block_tables = instance.view(indices.block_tables);
  args->seq_lens = instance.view(indices.seq_lens);
  args->out = instance.view(out);
  if (indices.seq_offset) args->seq_offset = instance.view(*indices.seq_offset);
  args->is_seq_lens_cumsum = reads.cumsum;
  args->index_policy = policy;

  instance.seal();
  if (break_rule(from, gather_dequant_breakers(), *args, instance)) {
    connect<gather_dequant>(instance, args);
    return made;
  }

  GatherOracle oracle = gather_dequant_oracle(instance.array(cache), instance.expected_array(out));
  oracle.block_tables = instance.array(indices.block_tables);
  oracle.seq_lens = instance.array(indices.seq_lens);
  if (indices.seq_offset) oracle.seq_offset = instance.array(*indices.seq_offset);
  oracle.cumsum = reads.cumsum;
  oracle.reject = policy == IndexPolicy::kReject;
  oracle.run();
  if (instance.poison_touched()) oracle.run();

  if (!oracle.refusal.empty()) instance.expect = {StatusCode::kIndex, Expectation::At::kRun, oracle.refusal};
  if (policy == IndexPolicy::kReport) instance.record = oracle.record;
  instance.bytes_moved = oracle.rows_written * 1152;
  const Array rows = instance.expected_array(out);
  for (const std::int64_t row : oracle.contested) {
    for (std::int64_t j = 0; j < 576; ++j) instance.leave_open(out, rows.at({row, j}), rows.item);
  }
  connect<gather_dequant>(instance, args);
  return made;
}

}  // namespace

const OperatorInfo& gather_dequant_info() {
  static const OperatorInfo info = {
      Operator::kGatherDequant,
      "gather_dequant",
      "fp8 tokens of a paged cache to contiguous bfloat16",
      kKeys,
      gather_dequant_registered_cases(),
      make_gather_dequant,
      gather_dequant_random_case,
      implementation_names<internal::gather_dequant_cpu>,
  };
  return info;
}

Case gather_dequant_random_case(std::uint64_t seed) {
  Random random(seed);
  Case made("gather_dequant");
  const auto some = [&](std::int64_t n) { return random.one_in(n); };
  if (some(2)) made.set("dtype", "i8");
  const bool wide = some(2);
  made.set("idx", wide ? "i64" : "i32");
  const std::int64_t bs = random.pick(Shape{1, 2, 3, 4, 7});
  made.set("bs", bs);
  set_random_reads(made, random, bs, wide);
  if (some(3)) made.set("nb", random.between(0, 6));
  made.set("policy", random.pick(std::vector<std::string>{"default", "report", "reject"}));
  if (some(4)) made.set("codes", "all");
  if (some(2)) {
    made.set("c", random.pick(std::vector<std::string>{"pad2:1", "pad2:48+neg0", "pad1:5+off3", "order102",
                                                       "neg0+neg1+off64", "one"}));
    made.set("o", random_layout(random, 2));
  }
  set_random_memory(made, random, 5);
  if (some(4)) made.set("streaming", 1);
  if (some(4)) made.set("bound", 0);
  made.set("seed", static_cast<std::int64_t>(seed));
  return made;
}

}  // namespace kvferry::harness
