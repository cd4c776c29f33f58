// SPDX-License-Identifier: Apache-2.0
//
// From a gather case to an Instance.
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "harness/int128.hpp"
#include "harness/random.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_oracle.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_plan.hpp"
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
constexpr std::array<std::pair<const char*, IndexPolicy>, 3> kPolicies = {{
    {"default", IndexPolicy::kDefault},
    {"report", IndexPolicy::kReport},
    {"reject", IndexPolicy::kReject},
}};

constexpr std::int64_t kAny = std::int64_t{1} << 40;

using Shape = std::vector<std::int64_t>;

// seq_lens as stored, and the tokens of each batch.
struct Lengths {
  bool cumsum = false;
  Shape stored;
  Shape tokens;
  std::int64_t end = 0;  // rows that they need
};

std::int64_t clamp_to_any(Int128 value) {
  return static_cast<std::int64_t>(std::clamp<Int128>(value, 0, kAny));
}

Lengths read_lengths(const Case& from, std::int64_t block_size, Random& random) {
  Lengths lengths;
  lengths.cumsum = from.flag("cumsum", from.has("sums"));
  if (from.has("sums")) {
    if (!lengths.cumsum) from.fail("sums", "needs cumsum=1");
    lengths.stored = from.integers("sums", {});
    if (lengths.stored.empty()) from.fail("sums", "the list is empty");
    for (std::size_t i = 0; i + 1 < lengths.stored.size(); ++i) {
      lengths.tokens.push_back(clamp_to_any(static_cast<Int128>(lengths.stored[i + 1]) - lengths.stored[i]));
      lengths.end = std::max(lengths.end, std::min(lengths.stored[i + 1], kAny));
    }
    return lengths;
  }
  Shape lens;
  const Shape listed = from.integers("lens", {});
  const std::int64_t batches =
      from.integer("b", from.has("lens") ? static_cast<std::int64_t>(listed.size()) : 3, 0, 1 << 20);
  for (std::int64_t i = 0; i < batches; ++i) {
    lens.push_back(listed.empty() ? random.between(0, 3 * block_size) : listed[to_size(i) % listed.size()]);
  }
  Int128 sum = lengths.cumsum ? from.integer("base", 0) : 0;
  if (lengths.cumsum) lengths.stored.push_back(static_cast<std::int64_t>(sum));
  for (const std::int64_t length : lens) {
    const std::int64_t tokens = std::max<std::int64_t>(length, 0);
    lengths.tokens.push_back(std::min(tokens, kAny));
    sum += tokens;
    if (lengths.cumsum && sum > std::numeric_limits<std::int64_t>::max())
      from.fail("lens", "the sum overflows");
    lengths.stored.push_back(lengths.cumsum ? static_cast<std::int64_t>(sum) : length);
  }
  lengths.end = clamp_to_any(sum);
  return lengths;
}

// Block ids. Entries that no batch needs are wild: nobody may look at them.
Shape make_table(const Case& from, const Shape& tokens, const Shape& shifts, std::int64_t width,
                 std::int64_t block_size, std::int64_t blocks, Random& random) {
  const auto batches = static_cast<std::int64_t>(tokens.size());
  Shape table(to_size(batches * width));
  const std::string kind = from.text("table", "random");
  if (kind.find_first_of("0123456789") != std::string::npos) {
    const Shape list = parse_integers(kind);
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = list[i % list.size()];
  } else {
    if (kind != "random" && kind != "dup" && kind != "seq" && kind != "same") {
      from.fail("table", fmt::format("'{}' is none of: random, dup, seq, same, a list of ids", kind));
    }
    Shape fresh(to_size(kind == "random" ? std::min<std::int64_t>(blocks, 1 << 22) : 0));
    std::iota(fresh.begin(), fresh.end(), 0);
    random.shuffle(fresh);
    const Shape wild = {-1, blocks, std::numeric_limits<std::int32_t>::min(),
                        std::numeric_limits<std::int32_t>::max()};
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < batches; ++i) {
      const std::int64_t needed = block_size > 0 ? (tokens[to_size(i)] + block_size - 1) / block_size : 0;
      for (std::int64_t column = 0; column < width; ++column) {
        std::int64_t& id = table[to_size(i * width + column)];
        const Int128 along = static_cast<Int128>(column) - shifts[to_size(i)];
        if (along < 0 || along >= needed || blocks == 0) {
          id = random.pick(wild);
        } else if (kind == "same") {
          id = blocks - 1;
        } else if (kind == "seq") {
          id = next++ % blocks;
        } else if (kind == "random" && !fresh.empty()) {
          id = fresh.back();
          fresh.pop_back();
        } else {
          id = random.between(0, blocks - 1);
        }
      }
    }
  }
  for (const std::string& put : from.texts("put", {})) {
    const std::vector<std::string> parts = split(put, '/');
    if (parts.size() != 3) from.fail("put", fmt::format("'{}' is no batch/column/id", put));
    const std::int64_t batch = parse_integer(parts[0]);
    const std::int64_t column = parse_integer(parts[1]);
    if (batch < 0 || batch >= batches || column < 0 || column >= width) {
      from.fail("put", fmt::format("'{}' is outside the table of {} x {}", put, batches, width));
    }
    table[to_size(batch * width + column)] = parse_integer(parts[2]);
  }
  return table;
}

// A sparse cache is zero; the blocks that the table names get bytes.
void fill_named_blocks(Instance& instance, std::size_t tensor, const Shape& table) {
  if (instance.storages[instance.tensors[tensor].storage].live.placement() != Placement::kSparse) return;
  const Array cache = instance.array(tensor);
  std::set<std::int64_t> ids;
  for (const std::int64_t id : table) {
    if (id >= 0 && id < cache.dim(0)) ids.insert(id);
  }
  const std::int64_t block_elements = cache.elements() / std::max<std::int64_t>(cache.dim(0), 1);
  if (static_cast<std::int64_t>(ids.size()) * block_elements > (1 << 26)) {
    throw CaseError("too many blocks of a sparse cache are named");
  }
  Random random(instance.seed() + tensor);
  for (const std::int64_t id : ids) {
    for (std::int64_t i = 0; i < cache.dim(1); ++i) {
      for (std::int64_t j = 0; j < cache.dim(2); ++j) {
        for (std::int64_t k = 0; k < cache.dim(3); ++k) {
          const std::uint64_t bytes = random.next();
          std::memcpy(cache.at({id, i, j, k}), &bytes, to_size(cache.item));
        }
      }
    }
  }
}

// Args must outlive the calls that the instance makes with them.
void connect(Instance& instance, const std::shared_ptr<const GatherPaKvCacheArgs>& args) {
  instance.plan = [args](const Context& context) { return kvferry::plan(*args, context); };
  instance.run = [args](const Plan& plan, const Workspace& workspace, ErrorRecord* record,
                        const Context& context) {
    GatherPaKvCacheBuffers pointers = buffers(*args);
    pointers.workspace = workspace;
    pointers.error_record = record;
    return kvferry::run(plan, pointers, context);
  };
  instance.call = [args](ErrorRecord* record, const Context& context) {
    return gather_pa_kv_cache(*args, context, record);
  };
}

std::unique_ptr<Instance> make_gather(const Case& from) {
  auto made = std::make_unique<Instance>(from);
  Instance& instance = *made;
  Random random(instance.seed() ^ 0x6a7);

  const bool nz = from.choice<bool>("mode", kModes, false);
  const DType key_type = from.choice<DType>("dtype", data_types(), DType::kFloat16);
  const DType value_type = from.choice<DType>("vdtype", data_types(), key_type);
  const DType index_type = from.choice<DType>("idx", index_types(), DType::kInt32);
  const IndexPolicy policy = from.choice<IndexPolicy>("policy", kPolicies, IndexPolicy::kDefault);
  const std::int64_t bs = from.integer("bs", 4, 1, kAny);
  const std::int64_t h = from.integer("h", 2, 0, kAny);
  const std::int64_t hv = from.integer("hv", h, 0, kAny);
  const std::int64_t dk = from.integer("dk", 16, 0, kAny);
  const std::int64_t dv = from.integer("dv", dk, 0, kAny);

  const Lengths lengths = read_lengths(from, bs, random);
  const auto batches = static_cast<std::int64_t>(lengths.tokens.size());
  const std::int64_t rows = from.has("n") ? from.integer("n", 0, 0, kAny)
                                          : std::max<std::int64_t>(lengths.end + from.integer("extra", 0), 0);
  Shape offsets;
  Shape shifts(to_size(batches), 0);
  const bool has_offset = from.has("offset");
  if (has_offset) {
    const Shape list = from.integers("offset", {});
    for (std::int64_t i = 0; i < batches; ++i) {
      offsets.push_back(list.empty() ? 0 : list[to_size(i) % list.size()]);
      shifts[to_size(i)] = offsets.back() / bs;
    }
  }
  Int128 needed = 1;
  for (std::int64_t i = 0; i < batches; ++i) {
    const Int128 end = static_cast<Int128>(shifts[to_size(i)]) + (lengths.tokens[to_size(i)] + bs - 1) / bs;
    if (end <= 4096 || end <= (1 << 20) / batches) needed = std::max(needed, end);
  }
  const std::int64_t width = from.integer("w", static_cast<std::int64_t>(needed), 0, 1 << 24);

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
  const std::int64_t nb = from.integer("nb", std::clamp<std::int64_t>(batches * width, 1, room), 0, kAny);
  const std::int64_t nbv = from.integer("nbv", nb, 0, kAny);
  const auto out_shape = [&](std::int64_t heads, std::int64_t d) -> Shape {
    return nz ? Shape{rows, heads * d} : Shape{rows, heads, d};
  };
  const Shape table = make_table(from, lengths.tokens, shifts, width, bs, std::max(nb, nbv), random);

  const TensorSpec key_cache{"key_cache", key_type, cache_shape(nb, h, dk, key_type), from.text("kc", "")};
  const TensorSpec value_cache{"value_cache", value_type, cache_shape(nbv, hv, dv, value_type),
                               from.text("vc", "")};
  const TensorPair caches = instance.add_pair(from, "cat_cache", false, key_cache, &value_cache);
  const std::size_t block_tables =
      instance.add_tensor("block_tables", false, index_type, Shape{batches, width}, from.text("bt", ""));
  const std::size_t seq_lens =
      instance.add_tensor("seq_lens", false, index_type,
                          Shape{static_cast<std::int64_t>(lengths.stored.size())}, from.text("sl", ""));
  std::size_t seq_offset = 0;
  if (has_offset) {
    seq_offset = instance.add_tensor("seq_offset", false, index_type, Shape{batches}, from.text("so", ""));
    instance.store(seq_offset, offsets);
  }
  const TensorSpec key{"key", key_type, out_shape(h, dk), from.text("k", "")};
  const TensorSpec value{"value", value_type, out_shape(hv, dv), from.text("v", "")};
  const TensorPair outputs = instance.add_pair(from, "cat_out", true, key, &value);
  instance.store(block_tables, table);
  instance.store(seq_lens, lengths.stored);
  fill_named_blocks(instance, caches.first, table);
  fill_named_blocks(instance, caches.second, table);

  auto args = std::make_shared<GatherPaKvCacheArgs>();
  args->key_cache = instance.view(caches.first);
  args->value_cache = instance.view(caches.second);
  args->block_tables = instance.view(block_tables);
  args->seq_lens = instance.view(seq_lens);
  args->key = instance.view(outputs.first);
  args->value = instance.view(outputs.second);
  if (has_offset) args->seq_offset = instance.view(seq_offset);
  args->cache_mode = nz ? CacheMode::kPaNz : CacheMode::kNorm;
  args->is_seq_lens_cumsum = lengths.cumsum;
  args->index_policy = policy;

  instance.seal();
  const std::string broken = from.text("break", "");
  if (!broken.empty()) {
    const auto rules = gather_breakers();
    const auto rule =
        std::find_if(rules.begin(), rules.end(), [&](const auto& r) { return broken == r.name; });
    if (rule == rules.end()) from.fail("break", fmt::format("no rule '{}'", broken));
    instance.expect.code = rule->code;
    rule->apply(*args, instance.expect.words);
    connect(instance, args);
    return made;
  }

  GatherOracle oracle;
  oracle.key_cache = instance.array(caches.first);
  oracle.value_cache = instance.array(caches.second);
  oracle.block_tables = instance.array(block_tables);
  oracle.seq_lens = instance.array(seq_lens);
  if (has_offset) oracle.seq_offset = instance.array(seq_offset);
  oracle.key = instance.expected_array(outputs.first);
  oracle.value = instance.expected_array(outputs.second);
  oracle.nz = nz;
  oracle.cumsum = lengths.cumsum;
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
  connect(instance, args);
  return made;
}

std::vector<std::string> implementation_names() {
  std::vector<std::string> names;
  for (const auto& implementation : internal::gather_pa_kv_cache_cpu())
    names.emplace_back(implementation.name);
  return names;
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
      implementation_names,
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

  Shape lens(to_size(random.between(1, 6)));
  for (std::int64_t& length : lens) length = some(4) ? 0 : random.between(1, 3 * bs + 1);
  const std::int64_t sum = std::accumulate(lens.begin(), lens.end(), std::int64_t{0});
  const auto batches = static_cast<std::int64_t>(lens.size());
  const bool cumsum = some(2);
  if (cumsum && some(5)) {  // sums that decrease, start below zero, overshoot
    Shape sums;
    for (std::int64_t i = 0; i <= batches; ++i) sums.push_back(random.between(-bs - 2, sum + 3));
    if (wide && some(4)) sums.front() = -(std::int64_t{1} << 62);
    if (wide && some(4)) sums.back() = std::numeric_limits<std::int64_t>::max();
    made.set("sums", print_integers(sums));
    made.set("n", random.between(0, sum + 4));
  } else {
    if (!cumsum && some(6)) random.pick(std::vector<std::int64_t*>{&lens.front(), &lens.back()})[0] = -3;
    if (!cumsum && wide && some(8)) lens.back() = std::numeric_limits<std::int64_t>::max();
    if (cumsum) made.set("cumsum", 1);
    if (cumsum && some(3)) made.set("base", random.between(1, 5));
    made.set("lens", print_integers(lens));
    if (lens.back() > (1 << 20)) {
      made.set("n", sum + random.between(-2, 9) + 2);
    } else if (some(2)) {
      made.set("extra", random.between(-bs - 1, bs + 1));
    }
  }
  const std::int64_t width = random.between(1, 4);
  if (some(2)) made.set("w", width);
  if (some(3)) {
    Shape offsets;
    for (std::int64_t i = 0; i < batches; ++i) offsets.push_back(random.between(0, 2 * bs + 1));
    if (some(4)) offsets.front() = random.pick(Shape{-1, -bs, -5 * bs, 100 * bs});
    if (wide && some(6))
      offsets.back() = random.pick(
          Shape{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()});
    made.set("offset", print_integers(offsets));
  }
  if (some(3)) made.set("nb", random.between(0, 6));
  if (some(4)) made.set("nbv", random.between(0, 6));
  if (some(3)) made.set("table", random.pick(std::vector<std::string>{"dup", "seq", "same"}));
  if (some(4)) {
    std::string ids;
    const std::int64_t n = random.between(1, 8);
    for (std::int64_t i = 0; i < n; ++i) {
      const Shape bad = {-1, 7, std::numeric_limits<std::int32_t>::max(), wide ? std::int64_t{1} << 40 : -5};
      ids += fmt::format("{}{}", i == 0 ? "" : ";", some(4) ? random.pick(bad) : random.between(0, 5));
    }
    made.set("table", ids);
  }
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
  if (some(3)) {
    made.set("bt", random_layout(random, 2));
    made.set("sl", random_layout(random, 1));
  }
  made.set("guard", random.pick(std::vector<std::string>{"canary", "canary", "before", "after"}));
  if (some(2)) {
    Shape aligns;
    for (int i = 0; i < 7; ++i) aligns.push_back(random.between(0, 63));
    made.set("align", print_integers(aligns));
  }
  if (some(4)) made.set("streaming", 1);
  if (some(4)) made.set("bound", 0);
  made.set("seed", static_cast<std::int64_t>(seed));
  return made;
}

}  // namespace kvferry::harness
