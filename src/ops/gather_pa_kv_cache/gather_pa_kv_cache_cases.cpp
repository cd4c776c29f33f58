// SPDX-License-Identifier: Apache-2.0
//
// From a gather case to an Instance.
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "harness/operator_cases.hpp"
#include "harness/random.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_oracle.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_plan.hpp"
#include "ops/paged_cases.hpp"
#include "ops/registry.hpp"

namespace kvferry::harness {
namespace {

constexpr std::array kKeys = {
    KeyHelp{"mode", "layout of the caches: nd, nz (default nd)"},
    KeyHelp{"dtype", "of key: f16 bf16 f32 i8 u8 i16 u16 i32 u32 hif8 e5m2 e4m3 (default f16)"},
    KeyHelp{"vdtype", "of value (default: dtype)"},
    KeyHelp{"idx", "dtype of the index tensors: i32, i64 (default i32)"},
    KeyHelp{"b", "batches (default: as many as lens or sums list, else 3)"},
    KeyHelp{"lens", "tokens of each batch, a list dealt out in turn (default: random, up to 3 blocks)"},
    KeyHelp{"cumsum", "seq_lens holds cumulative sums, a flag (default 0; 1 with sums)"},
    KeyHelp{"base", "first cumulative sum (default 0)"},
    KeyHelp{"sums", "the cumulative sums themselves, a list of b+1, instead of lens"},
    KeyHelp{"offset", "seq_offset in tokens, a list dealt out to the batches (default: no tensor)"},
    KeyHelp{"n", "rows of the outputs (default: what lens or sums need)"},
    KeyHelp{"extra", "added to the default of n; may be negative"},
    KeyHelp{"w", "columns of the block table (default: what the batches need)"},
    KeyHelp{"bs", "tokens per block (default 4)"},
    KeyHelp{"h", "heads (default 2)"},
    KeyHelp{"hv", "heads of value (default: h)"},
    KeyHelp{"dk", "head size of key (default 16)"},
    KeyHelp{"dv", "head size of value (default: dk)"},
    KeyHelp{"nb", "blocks of key_cache (default: as many as table entries, up to 64 MiB)"},
    KeyHelp{"nbv", "blocks of value_cache (default: nb)"},
    KeyHelp{"table",
            "ids: random (distinct while they last), dup, seq, same, or a list dealt out row by row"},
    KeyHelp{"put", "single entries, batch/column/id joined by ';'"},
    KeyHelp{"policy", "default, report, reject"},
    KeyHelp{"kc", "layout of key_cache (words: harness/layout.hpp)"},
    KeyHelp{"vc", "layout of value_cache"},
    KeyHelp{"k", "layout of key"},
    KeyHelp{"v", "layout of value"},
    KeyHelp{"bt", "layout of block_tables"},
    KeyHelp{"sl", "layout of seq_lens"},
    KeyHelp{"so", "layout of seq_offset"},
    KeyHelp{"cat_cache", "both caches in one storage, joined along this axis"},
    KeyHelp{"cat_out", "both outputs in one storage, joined along this axis"},
    KeyHelp{"break", "break one rule of plan(), see gather_breakers()"},
};

constexpr std::array<std::pair<const char*, bool>, 2> kModes = {{{"nd", false}, {"nz", true}}};
std::unique_ptr<Instance> make_gather(const Case& from) {
  auto made = std::make_unique<Instance>(from);
  Instance& instance = *made;
  Random random(instance.seed() ^ 0x6a7);

  const bool nz = from.choice<bool>("mode", kModes, false);
  const DType key_type = from.choice<DType>("dtype", data_types(), DType::kFloat16);
  const DType value_type = from.choice<DType>("vdtype", data_types(), key_type);
  const DType index_type = from.choice<DType>("idx", index_types(), DType::kInt32);
  const IndexPolicy policy = from.choice<IndexPolicy>("policy", kIndexPolicies, IndexPolicy::kDefault);
  const std::int64_t bs = from.integer("bs", 4, 1, kAnySize);
  const std::int64_t h = from.integer("h", 2, 0, kAnySize);
  const std::int64_t hv = from.integer("hv", h, 0, kAnySize);
  const std::int64_t dk = from.integer("dk", 16, 0, kAnySize);
  const std::int64_t dv = from.integer("dv", dk, 0, kAnySize);

  const ReadsCase reads = read_reads(from, bs, random);
  const std::int64_t rows = reads.rows;

  const auto cache_shape = [&](std::int64_t blocks, std::int64_t heads, std::int64_t d, DType type) -> Shape {
    if (!nz) return {blocks, bs, heads, d};
    const std::int64_t e = 32 / item_bytes(type);
    if (heads * d % e != 0)
      from.fail("mode", fmt::format("nz needs heads * head size to be a multiple of {}", e));
    return {blocks, heads * d / e, bs, e};
  };
  const std::int64_t block_bytes = std::max<std::int64_t>(
      {bs * std::max<std::int64_t>(h * dk * item_bytes(key_type), hv * dv * item_bytes(value_type)), 1});
  const std::int64_t room = std::max<std::int64_t>((std::int64_t{64} << 20) / block_bytes, 1);
  const std::int64_t nb =
      from.integer("nb", std::clamp<std::int64_t>(reads.batches() * reads.width, 1, room), 0, kAnySize);
  const std::int64_t nbv = from.integer("nbv", nb, 0, kAnySize);
  const auto out_shape = [&](std::int64_t heads, std::int64_t d) -> Shape {
    return nz ? Shape{rows, heads * d} : Shape{rows, heads, d};
  };
  const Shape table = make_table(from, reads, bs, std::max(nb, nbv), random);

  const TensorSpec key_cache{"key_cache", key_type, cache_shape(nb, h, dk, key_type), from.text("kc", "")};
  const TensorSpec value_cache{"value_cache", value_type, cache_shape(nbv, hv, dv, value_type),
                               from.text("vc", "")};
  const TensorPair caches = instance.add_pair(from, "cat_cache", false, key_cache, &value_cache);
  const ReadsTensors indices = add_reads(instance, from, index_type, reads, table);
  const TensorSpec key{"key", key_type, out_shape(h, dk), from.text("k", "")};
  const TensorSpec value{"value", value_type, out_shape(hv, dv), from.text("v", "")};
  const TensorPair outputs = instance.add_pair(from, "cat_out", true, key, &value);
  instance.fill_named_blocks(caches.first, table);
  instance.fill_named_blocks(caches.second, table);

  auto args = std::make_shared<GatherPaKvCacheArgs>();
  args->key_cache = instance.view(caches.first);
  args->value_cache = instance.view(caches.second);
  args->block_tables = instance.view(indices.block_tables);
  args->seq_lens = instance.view(indices.seq_lens);
  args->key = instance.view(outputs.first);
  args->value = instance.view(outputs.second);
  if (indices.seq_offset) args->seq_offset = instance.view(*indices.seq_offset);
  args->cache_mode = nz ? CacheMode::kPaNz : CacheMode::kNorm;
  args->is_seq_lens_cumsum = reads.cumsum;
  args->index_policy = policy;

  instance.seal();
  if (break_rule(from, gather_breakers(), *args, instance)) {
    connect<gather_pa_kv_cache>(instance, args);
    return made;
  }

  GatherOracle oracle;
  oracle.key_cache = instance.array(caches.first);
  oracle.value_cache = instance.array(caches.second);
  oracle.block_tables = instance.array(indices.block_tables);
  oracle.seq_lens = instance.array(indices.seq_lens);
  if (indices.seq_offset) oracle.seq_offset = instance.array(*indices.seq_offset);
  oracle.key = instance.expected_array(outputs.first);
  oracle.value = instance.expected_array(outputs.second);
  oracle.nz = nz;
  oracle.cumsum = reads.cumsum;
  oracle.reject = policy == IndexPolicy::kReject;
  oracle.run();
  if (instance.poison_touched()) oracle.run();

  if (!oracle.refusal.empty()) {
    instance.expect = {StatusCode::kIndex, Expectation::At::kRun, oracle.refusal};
  }
  if (policy == IndexPolicy::kReport) instance.record = oracle.record;
  instance.bytes_moved =
      oracle.rows_written * (h * dk * item_bytes(key_type) + hv * dv * item_bytes(value_type));
  for (const std::int64_t row : oracle.contested) {
    const auto open = [&](std::size_t tensor) {
      const Array out = instance.expected_array(tensor);
      for (std::int64_t i = 0; i < out.dim(1); ++i) {
        for (std::int64_t j = 0; j < (nz ? 1 : out.dim(2)); ++j) {
          instance.leave_open(tensor, nz ? out.at({row, i}) : out.at({row, i, j}), out.item);
        }
      }
    };
    open(outputs.first);
    open(outputs.second);
  }
  connect<gather_pa_kv_cache>(instance, args);
  return made;
}

}  // namespace

const OperatorInfo& gather_pa_kv_cache_info() {
  static const OperatorInfo info = {
      Operator::kGatherPaKvCache,
      "gather_pa_kv_cache",
      "tokens of paged K and V caches to contiguous K and V",
      kKeys,
      gather_registered_cases(),
      make_gather,
      gather_random_case,
      implementation_names<internal::gather_pa_kv_cache_cpu>,
  };
  return info;
}

// Any shape, layout and index values that the operator accepts, small.
Case gather_random_case(std::uint64_t seed) {
  Random random(seed);
  Case made("gather_pa_kv_cache");
  const auto some = [&](std::int64_t n) { return random.one_in(n); };
  const bool nz = some(3);
  if (nz) made.set("mode", "nz");
  const auto types = data_types();
  const auto type = types[to_size(random.between(0, static_cast<std::int64_t>(types.size()) - 1))];
  made.set("dtype", type.first);
  auto value_type = type;
  if (some(4)) {
    value_type = types[to_size(random.between(0, static_cast<std::int64_t>(types.size()) - 1))];
    made.set("vdtype", value_type.first);
  }
  const bool wide = some(2);
  made.set("idx", wide ? "i64" : "i32");
  const std::int64_t bs = random.pick(std::vector<std::int64_t>{1, 2, 3, 4, 7, 8, 16, 33});
  made.set("bs", bs);
  const std::int64_t h = random.between(1, 4);
  made.set("h", h);
  std::int64_t hv = h;
  if (some(6)) made.set("hv", hv = random.between(1, 4));
  // NZ needs whole units of 32 bytes in a row.
  const auto head_size = [&](DType dtype) {
    if (nz) return 32 / item_bytes(dtype) * random.between(1, 4);
    return some(12) ? std::int64_t{0} : some(8) ? random.between(1, 700) : random.between(1, 40);
  };
  const std::int64_t dk = head_size(type.second);
  std::int64_t dv = dk;
  made.set("dk", dk);
  if (nz || some(3)) made.set("dv", dv = head_size(value_type.second));

  set_random_reads(made, random, bs, wide);
  if (some(3)) made.set("nb", random.between(0, 6));
  if (some(4)) made.set("nbv", random.between(0, 6));
  made.set("policy", random.pick(std::vector<std::string>{"default", "report", "reject"}));
  const bool same_shapes = item_bytes(value_type.second) == item_bytes(type.second) && hv == h && dv == dk;
  if (some(2)) {
    for (const char* tensor : {"kc", "vc"}) made.set(tensor, random_layout(random, 4));
    for (const char* tensor : {"k", "v"}) made.set(tensor, random_layout(random, nz ? 2 : 3));
  } else if (same_shapes && some(2)) {  // K and V in one allocation
    if (!made.has("nbv")) made.set("cat_cache", random.between(0, 3));
    if (made.has("cat_cache") && some(2)) made.set("kc", random_layout(random, 4));
    if (some(2)) made.set("cat_out", random.between(0, nz ? 1 : 2));
  }
  set_random_memory(made, random, 7);
  if (some(4)) made.set("streaming", 1);
  if (some(4)) made.set("bound", 0);
  made.set("seed", static_cast<std::int64_t>(seed));
  return made;
}

}  // namespace kvferry::harness
