// SPDX-License-Identifier: Apache-2.0
//
// From a scatter case to an Instance.
#include "ops/scatter_pa_kv_cache/scatter_pa_kv_cache_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "harness/operator_cases.hpp"
#include "harness/random.hpp"
#include "ops/registry.hpp"
#include "ops/scatter_pa_kv_cache/scatter_pa_kv_cache_oracle.hpp"
#include "ops/scatter_pa_kv_cache/scatter_pa_kv_cache_plan.hpp"

namespace kvferry::harness {
namespace {

constexpr std::array kKeys = {
    KeyHelp{"mode", "nd, nhsd, nct, nz (4-D cache), nz5 (5-D cache) (default nd)"},
    KeyHelp{"dtype", "of key: f16 bf16 f32 i8 u8 i16 u16 i32 u32 hif8 e5m2 e4m3 (default f16)"},
    KeyHelp{"vdtype", "of value (default: dtype)"},
    KeyHelp{"idx", "dtype of slot_mapping: i32, i64 (default i32)"},
    KeyHelp{"t", "slots (default: as many as slots lists, else 9)"},
    KeyHelp{"tk", "rows of key (default t)"},
    KeyHelp{"tv", "rows of value (default t)"},
    KeyHelp{"bs", "tokens per block (default 4)"},
    KeyHelp{"h", "heads (default 2)"},
    KeyHelp{"dk", "head size of key (default 16)"},
    KeyHelp{"dv", "head size of value (default: dk)"},
    KeyHelp{"nb", "blocks of key_cache (default: room for twice the slots)"},
    KeyHelp{"nbv", "blocks of value_cache (default: nb)"},
    KeyHelp{"slots", "random (distinct), seq (0, 1, ...), runs (distinct, short runs), or a list"},
    KeyHelp{"put", "single slots, token/slot joined by ';'"},
    KeyHelp{"policy", "default, report, reject"},
    KeyHelp{"value", "both, or how the pair is absent: none (nullopt), rank0, empty (default both)"},
    KeyHelp{"k", "layout of key (words: harness/layout.hpp); not with nct"},
    KeyHelp{"v", "layout of value; not with nct"},
    KeyHelp{"kc", "layout of key_cache"},
    KeyHelp{"vc", "layout of value_cache"},
    KeyHelp{"sm", "layout of slot_mapping"},
    KeyHelp{"cat_rows", "key and value in one storage, joined along this axis"},
    KeyHelp{"cat_cache", "both caches in one storage, joined along this axis"},
    KeyHelp{"nct_strides", "elements from token to token, of key and value (default: dense)"},
    KeyHelp{"nct_offsets", "elements in front of the first token, of key and value (default 0)"},
    KeyHelp{"break", "break one rule of plan(), see scatter_breakers()"},
};

enum class Mode { kNd, kNhsd, kNct, kNz4, kNz5 };
constexpr std::array<std::pair<const char*, Mode>, 5> kModes = {
    {{"nd", Mode::kNd}, {"nhsd", Mode::kNhsd}, {"nct", Mode::kNct}, {"nz", Mode::kNz4}, {"nz5", Mode::kNz5}}};
constexpr std::int64_t kAny = std::int64_t{1} << 40;

using Shape = std::vector<std::int64_t>;

CacheLayout layout_of(Mode mode) {
  switch (mode) {
    case Mode::kNhsd:
      return CacheLayout::kNhsd;
    case Mode::kNz4:
      return CacheLayout::kNz4;
    case Mode::kNz5:
      return CacheLayout::kNz5;
    default:
      return CacheLayout::kNd;
  }
}

Shape cache_shape(const Case& from, Mode mode, std::int64_t blocks, std::int64_t bs, std::int64_t h,
                  std::int64_t d, DType type) {
  const std::int64_t e = 32 / item_bytes(type);
  switch (mode) {
    case Mode::kNhsd:
      return {blocks, h, bs, d};
    case Mode::kNz4:
      if (h * d % e != 0)
        from.fail("mode", fmt::format("nz needs heads * head size to be a multiple of {}", e));
      return {blocks, h * d / e, bs, e};
    case Mode::kNz5:
      if (d % e != 0) from.fail("mode", fmt::format("nz5 needs a head size that is a multiple of {}", e));
      return {blocks, h, d / e, bs, e};
    default:
      return {blocks, bs, h, d};
  }
}

// kNct: dense tokens at a fixed step. The harness sees them as such, the library gets `own` strides that say
// nothing.
std::size_t add_nct_rows(Instance& instance, const TensorSpec& side, std::int64_t tokens, std::int64_t stride,
                         std::int64_t offset) {
  const std::int64_t row = side.shape[1] * side.shape[2];
  Layout layout;
  layout.strides = {stride, side.shape[2], 1};
  layout.offset = offset;
  layout.storage_elements = tokens == 0 ? 0 : offset + (tokens - 1) * stride + row;
  const std::size_t storage =
      instance.add_storage(side.name, false, layout.storage_elements * item_bytes(side.dtype));
  Shape shape = side.shape;
  shape[0] = tokens;  // the rows behind T may lie outside the storage
  return instance.add_tensor_in(storage, side.name, side.dtype, shape, layout);
}

Shape make_slots(const Case& from, std::int64_t tokens, std::int64_t room, Random& random) {
  const std::string kind = from.text("slots", "random");
  Shape slots(to_size(tokens));
  if (kind.empty()) return slots;
  if (kind.find_first_of("0123456789") != std::string::npos) {
    const Shape list = parse_integers(kind);
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = list[i % list.size()];
  } else if (kind == "seq") {
    std::iota(slots.begin(), slots.end(), 0);
  } else if (kind == "random" || kind == "runs") {
    // Distinct starts of runs; a run has 1 to 5 slots.
    const std::int64_t run = kind == "runs" ? 5 : 1;
    if (room / run < tokens)
      from.fail("slots", fmt::format("{} slots are too few for {} tokens", room, tokens));
    std::unordered_set<std::int64_t> taken;
    for (std::size_t i = 0; i < slots.size();) {
      const std::int64_t start = random.between(0, room / run - 1) * run;
      if (!taken.insert(start).second) continue;
      for (std::int64_t n = random.between(1, run); n > 0 && i < slots.size(); --n)
        slots[i++] = start + run - n;
    }
  } else {
    from.fail("slots", fmt::format("'{}' is none of: random, seq, runs, a list", kind));
  }
  for (const std::string& put : from.texts("put", {})) {
    const std::vector<std::string> parts = split(put, '/');
    const std::int64_t token = parts.size() == 2 ? parse_integer(parts[0]) : -1;
    if (token < 0 || token >= tokens) from.fail("put", fmt::format("'{}' is no token/slot", put));
    slots[to_size(token)] = parse_integer(parts[1]);
  }
  return slots;
}

std::unique_ptr<Instance> make_scatter(const Case& from) {
  auto made = std::make_unique<Instance>(from);
  Instance& instance = *made;
  Random random(instance.seed() ^ 0x5ca);

  const Mode mode = from.choice<Mode>("mode", kModes, Mode::kNd);
  const DType key_type = from.choice<DType>("dtype", data_types(), DType::kFloat16);
  const DType index_type = from.choice<DType>("idx", index_types(), DType::kInt32);
  const IndexPolicy policy = from.choice<IndexPolicy>("policy", kIndexPolicies, IndexPolicy::kDefault);
  const std::string absent = from.text("value", "both");
  if (absent != "both" && absent != "none" && absent != "rank0" && absent != "empty") {
    from.fail("value", fmt::format("'{}' is none of: both, none, rank0, empty", absent));
  }
  const bool has_value = absent == "both";
  const DType value_type = has_value ? from.choice<DType>("vdtype", data_types(), key_type) : key_type;
  const std::string kind = from.text("slots", "random");
  const bool listed = kind.find_first_of("0123456789") != std::string::npos;
  const std::int64_t tokens =
      from.integer("t", listed ? static_cast<std::int64_t>(parse_integers(kind).size()) : 9, 0, kAny);
  const std::int64_t bs = from.integer("bs", 4, 1, kAny);
  const std::int64_t h = from.integer("h", 2, 0, kAny);
  const std::int64_t dk = from.integer("dk", 16, 0, kAny);
  const std::int64_t dv = has_value ? from.integer("dv", dk, 0, kAny) : dk;
  const std::int64_t spread = kind == "runs" ? 6 : 2;
  const std::int64_t nb = from.integer("nb", spread * ((tokens + bs - 1) / bs) + 1, 0, kAny);
  const std::int64_t nbv = has_value ? from.integer("nbv", nb, 0, kAny) : nb;
  const Shape slots = make_slots(from, tokens, std::min(nb, nbv) * bs, random);

  const TensorSpec key{"key", key_type, {from.integer("tk", tokens, 0, kAny), h, dk}, from.text("k", "")};
  TensorSpec value{"value", value_type, {tokens, h, dv}, ""};
  if (has_value) {
    value.shape[0] = from.integer("tv", tokens, 0, kAny);
    value.layout = from.text("v", "");
  }
  const TensorSpec* second = has_value ? &value : nullptr;
  TensorPair rows;
  Shape nct_strides = {h * dk, h * dv};
  Shape nct_offsets = {0, 0};
  if (mode == Mode::kNct) {
    nct_strides = from.integers("nct_strides", nct_strides);
    nct_offsets = from.integers("nct_offsets", nct_offsets);
    if (nct_strides.size() != 2 || nct_offsets.size() != 2)
      from.fail("nct_strides", "two numbers are needed");
    rows.first = add_nct_rows(instance, key, tokens, nct_strides[0], nct_offsets[0]);
    if (has_value) rows.second = add_nct_rows(instance, value, tokens, nct_strides[1], nct_offsets[1]);
  } else {
    rows = instance.add_pair(from, "cat_rows", false, key, second);
  }
  const std::size_t slot_mapping =
      instance.add_tensor("slot_mapping", false, index_type, Shape{tokens}, from.text("sm", ""));
  const TensorSpec key_cache{"key_cache", key_type, cache_shape(from, mode, nb, bs, h, dk, key_type),
                             from.text("kc", "")};
  TensorSpec value_cache{"value_cache", value_type, {}, ""};
  if (has_value) {
    value_cache.shape = cache_shape(from, mode, nbv, bs, h, dv, value_type);
    value_cache.layout = from.text("vc", "");
  }
  const TensorPair caches =
      instance.add_pair(from, "cat_cache", true, key_cache, has_value ? &value_cache : nullptr);
  instance.store(slot_mapping, slots);

  auto args = std::make_shared<ScatterPaKvCacheArgs>();
  args->key = instance.view(rows.first);
  args->key_cache = instance.view(caches.first);
  args->slot_mapping = instance.view(slot_mapping);
  if (has_value) {
    args->value = instance.view(rows.second);
    args->value_cache = instance.view(caches.second);
  } else if (absent == "rank0") {
    args->value = contiguous(static_cast<void*>(nullptr), key_type, {});
    args->value_cache = contiguous(static_cast<void*>(nullptr), key_type, {});
  } else if (absent == "empty") {
    args->value = contiguous(static_cast<void*>(nullptr), key_type, {0, h, dk});
    args->value_cache = contiguous(static_cast<void*>(nullptr), key_type, {0, bs, h, dk});
    args->value->device = args->value_cache->device = args->key.device;
  }
  if (mode == Mode::kNct) {
    // The mode ignores the strides of key and value: give dense ones, as CANN's callers do.
    const auto dense = [&](TensorView view, std::int64_t length) {
      TensorView result = contiguous(view.data, view.dtype, {length, view.dim(1), view.dim(2)});
      result.storage_elements = view.storage_elements;
      result.device = view.device;
      return result;
    };
    args->key = dense(args->key, key.shape[0]);
    if (args->value && has_value) args->value = dense(*args->value, value.shape[0]);
    args->nct_strides = {nct_strides[0], nct_strides[1]};
    args->nct_offsets = {nct_offsets[0], nct_offsets[1]};
  }
  args->cache_mode = mode == Mode::kNz4 || mode == Mode::kNz5 ? CacheMode::kPaNz : CacheMode::kNorm;
  args->scatter_mode = mode == Mode::kNhsd  ? ScatterMode::kNhsd
                       : mode == Mode::kNct ? ScatterMode::kNct
                                            : ScatterMode::kNone;
  args->index_policy = policy;

  instance.seal();
  if (break_rule(from, scatter_breakers(), *args, instance)) {
    connect<scatter_pa_kv_cache>(instance, args);
    return made;
  }

  ScatterOracle oracle;
  oracle.key = instance.array(rows.first);
  oracle.key_cache = instance.expected_array(caches.first);
  oracle.slots = instance.array(slot_mapping);
  if (has_value) {
    oracle.value = instance.array(rows.second);
    oracle.value_cache = instance.expected_array(caches.second);
  }
  oracle.layout = layout_of(mode);
  oracle.reject = policy == IndexPolicy::kReject;
  oracle.run();
  if (instance.poison_touched()) oracle.run();

  if (!oracle.refusal.empty()) instance.expect = {StatusCode::kIndex, Expectation::At::kRun, oracle.refusal};
  if (policy == IndexPolicy::kReport) instance.record = oracle.record;
  instance.bytes_moved = oracle.key_tokens * h * dk * item_bytes(key_type) +
                         oracle.value_tokens * h * dv * item_bytes(value_type);
  const auto open = [&](std::size_t tensor, const std::vector<ScatterOracle::Open>& tokens_open,
                        std::int64_t d) {
    const Array cache = instance.expected_array(tensor);
    for (const auto& [block, position] : tokens_open) {
      for (std::int64_t i = 0; i < h; ++i) {
        for (std::int64_t j = 0; j < d; ++j) {
          instance.leave_open(tensor, cache_element(cache, oracle.layout, d, block, position, i, j),
                              cache.item);
        }
      }
    }
  };
  open(caches.first, oracle.key_open, dk);
  if (has_value) open(caches.second, oracle.value_open, dv);
  connect<scatter_pa_kv_cache>(instance, args);
  return made;
}

}  // namespace

const OperatorInfo& scatter_pa_kv_cache_info() {
  static const OperatorInfo info = {
      Operator::kScatterPaKvCache,
      "scatter_pa_kv_cache",
      "new K and V tokens into the slots of paged caches",
      kKeys,
      scatter_registered_cases(),
      make_scatter,
      scatter_random_case,
      implementation_names<internal::scatter_pa_kv_cache_cpu>,
  };
  return info;
}

Case scatter_random_case(std::uint64_t seed) {
  Random random(seed);
  Case made("scatter_pa_kv_cache");
  const auto some = [&](std::int64_t n) { return random.one_in(n); };
  const std::string mode = random.pick(std::vector<std::string>{"nd", "nd", "nhsd", "nct", "nz", "nz5"});
  made.set("mode", mode);
  const bool nz = mode == "nz" || mode == "nz5";
  const auto types = data_types();
  const auto any_type = [&] {
    return types[to_size(random.between(0, static_cast<std::int64_t>(types.size()) - 1))];
  };
  const auto type = any_type();
  auto value_type = type;
  made.set("dtype", type.first);
  const bool has_value = !some(5);
  if (!has_value) {
    made.set("value", random.pick(std::vector<std::string>{"none", "rank0", "empty"}));
  } else if (some(4)) {
    value_type = any_type();
    made.set("vdtype", value_type.first);
  }
  const bool wide = some(2);
  made.set("idx", wide ? "i64" : "i32");
  const std::int64_t bs = random.pick(Shape{1, 2, 3, 4, 7, 8, 16, 33});
  const std::int64_t h = random.between(1, 4);
  made.set("bs", bs);
  made.set("h", h);
  const auto head_size = [&](DType dtype) {
    return nz        ? 32 / item_bytes(dtype) * random.between(1, 4)
           : some(8) ? random.between(1, 700)
                     : random.between(1, 40);
  };
  const std::int64_t dk = head_size(type.second);
  made.set("dk", dk);
  std::int64_t dv = dk;
  if (has_value && (nz || some(3))) made.set("dv", dv = head_size(value_type.second));
  const std::int64_t tokens = some(12) ? 0 : random.between(1, 40);
  made.set("t", tokens);
  if (some(3)) made.set("tk", tokens + random.between(0, 5));
  if (has_value && some(3)) made.set("tv", tokens + random.between(0, 5));
  const std::int64_t nb = 6 * ((tokens + bs - 1) / bs) + random.between(1, 3);
  made.set("nb", nb);
  if (has_value && some(4)) made.set("nbv", nb + random.between(0, 2));
  const std::string kind = random.pick(std::vector<std::string>{"random", "seq", "runs", "list"});
  if (kind == "list" && tokens > 0) {  // repeats, padding and slots out of range
    Shape slots;
    for (std::int64_t i = 0; i < tokens; ++i) {
      const Shape odd = {-1,
                         -7,
                         nb * bs,
                         nb * bs + 3,
                         wide ? std::int64_t{1} << 40 : std::numeric_limits<std::int32_t>::max(),
                         std::numeric_limits<std::int32_t>::min()};
      slots.push_back(some(6) ? random.pick(odd) : random.between(0, nb * bs - 1));
    }
    made.set("slots", print_integers(slots));
  } else {
    if (kind != "list") made.set("slots", kind);
    if (tokens > 0 && some(3)) made.set("put", fmt::format("{}/-1;0/-3", random.between(0, tokens - 1)));
  }
  made.set("policy", random.pick(std::vector<std::string>{"default", "report", "reject"}));
  if (mode == "nct") {
    if (some(2)) {
      made.set("nct_strides",
               fmt::format("{};{}", random.between(1, 3 * h * dk), random.between(1, 3 * h * dv)));
      made.set("nct_offsets", fmt::format("{};{}", random.between(0, 50), random.between(0, 50)));
    }
  } else if (some(2)) {
    made.set("k", random_layout(random, 3));
    if (has_value) made.set("v", random_layout(random, 3));
  }
  const int rank = mode == "nz5" ? 5 : 4;
  if (some(2)) {
    made.set("kc", random_layout(random, rank));
    if (has_value) made.set("vc", random_layout(random, rank));
  } else if (has_value && item_bytes(value_type.second) == item_bytes(type.second) && dv == dk && some(2)) {
    // K and V in one allocation.
    if (!made.has("nbv")) made.set("cat_cache", random.between(0, rank - 1));
    const bool rows_differ = made.has("tk") || made.has("tv") || made.has("k");
    if (mode != "nct" && !rows_differ) made.set("cat_rows", random.between(0, 2));
  }
  if (some(3)) made.set("sm", random_layout(random, 1));
  set_random_memory(made, random, 5);
  if (some(4)) made.set("streaming", 1);
  if (mode != "nct" && some(4)) made.set("bound", 0);
  made.set("seed", static_cast<std::int64_t>(seed));
  return made;
}

}  // namespace kvferry::harness
