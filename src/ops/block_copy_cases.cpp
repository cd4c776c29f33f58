// SPDX-License-Identifier: Apache-2.0
//
// From a case of copy_blocks or swap_blocks to an Instance.
#include "ops/block_copy_cases.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "harness/operator_cases.hpp"
#include "harness/random.hpp"
#include "ops/block_copy_oracle.hpp"

namespace kvferry::harness {
namespace {

constexpr std::array kKeys = {
    KeyHelp{"caches", "tensors, or pairs of them (default: one for each shape)"},
    KeyHelp{"shape",
            "a block's dimensions, a list; several are joined by '/' and dealt out (default 4;2;16)"},
    KeyHelp{"dtype",
            "of the caches, dealt out: f16 bf16 f32 i8 u8 i16 u16 i32 u32 hif8 e5m2 e4m3 (default f16)"},
    KeyHelp{"idx", "dtype of mapping: i32, i64 (default i32)"},
    KeyHelp{"n", "pairs (default: as many as pairs lists, else 4)"},
    KeyHelp{"nb", "blocks (default: room for the pairs); of swap_blocks: of src"},
    KeyHelp{"nbd", "swap_blocks: blocks of dst (default nb)"},
    KeyHelp{"pairs",
            "random, seq (one run), runs (short ones), or source/destination joined by ';', dealt out"},
    KeyHelp{"put", "single pairs, pair/source/destination joined by ';'"},
    KeyHelp{"policy", "default, report, reject"},
    KeyHelp{"count", "value of the count tensor"},
    KeyHelp{"ct", "dtype of the count tensor: i32, i64 (default i32)"},
    KeyHelp{"crank", "rank of the count tensor: 0 or 1 (default 0)"},
    KeyHelp{"l",
            "layouts of the caches (swap_blocks: of dst), joined by '/' and dealt out (words: "
            "harness/layout.hpp)"},
    KeyHelp{"sl", "swap_blocks: layouts of src"},
    KeyHelp{"ml", "layout of mapping"},
    KeyHelp{"break", "break one rule of plan(), see block_copy_breakers() and each operator's own"},
};

constexpr std::int64_t kAny = std::int64_t{1} << 40;

using Shape = std::vector<std::int64_t>;

bool is_list(const std::string& pairs) {
  return pairs.find('/') != std::string::npos;
}

// The pairs as a flat list. Sources come from [0, sources), destinations from [first, first + destinations).
Shape make_pairs(const Case& from, std::int64_t n, std::int64_t sources, std::int64_t first,
                 std::int64_t destinations, Random& random) {
  const std::string kind = from.text("pairs", "random");
  Shape pairs;
  const auto add = [&](std::int64_t src, std::int64_t dst) {
    pairs.push_back(src);
    pairs.push_back(dst);
  };
  const auto parse = [&](const char* key, const std::string& text, std::size_t parts) {
    Shape numbers;
    for (const std::string& part : split(text, '/')) numbers.push_back(parse_integer(part));
    if (numbers.size() != parts) from.fail(key, fmt::format("'{}' does not have {} parts", text, parts));
    return numbers;
  };
  if (is_list(kind)) {
    const std::vector<std::string> listed = split(kind, ';');
    for (std::int64_t p = 0; p < n; ++p) {
      const Shape pair = parse("pairs", listed[to_size(p) % listed.size()], 2);
      add(pair[0], pair[1]);
    }
  } else if (kind == "seq" || kind == "runs" || kind == "random") {
    if (n > 0 && (destinations < n || sources < 1))
      from.fail("pairs", fmt::format("{} blocks are too few for {} pairs", destinations, n));
    std::unordered_set<std::int64_t> used;
    for (std::int64_t p = 0, spare = destinations - n, dst = first; p < n;) {
      if (kind == "seq") {
        add(p % sources, first + p);
        ++p;
      } else if (kind == "random") {
        const std::int64_t at = random.between(0, destinations - 1);
        if (!used.insert(at).second) continue;
        add(random.between(0, sources - 1), first + at);
        ++p;
      } else {
        const std::int64_t gap = random.between(0, std::min<std::int64_t>(spare, 2));
        spare -= gap;
        dst += gap;
        const std::int64_t length = std::min({random.between(1, 6), n - p, sources});
        const std::int64_t src = random.between(0, sources - length);
        for (std::int64_t i = 0; i < length; ++i) add(src + i, dst++);
        p += length;
      }
    }
  } else {
    from.fail("pairs", fmt::format("'{}' is none of: random, seq, runs, a list of source/destination", kind));
  }
  for (const std::string& put : from.texts("put", {})) {
    const Shape parts = parse("put", put, 3);
    if (parts[0] < 0 || parts[0] >= n) from.fail("put", fmt::format("no pair {}", parts[0]));
    pairs[to_size(2 * parts[0])] = parts[1];
    pairs[to_size(2 * parts[0] + 1)] = parts[2];
  }
  return pairs;
}

// The n-th of what is dealt out.
template <class T>
const T& dealt(const std::vector<T>& values, std::int64_t n) {
  return values[to_size(n) % values.size()];
}

// Sparse inputs are zero: the blocks that are read get bytes of their own.
void fill_sparse_sources(Instance& instance, std::size_t tensor, const Shape& pairs, Random& random) {
  if (instance.storages[instance.tensors[tensor].storage].live.placement() != Placement::kSparse) return;
  const Array array = instance.array(tensor);
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    if (pairs[i] < 0 || pairs[i] >= array.dim(0)) continue;
    for_each_element(array, pairs[i], array, pairs[i], [&](std::byte* element, std::byte*) {
      const std::uint64_t bytes = random.next();
      std::memcpy(element, &bytes, to_size(array.item));
    });
  }
}

}  // namespace

std::span<const KeyHelp> block_copy_keys() {
  return kKeys;
}

std::vector<BlockCopyBreaker> breakers_of(const BlockCopyFront& front) {
  const auto common = block_copy_breakers();
  std::vector<BlockCopyBreaker> rules(common.begin(), common.end());
  rules.insert(rules.end(), front.breakers.begin(), front.breakers.end());
  return rules;
}

std::unique_ptr<Instance> make_block_copy(const BlockCopyFront& front, const Case& from) {
  auto made = std::make_unique<Instance>(from);
  Instance& instance = *made;
  Random random(instance.seed() ^ 0xb10c);

  std::vector<Shape> shapes;
  for (const std::string& text : split(from.text("shape", "4;2;16"), '/'))
    shapes.push_back(text.empty() ? Shape{} : parse_integers(text));
  std::vector<DType> types;
  for (const std::string& text : from.texts("dtype", {"f16"})) {
    const auto names = data_types();
    const auto type =
        std::find_if(names.begin(), names.end(), [&](const auto& t) { return text == t.first; });
    if (type == names.end()) from.fail("dtype", fmt::format("'{}' is no dtype", text));
    types.push_back(type->second);
  }
  if (types.empty()) from.fail("dtype", "the list is empty");
  const std::int64_t caches = from.integer("caches", static_cast<std::int64_t>(shapes.size()), 0, 10000);
  const std::string kind = from.text("pairs", "random");
  const std::int64_t listed = is_list(kind) ? static_cast<std::int64_t>(split(kind, ';').size()) : 4;
  const std::int64_t n = from.integer("n", listed, 0, 1 << 24);
  const std::int64_t nb = from.integer("nb", 2 * n + 5, 0, kAny);
  const std::int64_t nbd = front.one_pool ? nb : from.integer("nbd", nb, 0, kAny);
  // Within one pool the upper half takes copies of the lower one.
  const std::int64_t half = front.one_pool ? nb / 2 : 0;
  const Shape pairs = make_pairs(from, n, front.one_pool ? half : nb, half, nbd - half, random);

  auto call = std::make_shared<BlockCopyCall>();
  BlockCopyOracle oracle;
  std::vector<std::size_t> sources;
  std::vector<std::size_t> destinations;
  const std::vector<std::string> layouts = split(from.text("l", ""), '/');
  const std::vector<std::string> src_layouts = front.one_pool ? layouts : split(from.text("sl", ""), '/');
  const auto add = [&](const char* name, std::int64_t i, bool output, std::int64_t blocks,
                       const std::vector<std::string>& words) {
    Shape shape = dealt(shapes, i);
    shape.insert(shape.begin(), blocks);
    return instance.add_tensor(fmt::format("{}[{}]", name, i), output, dealt(types, i), shape,
                               dealt(words, i));
  };
  for (std::int64_t i = 0; i < caches; ++i) {
    if (!front.one_pool) {
      sources.push_back(add("src", i, false, nb, src_layouts));
      fill_sparse_sources(instance, sources.back(), pairs, random);
    }
    destinations.push_back(add(front.one_pool ? "caches" : "dst", i, true, nbd, layouts));
    if (front.one_pool) fill_sparse_sources(instance, destinations.back(), pairs, random);
  }
  const std::size_t mapping =
      instance.add_tensor("mapping", false, from.choice<DType>("idx", index_types(), DType::kInt32),
                          Shape{n, 2}, from.text("ml", ""));
  instance.store(mapping, pairs);
  call->mapping = instance.view(mapping);
  oracle.mapping = instance.array(mapping);
  if (from.has("count")) {
    const DType type = from.choice<DType>("ct", index_types(), DType::kInt32);
    const bool scalar = from.integer("crank", 0, 0, 1) == 0;
    const std::size_t tensor = instance.add_tensor("count", false, type, scalar ? Shape{} : Shape{1}, "");
    oracle.count = from.integer("count", 0);
    instance.store(tensor, Shape{*oracle.count});
    call->count = instance.view(tensor);
  }
  call->policy = from.choice<IndexPolicy>("policy", kIndexPolicies, IndexPolicy::kDefault);
  for (const std::size_t tensor : sources) call->src.push_back(instance.view(tensor));
  for (const std::size_t tensor : destinations) call->dst.push_back(instance.view(tensor));

  instance.seal();
  if (break_rule(from, breakers_of(front), *call, instance)) {
    for (std::string& word : instance.expect.words) {
      if (word.starts_with('[')) word.insert(0, front.one_pool ? "caches" : "dst");
    }
    front.connect(instance, call);
    return made;
  }

  for (const std::size_t tensor : front.one_pool ? destinations : sources)
    oracle.src.push_back(instance.array(tensor));
  for (const std::size_t tensor : destinations) oracle.dst.push_back(instance.expected_array(tensor));
  oracle.one_pool = front.one_pool;
  oracle.reject = call->policy == IndexPolicy::kReject;
  oracle.run();
  if (instance.poison_touched()) oracle.run();
  if (!oracle.refusal.empty()) instance.expect = {StatusCode::kIndex, Expectation::At::kRun, oracle.refusal};
  if (call->policy == IndexPolicy::kReport) instance.record = oracle.record;
  instance.bytes_moved = oracle.bytes_moved;
  for (const std::int64_t block : oracle.open) {
    for (const std::size_t tensor : destinations) {
      const Array array = instance.expected_array(tensor);
      for_each_element(array, block, array, block, [&](const std::byte* element, std::byte*) {
        instance.leave_open(tensor, element, array.item);
      });
    }
  }
  front.connect(instance, call);
  return made;
}

Case block_copy_random_case(const BlockCopyFront& front, std::uint64_t seed) {
  Random random(seed);
  Case made(to_string(front.op));
  const auto some = [&](std::int64_t n) { return random.one_in(n); };
  const auto types = data_types();

  std::vector<std::string> shapes;
  std::vector<std::string> dtypes;
  std::vector<std::string> layouts;
  std::vector<std::string> src_layouts;
  const std::int64_t count = some(20) ? 0 : random.between(1, 4);
  for (std::int64_t i = 0; i < std::max<std::int64_t>(count, 1); ++i) {
    Shape shape(to_size(some(8) ? random.between(4, 7) : random.between(0, 3)));
    std::int64_t elements = 1;
    for (std::int64_t& length : shape) {
      length = some(40) ? 0 : elements > 400 ? random.between(1, 2) : random.between(1, some(4) ? 60 : 9);
      elements *= length;
    }
    const int rank = static_cast<int>(shape.size()) + 1;
    shapes.push_back(print_integers(shape));
    dtypes.emplace_back(types[to_size(random.between(0, static_cast<std::int64_t>(types.size()) - 1))].first);
    const bool same = some(3);
    layouts.push_back(some(2) ? random_layout(random, rank) : std::string());
    src_layouts.push_back(same || some(2) ? layouts.back() : random_layout(random, rank));
  }
  made.set("shape", fmt::format("{}", fmt::join(shapes, "/")));
  made.set("dtype", fmt::format("{}", fmt::join(dtypes, ";")));
  made.set("l", fmt::format("{}", fmt::join(layouts, "/")));
  if (!front.one_pool) made.set("sl", fmt::format("{}", fmt::join(src_layouts, "/")));
  if (count == 0) made.set("caches", 0);

  const bool wide = some(2);
  made.set("idx", wide ? "i64" : "i32");
  const std::int64_t n = some(10) ? random.between(0, 60) : random.between(0, 12);
  const std::int64_t nb = 2 * n + random.between(1, 5);
  const std::int64_t nbd = front.one_pool ? nb : std::max<std::int64_t>(n, nb + random.between(-4, 4));
  made.set("n", n);
  made.set("nb", nb);
  if (!front.one_pool) made.set("nbd", nbd);
  const std::string kind = random.pick(std::vector<std::string>{"random", "seq", "runs", "list", "list"});
  if (kind == "list" && n > 0) {  // repeats, padding, ids out of range, no-ops
    const Shape odd = {-1, -7, nb, nbd, nb + 3, wide ? std::int64_t{1} << 40 : (std::int64_t{1} << 31) - 1};
    const bool clash = some(2);
    std::vector<std::string> pairs;
    for (std::int64_t p = 0; p < n; ++p) {
      const auto id = [&](std::int64_t first, std::int64_t blocks) {
        return some(8) ? random.pick(odd) : random.between(clash ? 0 : first, blocks - 1);
      };
      const std::int64_t src = id(0, nb);
      const std::int64_t dst = some(10) ? src : clash ? id(0, nbd) : std::min(p + nbd - n, nbd - 1);
      pairs.push_back(fmt::format("{}/{}", src, dst));
    }
    made.set("pairs", fmt::format("{}", fmt::join(pairs, ";")));
  } else if (kind != "list") {
    made.set("pairs", kind);
    if (n > 0 && some(3)) made.set("put", fmt::format("{}/-1/0;0/0/-3", random.between(0, n - 1)));
  }
  made.set("policy", random.pick(std::vector<std::string>{"default", "report", "reject"}));
  if (some(4)) {
    made.set("count", random.between(-2, n + 2));
    if (some(2)) made.set("ct", "i64");
    if (some(2)) made.set("crank", 1);
  }
  if (some(3)) made.set("ml", random_layout(random, 2));
  set_random_memory(made, random, 5);
  if (some(4)) made.set("streaming", 1);
  if (some(4)) made.set("bound", 0);
  made.set("seed", static_cast<std::int64_t>(seed));
  return made;
}

}  // namespace kvferry::harness
