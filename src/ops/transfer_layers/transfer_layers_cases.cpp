// SPDX-License-Identifier: Apache-2.0
//
// From a transfer_layers case to an Instance.
#include "ops/transfer_layers/transfer_layers_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "harness/operator_cases.hpp"
#include "harness/random.hpp"
#include "ops/paged_cases.hpp"
#include "ops/registry.hpp"
#include "ops/transfer_layers/transfer_layers_oracle.hpp"
#include "ops/transfer_layers/transfer_layers_plan.hpp"

namespace kvferry::harness {
namespace {

constexpr std::array kKeys = {
    KeyHelp{"dir", "out (pools to chunk), in (chunk to pools) (default out)"},
    KeyHelp{"chunk", "layout of the chunk: layer, page (default layer)"},
    KeyHelp{"dtype", "f16 bf16 f32 i8 u8 i16 u16 i32 u32 hif8 e5m2 e4m3 (default f16)"},
    KeyHelp{"idx", "dtype of block_ids: i32, i64 (default i32)"},
    KeyHelp{"l", "layers (default 3)"},
    KeyHelp{"values", "there are value pools, a flag (default 1)"},
    KeyHelp{"n", "entries of block_ids (default: as many as ids lists, else 5)"},
    KeyHelp{"nb", "blocks of a pool (default 2n)"},
    KeyHelp{"bs", "tokens per block (default 4)"},
    KeyHelp{"h", "heads (default 2)"},
    KeyHelp{"d", "head size (default 16)"},
    KeyHelp{"ids", "random (distinct), seq (0, 1, ...), or a list"},
    KeyHelp{"put", "single entries, index/id joined by ';'"},
    KeyHelp{"policy", "default, report, reject"},
    KeyHelp{"kc", "layouts of the key pools, joined by ';' and dealt out to the layers"},
    KeyHelp{"vc", "layouts of the value pools (default: kc)"},
    KeyHelp{"cat", "K and V pool of a layer in one storage, joined along this axis and laid out as kc"},
    KeyHelp{"c", "layout of the chunk's strides (words: harness/layout.hpp)"},
    KeyHelp{"bi", "layout of block_ids"},
    KeyHelp{"break", "break one rule of plan(), see transfer_layers_breakers()"},
};

constexpr std::array<std::pair<const char*, bool>, 2> kDirections = {{{"out", true}, {"in", false}}};
constexpr std::array<std::pair<const char*, bool>, 2> kChunks = {{{"layer", false}, {"page", true}}};

Shape make_ids(const Case& from, std::int64_t entries, std::int64_t blocks, Random& random) {
  const std::string kind = from.text("ids", "random");
  Shape ids(to_size(entries));
  if (kind.find_first_of("0123456789") != std::string::npos) {
    const Shape list = parse_integers(kind);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = list[i % list.size()];
  } else if (kind == "seq") {
    std::iota(ids.begin(), ids.end(), 0);
  } else if (kind == "random") {
    if (blocks < entries && blocks > 0)
      from.fail("ids", fmt::format("{} blocks are too few for {} entries", blocks, entries));
    Shape fresh(to_size(std::min<std::int64_t>(blocks, 1 << 22)));
    std::iota(fresh.begin(), fresh.end(), 0);
    random.shuffle(fresh);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = fresh.empty() ? 0 : fresh[i];
  } else {
    from.fail("ids", fmt::format("'{}' is none of: random, seq, a list", kind));
  }
  for (const std::string& put : from.texts("put", {})) {
    const std::vector<std::string> parts = split(put, '/');
    const std::int64_t entry = parts.size() == 2 ? parse_integer(parts[0]) : -1;
    if (entry < 0 || entry >= entries) from.fail("put", fmt::format("'{}' is no index/id", put));
    ids[to_size(entry)] = parse_integer(parts[1]);
  }
  return ids;
}

void connect(Instance& instance, const std::shared_ptr<const TransferLayersCall>& call) {
  instance.plan = [call](const Context& context) { return kvferry::plan(call->args(), context); };
  const auto pointers = std::make_shared<std::vector<void*>>(call->keys.size() + call->values.size());
  instance.run = [call, pointers](const Plan& plan, const Workspace& workspace, ErrorRecord* record,
                                  const Context& context) {
    TransferLayersBuffers b = buffers(call->args(), *pointers);
    b.workspace = workspace;
    b.error_record = record;
    return kvferry::run(plan, b, context);
  };
  instance.call = [call](ErrorRecord* record, const Context& context) {
    return transfer_layers(call->args(), context, record);
  };
}

std::unique_ptr<Instance> make_transfer_layers(const Case& from) {
  auto made = std::make_unique<Instance>(from);
  Instance& instance = *made;
  Random random(instance.seed() ^ 0x7f1);

  const bool to_chunk = from.choice<bool>("dir", kDirections, true);
  const bool page_first = from.choice<bool>("chunk", kChunks, false);
  const DType type = from.choice<DType>("dtype", data_types(), DType::kFloat16);
  const DType index_type = from.choice<DType>("idx", index_types(), DType::kInt32);
  const IndexPolicy policy = from.choice<IndexPolicy>("policy", kIndexPolicies, IndexPolicy::kDefault);
  const std::int64_t layers = from.integer("l", 3, 0, 1024);
  const bool with_values = from.flag("values", true);
  const std::string kind = from.text("ids", "random");
  const bool listed = kind.find_first_of("0123456789") != std::string::npos;
  const std::int64_t entries =
      from.integer("n", listed ? static_cast<std::int64_t>(parse_integers(kind).size()) : 5, 0, 1 << 22);
  const std::int64_t nb = from.integer("nb", 2 * entries, 0, kAnySize);
  const std::int64_t bs = from.integer("bs", 4, 1, kAnySize);
  const std::int64_t h = from.integer("h", 2, 0, kAnySize);
  const std::int64_t d = from.integer("d", 16, 0, kAnySize);
  const Shape ids = make_ids(from, entries, nb, random);

  const auto layouts = [&](const char* key, const std::vector<std::string>& otherwise) {
    std::vector<std::string> words = from.texts(key, otherwise);
    if (words.empty()) words.emplace_back();
    return words;
  };
  const std::vector<std::string> key_layouts = layouts("kc", {});
  const std::vector<std::string> value_layouts = with_values ? layouts("vc", key_layouts) : key_layouts;
  std::vector<std::size_t> keys, values;
  for (std::size_t l = 0; l < to_size(layers); ++l) {
    const std::string key_name = fmt::format("key_caches[{}]", l);
    const std::string value_name = fmt::format("value_caches[{}]", l);
    const TensorSpec key{key_name.c_str(), type, {nb, bs, h, d}, key_layouts[l % key_layouts.size()]};
    const TensorSpec value{value_name.c_str(), type, {nb, bs, h, d}, value_layouts[l % value_layouts.size()]};
    const TensorPair pools = instance.add_pair(from, "cat", !to_chunk, key, with_values ? &value : nullptr);
    keys.push_back(pools.first);
    if (with_values) values.push_back(pools.second);
  }
  const std::int64_t parts = with_values ? 2 : 1;
  const Shape chunk_shape =
      page_first ? Shape{entries, layers, parts, bs, h, d} : Shape{layers, entries, parts, bs, h, d};
  const std::size_t chunk = instance.add_tensor("chunk", to_chunk, type, chunk_shape, from.text("c", ""));
  const std::size_t block_ids =
      instance.add_tensor("block_ids", false, index_type, Shape{entries}, from.text("bi", ""));
  instance.store(block_ids, ids);
  if (to_chunk) {
    for (const auto& pools : {keys, values}) {
      for (const std::size_t pool : pools) instance.fill_named_blocks(pool, ids);
    }
  }

  auto call = std::make_shared<TransferLayersCall>();
  for (const std::size_t pool : keys) call->keys.push_back(instance.view(pool));
  for (const std::size_t pool : values) call->values.push_back(instance.view(pool));
  call->rest.chunk = instance.view(chunk);
  call->rest.block_ids = instance.view(block_ids);
  call->rest.chunk_layout = page_first ? ChunkLayout::kPageFirst : ChunkLayout::kLayerFirst;
  call->rest.direction = to_chunk ? TransferDirection::kPoolsToChunk : TransferDirection::kChunkToPools;
  call->rest.index_policy = policy;

  instance.seal();
  if (break_rule(from, transfer_layers_breakers(), *call, instance)) {
    connect(instance, call);
    return made;
  }

  TransferLayersOracle oracle;
  const auto array = [&](std::size_t tensor) {
    return instance.storages[instance.tensors[tensor].storage].output ? instance.expected_array(tensor)
                                                                      : instance.array(tensor);
  };
  for (const std::size_t pool : keys) oracle.keys.push_back(array(pool));
  for (const std::size_t pool : values) oracle.values.push_back(array(pool));
  oracle.chunk = array(chunk);
  oracle.ids = array(block_ids);
  oracle.page_first = page_first;
  oracle.to_chunk = to_chunk;
  oracle.reject = policy == IndexPolicy::kReject;
  oracle.run();
  if (instance.poison_touched()) oracle.run();

  if (!oracle.refusal.empty()) instance.expect = {StatusCode::kIndex, Expectation::At::kRun, oracle.refusal};
  if (policy == IndexPolicy::kReport) instance.record = oracle.record;
  instance.bytes_moved = oracle.elements_written * item_bytes(type);
  for (const std::int64_t id : oracle.open) {
    for (const auto& pools : {keys, values}) {
      for (const std::size_t tensor : pools) {
        const Array pool = instance.expected_array(tensor);
        for (std::int64_t i = 0; i < bs * h * d; ++i)
          instance.leave_open(tensor, pool.at({id, i / (h * d), i / d % h, i % d}), pool.item);
      }
    }
  }
  connect(instance, call);
  return made;
}

}  // namespace

const OperatorInfo& transfer_layers_info() {
  static const OperatorInfo info = {
      Operator::kTransferLayers,
      "transfer_layers",
      "blocks of many layers between paged pools and one chunk",
      kKeys,
      transfer_layers_registered_cases(),
      make_transfer_layers,
      transfer_layers_random_case,
      implementation_names<internal::transfer_layers_cpu>,
  };
  return info;
}

Case transfer_layers_random_case(std::uint64_t seed) {
  Random random(seed);
  Case made("transfer_layers");
  const auto some = [&](std::int64_t n) { return random.one_in(n); };
  made.set("dir", random.pick(std::vector<std::string>{"out", "in"}));
  if (some(2)) made.set("chunk", "page");
  const auto types = data_types();
  made.set("dtype", types[to_size(random.between(0, static_cast<std::int64_t>(types.size()) - 1))].first);
  const bool wide = some(2);
  made.set("idx", wide ? "i64" : "i32");
  const std::int64_t layers = some(12) ? 0 : random.between(1, 5);
  made.set("l", layers);
  const bool values = !some(3);
  if (!values) made.set("values", 0);
  const std::int64_t entries = some(12) ? 0 : random.between(1, 12);
  made.set("n", entries);
  const std::int64_t nb = entries + random.between(0, 6);
  made.set("nb", nb);
  made.set("bs", random.pick(Shape{1, 2, 3, 4, 7, 16}));
  made.set("h", some(20) ? 0 : random.between(1, 4));
  made.set("d", some(8) ? random.between(1, 400) : random.between(1, 40));
  if (some(3)) made.set("ids", "seq");
  if (entries > 0 && some(3)) {  // repeats, padding and ids out of range
    Shape ids;
    for (std::int64_t i = 0; i < entries; ++i) {
      const Shape odd = {-1,
                         -7,
                         nb,
                         nb + 3,
                         wide ? std::int64_t{1} << 40 : std::numeric_limits<std::int32_t>::max(),
                         wide ? -(std::int64_t{1} << 32) : std::numeric_limits<std::int32_t>::min()};
      ids.push_back(some(5) ? random.pick(odd) : random.between(0, std::max<std::int64_t>(nb - 1, 0)));
    }
    made.set("ids", print_integers(ids));
  }
  made.set("policy", random.pick(std::vector<std::string>{"default", "report", "reject"}));
  if (some(2)) {
    std::string layouts = random_layout(random, 4);
    for (std::int64_t i = random.between(0, 2); i > 0; --i)
      layouts += fmt::format(";{}", random_layout(random, 4));
    made.set("kc", layouts);
    if (values && some(2)) made.set("vc", random_layout(random, 4));
  }
  if (layers > 0 && values && !made.has("vc") && some(3)) made.set("cat", random.between(0, 3));
  if (some(3)) made.set("c", random_layout(random, 6));
  if (some(3)) made.set("bi", random_layout(random, 1));
  set_random_memory(made, random, 5);
  if (some(4)) made.set("streaming", 1);
  if (some(4)) made.set("bound", 0);
  made.set("seed", static_cast<std::int64_t>(seed));
  return made;
}

}  // namespace kvferry::harness
