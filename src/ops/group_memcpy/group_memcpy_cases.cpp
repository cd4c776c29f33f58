// SPDX-License-Identifier: Apache-2.0
//
// From a group_memcpy case to an Instance.
#include "ops/group_memcpy/group_memcpy_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <utility>

#include "harness/operator_cases.hpp"
#include "harness/random.hpp"
#include "ops/group_memcpy/group_memcpy_oracle.hpp"
#include "ops/group_memcpy/group_memcpy_plan.hpp"
#include "ops/registry.hpp"

namespace kvferry::harness {
namespace {

constexpr std::array kKeys = {
    KeyHelp{"h", "pairs (default: as many as sizes lists, or one for each of sa x da)"},
    KeyHelp{"w", "bytes of every pair (default 64)"},
    KeyHelp{"sizes", "bytes of each pair, a list dealt out in turn: the form with sizes"},
    KeyHelp{"sa", "byte offsets of the sources from a multiple of 64, a list (default 0)"},
    KeyHelp{"da", "byte offsets of the destinations; pair p has the p-th combination of sa x da (default 0)"},
    KeyHelp{"fan", "distinct sources, dealt out in turn (default h)"},
    KeyHelp{"pack", "destinations lie back to back, a flag (default 0: at least one byte between them)"},
    KeyHelp{"order", "of sources and destinations in memory: seq, random (default random)"},
    KeyHelp{"lone", "every source and destination is an allocation of its own, a flag"},
    KeyHelp{
        "fold",
        "destinations (and sources above 1 GiB) are one piece of this many bytes, mapped again and again"},
    KeyHelp{"table", "shape of addr_table: flat ([2H]), pairs ([H, 2]) (default flat)"},
    KeyHelp{"tt", "dtype of addr_table: i64, u64 (default i64)"},
    KeyHelp{"tl", "layout of addr_table (words: harness/layout.hpp)"},
    KeyHelp{"szl", "layout of sizes"},
    KeyHelp{"count", "value of the count tensor"},
    KeyHelp{"ct", "dtype of the count tensor: i32, i64 (default i32)"},
    KeyHelp{"crank", "rank of the count tensor: 0 or 1 (default 0)"},
    KeyHelp{"host_count", "GroupMemcpyArgs::host_count"},
    KeyHelp{"skip_null", "a flag"},
    KeyHelp{"checked", "a flag"},
    KeyHelp{"null_src", "pairs whose source is null, a list"},
    KeyHelp{"null_dst", "pairs whose destination is null, a list"},
    KeyHelp{"same", "pairs whose source is their destination, a list"},
    KeyHelp{"move",
            "pair/src|dst/like-pair/src|dst/bytes joined by ';': an address becomes another one plus bytes"},
    KeyHelp{"raw", "pair/src|dst/address joined by ';'"},
    KeyHelp{"break", "break one rule of plan(), see group_memcpy_breakers()"},
};

using Shape = std::vector<std::int64_t>;

constexpr std::array<std::pair<const char*, DType>, 2> kTableTypes = {
    {{"i64", DType::kInt64}, {"u64", DType::kUInt64}}};
constexpr std::array<std::pair<const char*, bool>, 2> kTableShapes = {{{"flat", false}, {"pairs", true}}};

// Offsets of pieces in an arena: multiples of 64 plus `shifts`, or back to back.
struct Arena {
  Shape offsets;
  std::int64_t bytes = 0;
};

Arena make_arena(const Shape& sizes, const Shape& shifts, bool pack, bool shuffle, Random& random) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (shuffle) random.shuffle(order);
  Arena arena;
  arena.offsets.resize(sizes.size());
  for (const std::size_t i : order) {
    if (!pack) arena.bytes = (arena.bytes + 64) / 64 * 64 + shifts[i];
    arena.offsets[i] = arena.bytes;
    arena.bytes += sizes[i];
  }
  return arena;
}

std::vector<std::string> parts_of(const Case& from, const char* key, const std::string& text, std::size_t n) {
  std::vector<std::string> parts = split(text, '/');
  if (parts.size() != n) from.fail(key, fmt::format("'{}' does not have {} parts", text, n));
  return parts;
}

std::size_t side_of(const Case& from, const char* key, const std::string& text) {
  if (text != "src" && text != "dst") from.fail(key, fmt::format("'{}' is neither src nor dst", text));
  return text == "src" ? 0 : 1;
}

void connect(Instance& instance, const std::shared_ptr<const GroupMemcpyArgs>& args) {
  instance.args = args;
  instance.plan = [args](const Context& context) { return kvferry::plan(*args, context); };
  instance.run = [args](const Plan& plan, const Workspace& workspace, ErrorRecord*, const Context& context) {
    GroupMemcpyBuffers pointers = buffers(*args);
    pointers.workspace = workspace;
    return kvferry::run(plan, pointers, context);
  };
  instance.call = [args](ErrorRecord*, const Context& context) { return group_memcpy(*args, context); };
}

std::unique_ptr<Instance> make_group_memcpy(const Case& from) {
  auto made = std::make_unique<Instance>(from);
  Instance& instance = *made;
  Random random(instance.seed() ^ 0x9f0);

  const Shape listed = from.integers("sizes", {});
  const bool has_sizes = from.has("sizes");
  const Shape sa = from.integers("sa", {0});
  const Shape da = from.integers("da", {0});
  if (sa.empty() || da.empty()) from.fail("sa", "an empty list");
  const auto combinations = static_cast<std::int64_t>(sa.size() * da.size());
  const std::int64_t h =
      from.integer("h",
                   has_sizes ? std::max<std::int64_t>(combinations, static_cast<std::int64_t>(listed.size()))
                             : combinations,
                   0, 1 << 24);
  const std::int64_t w = has_sizes ? 0 : from.integer("w", 64, 0);
  if (has_sizes && listed.empty() && h > 0) from.fail("sizes", "an empty list");
  Shape sizes(to_size(h), w);
  for (std::size_t p = 0; has_sizes && p < sizes.size(); ++p) sizes[p] = listed[p % listed.size()];
  Shape room = sizes;  // memory also for pairs whose size is refused
  for (std::int64_t& bytes : room) bytes = std::max<std::int64_t>(bytes, 0);
  // A null pair touches nothing: it may claim to be larger than any memory.
  for (const char* key : {"null_src", "null_dst"}) {
    for (const std::int64_t p : from.integers(key, {})) {
      if (p >= 0 && p < h && sizes[to_size(p)] > (std::int64_t{1} << 40)) room[to_size(p)] = 0;
    }
  }

  // Addresses, [pair][source or destination].
  std::vector<std::array<std::uint64_t, 2>> addresses(to_size(h));
  const auto number = [](const std::byte* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
  const std::int64_t fan = std::min(h, from.integer("fan", h, 1));
  const std::int64_t fold = from.integer("fold", 0, 0);
  const std::string order = from.text("order", "random");
  if (order != "random" && order != "seq") from.fail("order", "neither seq nor random");
  if (from.flag("lone", false)) {
    if (h > 64) from.fail("lone", "at most 64 pairs");
    for (std::int64_t p = 0; p < h; ++p) {
      const std::size_t src = instance.add_storage(fmt::format("source {}", p), false, room[to_size(p)]);
      const std::size_t dst = instance.add_storage(fmt::format("destination {}", p), true, room[to_size(p)]);
      addresses[to_size(p)] = {number(instance.storages[src].live.data()),
                               number(instance.storages[dst].live.data())};
    }
  } else {
    const auto ns = static_cast<std::int64_t>(sa.size());
    const auto nd = static_cast<std::int64_t>(da.size());
    Shape src_room(to_size(fan), 0);
    Shape src_shift(to_size(fan), 0);
    Shape dst_shift(to_size(h), 0);
    for (std::int64_t p = 0; p < h; ++p) {
      src_room[to_size(p % fan)] = std::max(src_room[to_size(p % fan)], room[to_size(p)]);
      src_shift[to_size(p % fan)] = sa[to_size(p / nd % ns)];
      dst_shift[to_size(p)] = da[to_size(p % nd)];
    }
    const bool pack = from.flag("pack", false);
    const bool shuffle = order == "random";
    const Arena sources = make_arena(src_room, src_shift, pack, shuffle, random);
    const Arena destinations = make_arena(room, dst_shift, pack, shuffle, random);
    const std::size_t src = fold > 0 && sources.bytes > (1 << 30)
                                ? instance.add_folded("sources", false, sources.bytes, fold)
                                : instance.add_storage("sources", false, sources.bytes);
    const std::size_t dst = fold > 0 ? instance.add_folded("destinations", true, destinations.bytes, fold)
                                     : instance.add_storage("destinations", true, destinations.bytes);
    for (std::int64_t p = 0; p < h; ++p) {
      addresses[to_size(p)] = {number(instance.storages[src].live.data() + sources.offsets[to_size(p % fan)]),
                               number(instance.storages[dst].live.data() + destinations.offsets[to_size(p)])};
    }
  }
  const auto pair_at = [&](const char* key, std::int64_t p) -> std::array<std::uint64_t, 2>& {
    if (p < 0 || p >= h) from.fail(key, fmt::format("no pair {}", p));
    return addresses[to_size(p)];
  };
  for (const std::int64_t p : from.integers("same", {})) pair_at("same", p)[0] = pair_at("same", p)[1];
  for (const std::int64_t p : from.integers("null_src", {})) pair_at("null_src", p)[0] = 0;
  for (const std::int64_t p : from.integers("null_dst", {})) pair_at("null_dst", p)[1] = 0;
  for (const std::string& text : from.texts("move", {})) {
    const auto parts = parts_of(from, "move", text, 5);
    pair_at("move", parse_integer(parts[0]))[side_of(from, "move", parts[1])] =
        pair_at("move", parse_integer(parts[2]))[side_of(from, "move", parts[3])] +
        static_cast<std::uint64_t>(parse_integer(parts[4]));
  }
  for (const std::string& text : from.texts("raw", {})) {
    const auto parts = parts_of(from, "raw", text, 3);
    pair_at("raw", parse_integer(parts[0]))[side_of(from, "raw", parts[1])] =
        static_cast<std::uint64_t>(parse_integer(parts[2]));
  }

  const DType table_type = from.choice<DType>("tt", kTableTypes, DType::kInt64);
  const bool as_pairs = from.choice<bool>("table", kTableShapes, false);
  const Shape table_shape = as_pairs ? Shape{h, 2} : Shape{2 * h};
  const std::size_t table =
      instance.add_tensor("addr_table", false, table_type, table_shape, from.text("tl", ""));
  Shape numbers;
  for (const auto& pair : addresses) {
    numbers.push_back(static_cast<std::int64_t>(pair[0]));
    numbers.push_back(static_cast<std::int64_t>(pair[1]));
  }
  instance.store(table, numbers);

  auto args = std::make_shared<GroupMemcpyArgs>();
  GroupMemcpyOracle oracle;
  args->addr_table = instance.view(table);
  args->copy_bytes = oracle.copy_bytes = w;
  oracle.table = instance.array(table);
  if (has_sizes) {
    const std::size_t tensor =
        instance.add_tensor("sizes", false, DType::kInt64, Shape{h}, from.text("szl", ""));
    instance.store(tensor, sizes);
    args->sizes = instance.view(tensor);
    oracle.sizes = instance.array(tensor);
  }
  if (from.has("count")) {
    const DType type = from.choice<DType>("ct", index_types(), DType::kInt32);
    const bool scalar = from.integer("crank", 0, 0, 1) == 0;
    const std::size_t tensor = instance.add_tensor("count", false, type, scalar ? Shape{} : Shape{1}, "");
    oracle.count = from.integer("count", 0);
    instance.store(tensor, Shape{*oracle.count});
    args->count = instance.view(tensor);
  }
  if (from.has("host_count")) args->host_count = oracle.count = from.integer("host_count", 0);
  args->skip_null = oracle.skip_null = from.flag("skip_null", false);
  args->checked = oracle.checked = from.flag("checked", false);

  instance.seal();
  if (break_rule(from, group_memcpy_breakers(), *args, instance)) {
    connect(instance, args);
    return made;
  }

  oracle.expected = [&](std::uint64_t address) -> std::byte* {
    for (Storage& storage : instance.storages) {
      const std::uint64_t first = number(storage.live.data());
      if (storage.output && address >= first &&
          address - first < static_cast<std::uint64_t>(storage.live.size())) {
        return storage.expected.data() + (address - first);
      }
    }
    throw CaseError("a destination lies in no output");
  };
  oracle.run();
  if (instance.poison_touched()) oracle.run();
  if (!oracle.refusal.empty()) instance.expect = {StatusCode::kIndex, Expectation::At::kRun, oracle.refusal};
  instance.bytes_moved = oracle.bytes_moved;
  connect(instance, args);
  return made;
}

}  // namespace

const OperatorInfo& group_memcpy_info() {
  static const OperatorInfo info = {
      Operator::kGroupMemcpy,
      "group_memcpy",
      "many copies from a table of addresses in one call",
      kKeys,
      group_memcpy_registered_cases(),
      make_group_memcpy,
      group_memcpy_random_case,
      implementation_names<internal::group_memcpy_cpu>,
  };
  return info;
}

Case group_memcpy_random_case(std::uint64_t seed) {
  Random random(seed);
  Case made("group_memcpy");
  const auto some = [&](std::int64_t n) { return random.one_in(n); };
  const std::int64_t h = some(10) ? random.between(0, 400) : random.between(0, 40);
  made.set("h", h);
  const auto any_size = [&] {
    switch (random.between(0, 4)) {
      case 0:
        return random.between(0, 9000);
      case 1:
        return random.pick(Shape{0, 1, 8, 16, 255, 256, 257, 511, 512, 513, 4095, 4096, 4097});
      default:
        return random.between(0, 80);
    }
  };
  const bool checked = some(3);
  if (some(2)) {
    Shape sizes;
    for (std::int64_t i = random.between(1, 12); i > 0; --i) sizes.push_back(any_size());
    if (some(12)) sizes.front() = -3;
    made.set("sizes", print_integers(sizes));
    if (some(3)) made.set("szl", random_layout(random, 1));
  } else {
    made.set("w", any_size());
  }
  for (const char* key : {"sa", "da"}) {
    Shape shifts;
    for (std::int64_t i = random.between(1, 5); i > 0; --i) shifts.push_back(random.between(0, 63));
    if (some(2)) made.set(key, print_integers(shifts));
  }
  if (some(3)) made.set("fan", random.between(1, 5));
  if (some(3)) made.set("pack", 1);
  if (some(2)) made.set("order", "seq");
  const bool pairs = some(2);
  if (pairs) made.set("table", "pairs");
  if (some(2)) made.set("tt", "u64");
  if (some(3)) made.set("tl", random_layout(random, pairs ? 2 : 1));
  if (some(4)) {
    made.set("count", random.between(-2, h + 2));
    if (some(2)) made.set("ct", "i64");
    if (some(2)) made.set("crank", 1);
  } else if (some(4)) {
    made.set("host_count", random.between(0, h));
  }
  const auto some_pairs = [&] {
    Shape list;
    for (std::int64_t i = random.between(1, 3); i > 0; --i) list.push_back(random.between(0, h - 1));
    return print_integers(list);
  };
  if (h > 0 && some(3)) {
    made.set("skip_null", 1);
    if (some(2)) made.set("null_src", some_pairs());
    if (some(2)) made.set("null_dst", some_pairs());
  } else if (h > 0 && checked && some(6)) {
    made.set("null_src", random.between(0, h - 1));
  }
  if (h > 0 && some(5)) made.set("same", some_pairs());
  if (checked) made.set("checked", 1);
  made.set("guard", random.pick(std::vector<std::string>{"canary", "canary", "before", "after"}));
  if (some(3)) made.set("align", fmt::format("{};{}", random.between(0, 63), random.between(0, 63)));
  if (some(4)) made.set("streaming", 1);
  if (some(4)) made.set("bound", 0);
  made.set("seed", static_cast<std::int64_t>(seed));
  return made;
}

}  // namespace kvferry::harness
