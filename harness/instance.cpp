// SPDX-License-Identifier: Apache-2.0
#include "harness/instance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <new>
#include <set>
#include <utility>

#include "harness/random.hpp"

namespace kvferry::harness {
namespace {

constexpr std::int64_t kSparseFrom = std::int64_t{1} << 30;

constexpr std::array kCommonKeys = {
    KeyHelp{"seed", "seed of all random bytes and values (default 1)"},
    KeyHelp{"device", "where the tensors are: cpu (default), cuda"},
    KeyHelp{"pinned", "on a device, how many of them are in pinned host memory: none (default), some, all"},
    KeyHelp{"impl", "implementations to run, joined by ';' (default: all of the operator)"},
    KeyHelp{"threads", "thread counts, a list (default 1;2;3)"},
    KeyHelp{"via", "how to call, a list of run, stream, call (default: all)"},
    KeyHelp{"streaming", "ContextOptions::streaming, a flag"},
    KeyHelp{"expect_impl", "the implementation that an unforced plan must pick"},
    KeyHelp{
        "guard",
        "around buffers: canary (bytes), before (they end at an unmapped page), after (start behind one)"},
    KeyHelp{
        "align",
        "byte offsets of the buffers from a multiple of 64, a list that is dealt out in turn (default 0)"},
    KeyHelp{"bound", "views tell the size of their storage, a flag (default 1)"},
};

constexpr std::array<std::pair<const char*, DType>, 12> kDataTypes = {{
    {"f16", DType::kFloat16},
    {"bf16", DType::kBFloat16},
    {"f32", DType::kFloat32},
    {"i8", DType::kInt8},
    {"u8", DType::kUInt8},
    {"i16", DType::kInt16},
    {"u16", DType::kUInt16},
    {"i32", DType::kInt32},
    {"u32", DType::kUInt32},
    {"hif8", DType::kHiFloat8},
    {"e5m2", DType::kFloat8E5M2},
    {"e4m3", DType::kFloat8E4M3FN},
}};

constexpr std::array<std::pair<const char*, DType>, 2> kIndexTypes = {{
    {"i32", DType::kInt32},
    {"i64", DType::kInt64},
}};

constexpr std::array<std::pair<const char*, DeviceType>, 2> kDevices = {{
    {"cpu", DeviceType::kCpu},
    {"cuda", DeviceType::kCuda},
}};

constexpr std::array<std::pair<const char*, Placement>, 3> kPlacements = {{
    {"canary", Placement::kGuarded},
    {"before", Placement::kBeforeHole},
    {"after", Placement::kAfterHole},
}};

}  // namespace

std::span<const KeyHelp> common_keys() {
  return kCommonKeys;
}
std::span<const std::pair<const char*, DType>> data_types() {
  return kDataTypes;
}
std::span<const std::pair<const char*, DType>> index_types() {
  return kIndexTypes;
}

std::int64_t item_bytes(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kHiFloat8:
    case DType::kFloat8E5M2:
    case DType::kFloat8E4M3FN:
      return 1;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
    case DType::kUInt16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUInt32:
      return 4;
    case DType::kInt64:
    case DType::kUInt64:
      return 8;
  }
  return 0;
}

const char* short_name(DType dtype) {
  for (const auto& [name, type] : kDataTypes) {
    if (type == dtype) return name;
  }
  return dtype == DType::kInt64 ? "i64" : "u64";
}

Instance::Instance(const Case& from)
    : seed_(static_cast<std::uint64_t>(from.integer("seed", 1))),
      device_{from.choice<DeviceType>("device", kDevices, DeviceType::kCpu), 0},
      pinned_(
          from.choice<Pinned>("pinned",
                              std::array{std::pair{"none", Pinned::kNone}, std::pair{"some", Pinned::kSome},
                                         std::pair{"all", Pinned::kAll}},
                              Pinned::kNone)),
      placement_(from.choice<Placement>("guard", kPlacements, Placement::kGuarded)),
      aligns_(from.integers("align", {0})),
      bounded_(from.flag("bound", true)) {
  for (const std::int64_t align : aligns_) {
    if (align < 0 || align > 63) from.fail("align", fmt::format("{} is outside [0, 63]", align));
  }
  if (aligns_.empty()) from.fail("align", "the list is empty");
}

Memory Instance::make_memory(std::int64_t bytes, bool follow_align) {
  const std::int64_t align = follow_align ? aligns_[next_align_++ % aligns_.size()] : 0;
  return Memory(bytes, bytes > kSparseFrom ? Placement::kSparse : placement_, align);
}

std::size_t Instance::add_storage(std::string_view name, bool output, std::int64_t bytes) {
  Storage storage;
  storage.name = name;
  storage.output = output;
  storage.live = make_memory(bytes, true);
  if (storage.live.placement() != Placement::kSparse) {
    fill_random(storage.live.data(), bytes, seed_ * 1000 + storages.size());
  }
  storages.push_back(std::move(storage));
  return storages.size() - 1;
}

std::size_t Instance::add_folded(std::string_view name, bool output, std::int64_t bytes,
                                 std::int64_t fold_bytes) {
  Storage storage;
  storage.name = name;
  storage.output = output;
  storage.live = Memory(bytes, Placement::kFolded, 0, fold_bytes);
  fill_random(storage.live.data(), std::min(storage.live.fold_bytes(), bytes),
              seed_ * 1000 + storages.size());
  storages.push_back(std::move(storage));
  return storages.size() - 1;
}

std::size_t Instance::add_tensor(std::string_view name, bool output, DType dtype,
                                 std::span<const std::int64_t> shape, std::string_view layout_words) {
  const Layout layout = make_layout(shape, layout_words);
  const Int128 bytes = static_cast<Int128>(layout.storage_elements) * item_bytes(dtype);
  if (bytes > (static_cast<Int128>(1) << 46))
    throw CaseError(fmt::format("{}: more than 64 TiB of storage", name));
  const std::size_t storage = add_storage(name, output, static_cast<std::int64_t>(bytes));
  return add_tensor_in(storage, name, dtype, shape, layout);
}

std::size_t Instance::add_tensor_in(std::size_t storage, std::string_view name, DType dtype,
                                    std::span<const std::int64_t> shape, const Layout& layout) {
  tensors.push_back({std::string(name), storage, dtype, {shape.begin(), shape.end()}, layout, bounded_});
  return tensors.size() - 1;
}

TensorPair Instance::add_pair(const Case& from, const char* joined_key, bool output, const TensorSpec& a,
                              const TensorSpec* b) {
  if (b == nullptr || !from.has(joined_key)) {
    const std::size_t first = add_tensor(a.name, output, a.dtype, a.shape, a.layout);
    return {first, b == nullptr ? 0 : add_tensor(b->name, output, b->dtype, b->shape, b->layout)};
  }
  const auto axis = to_size(from.integer(joined_key, 0, 0, static_cast<std::int64_t>(a.shape.size()) - 1));
  std::vector<std::int64_t> joined = a.shape;
  for (std::size_t i = 0; i < joined.size(); ++i) {
    if (i != axis && a.shape[i] != b->shape[i]) from.fail(joined_key, fmt::format("dimension {} differs", i));
  }
  if (item_bytes(a.dtype) != item_bytes(b->dtype)) from.fail(joined_key, "the element sizes differ");
  joined[axis] += b->shape[axis];
  const Layout layout = make_layout(joined, a.layout);
  const std::size_t storage = add_storage(fmt::format("{} and {}", a.name, b->name), output,
                                          layout.storage_elements * item_bytes(a.dtype));
  Layout second = layout;
  second.offset += a.shape[axis] * layout.strides[axis];
  const std::size_t first = add_tensor_in(storage, a.name, a.dtype, a.shape, layout);
  return {first, add_tensor_in(storage, b->name, b->dtype, b->shape, second)};
}

bool Instance::pinned(std::size_t storage) const {
  // What has no tensor is known by addresses of the device.
  const bool viewed = std::any_of(tensors.begin(), tensors.end(),
                                  [&](const Tensor& tensor) { return tensor.storage == storage; });
  if (!viewed || pinned_ != Pinned::kSome) return viewed && pinned_ == Pinned::kAll;
  // By name: the caches of several layers, for which one plan is made, are alike.
  std::uint64_t hash = seed_;
  for (const char c : storages[storage].name) hash = mix(hash + static_cast<unsigned char>(c));
  return hash % 2 == 0;
}

Array Instance::array(std::size_t i) const {
  const Tensor& tensor = tensors[i];
  return {storages[tensor.storage].live.data(), item_bytes(tensor.dtype), tensor.shape, tensor.layout.strides,
          tensor.layout.offset};
}

Array Instance::expected_array(std::size_t i) const {
  Array result = array(i);
  result.data = storages[tensors[i].storage].expected.data();
  return result;
}

TensorView Instance::view(std::size_t i) const {
  const Tensor& tensor = tensors[i];
  const Storage& storage = storages[tensor.storage];
  TensorView result =
      strided(storage.live.data(), tensor.dtype, tensor.shape, tensor.layout.strides, tensor.layout.offset);
  result.device = pinned(tensor.storage) ? Device{DeviceType::kCudaHost, 0} : device_;
  if (tensor.bounded) result.storage_elements = storage.live.size() / item_bytes(tensor.dtype);
  return result;
}

void Instance::store(std::size_t tensor, std::span<const std::int64_t> values) {
  const Array to = array(tensor);
  const std::int64_t columns = to.shape.size() == 2 ? to.shape[1] : 1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t value = values[i];
    if (to.item == 4 && value != static_cast<std::int32_t>(value)) {
      throw CaseError(fmt::format("{}: {} does not fit into 32 bits (idx=i64)", tensors[tensor].name, value));
    }
    const auto n = static_cast<std::int64_t>(i);
    if (to.shape.size() == 2) {
      store_index(to, {n / columns, n % columns}, value);
    } else {
      store_index(to, {n}, value);
    }
  }
}

void Instance::fill_named_blocks(std::size_t tensor, std::span<const std::int64_t> ids) {
  if (storages[tensors[tensor].storage].live.placement() != Placement::kSparse) return;
  const Array blocks = array(tensor);
  std::set<std::int64_t> named;
  for (const std::int64_t id : ids) {
    if (id >= 0 && id < blocks.dim(0)) named.insert(id);
  }
  const std::int64_t block_elements = blocks.elements() / std::max<std::int64_t>(blocks.dim(0), 1);
  if (static_cast<std::int64_t>(named.size()) * block_elements > (1 << 26)) {
    throw CaseError("too many blocks of a sparse tensor are named");
  }
  Random random(seed_ + tensor);
  for (const std::int64_t id : named) {
    for (std::int64_t i = 0; i < block_elements; ++i) {
      std::byte* element = blocks.at({id});
      std::int64_t rest = i;
      for (std::size_t axis = blocks.shape.size(); --axis > 0; rest /= blocks.dim(axis))
        element += rest % blocks.dim(axis) * blocks.strides[axis] * blocks.item;
      const std::uint64_t bytes = random.next();
      std::memcpy(element, &bytes, to_size(blocks.item));
    }
  }
}

void Instance::seal() {
  for (Storage& storage : storages) {
    const auto twin = [&] {
      Memory memory(storage.live.size(), storage.live.placement(), 0, storage.live.fold_bytes());
      copy_memory(memory, storage.live);
      return memory;
    };
    storage.initial = twin();
    if (storage.output) storage.expected = twin();
  }
}

bool Instance::poison_touched() {
  bool any = false;
  for (Storage& storage : storages) {
    if (!storage.output || storage.live.placement() != Placement::kSparse) continue;
    const auto ranges = storage.expected.touched();
    storage.initial.forget();
    for (const auto& [begin, end] : ranges) {
      any = true;
      fill_random(storage.initial.data() + begin, end - begin, seed_ + static_cast<std::uint64_t>(begin));
    }
  }
  if (!any) return false;
  for (Storage& storage : storages) {  // what an oracle reads and writes must be as it was
    if (storage.output) copy_memory(storage.expected, storage.initial);
  }
  reset();
  return true;
}

void Instance::reset() {
  for (Storage& storage : storages) {
    if (storage.output) copy_memory(storage.live, storage.initial);
  }
}

void Instance::leave_open(std::size_t tensor, const std::byte* element, std::int64_t bytes) {
  Storage& storage = storages[tensors[tensor].storage];
  if (storage.expected.placement() == Placement::kSparse)
    throw CaseError("unspecified bytes in a sparse output");
  if (storage.unspecified.empty()) storage.unspecified.resize(to_size(storage.expected.size()));
  const std::int64_t at = element - storage.expected.data();
  std::fill_n(storage.unspecified.begin() + at, bytes, std::uint8_t{1});
}

}  // namespace kvferry::harness
