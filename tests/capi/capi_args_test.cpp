// SPDX-License-Identifier: Apache-2.0
//
// The C API says what the C++ API says: every field arrives, plans and errors are the same, operators are all
// there.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "c_calls.hpp"
#include "capi/handles.hpp"
#include "capi/operators.hpp"
#include "ops/registry.hpp"
#include "tests/example_calls.hpp"

namespace kvferry {
namespace {

// ---- Every member of an args struct, as text. The bindings do not compile when a member is added.

std::string text(const TensorView& v) {
  return fmt::format("{} at {} on {}:{} rank {} shape {} strides {} offset {} storage {}", to_string(v.dtype),
                     v.data, static_cast<int>(v.device.type), v.device.index, v.rank, v.shape, v.strides,
                     v.offset, v.storage_elements);
}
std::string text(std::span<const TensorView> views) {
  std::string all;
  for (const TensorView& view : views) all += text(view) + "; ";
  return all;
}
std::string text(std::array<std::int64_t, 2> numbers) {
  return fmt::format("{}", numbers);
}
template <class Number>
std::string text(Number number) {
  return std::to_string(static_cast<std::int64_t>(number));
}
template <class T>
std::string text(const std::optional<T>& value) {
  return value ? text(*value) : "none";
}
template <class... Members>
std::vector<std::string> texts(const Members&... members) {
  return {text(members)...};
}

std::vector<std::string> members(const GatherPaKvCacheArgs& args) {
  const auto& [a, b, c, d, e, f, g, h, i, j] = args;
  return texts(a, b, c, d, e, f, g, h, i, j);
}
std::vector<std::string> members(const ScatterPaKvCacheArgs& args) {
  const auto& [a, b, c, d, e, f, g, h, i, j] = args;
  return texts(a, b, c, d, e, f, g, h, i, j);
}
std::vector<std::string> members(const GroupMemcpyArgs& args) {
  const auto& [a, b, c, d, e, f, g] = args;
  return texts(a, b, c, d, e, f, g);
}
std::vector<std::string> members(const GatherSelectionKvCacheArgs& args) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q] = args;
  return texts(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q);
}
std::vector<std::string> members(const CopyBlocksArgs& args) {
  const auto& [a, b, c, d] = args;
  return texts(a, b, c, d);
}
std::vector<std::string> members(const SwapBlocksArgs& args) {
  const auto& [a, b, c, d, e] = args;
  return texts(a, b, c, d, e);
}
std::vector<std::string> members(const TransferLayersArgs& args) {
  const auto& [a, b, c, d, e, f, g] = args;
  return texts(a, b, c, d, e, f, g);
}
std::vector<std::string> members(const GatherDequantArgs& args) {
  const auto& [a, b, c, d, e, f, g] = args;
  return texts(a, b, c, d, e, f, g);
}

template <class Args>
void expect_all_arrive(const Args& args) {
  CArgs to_c;
  capi::Reader reader("test");
  const Args read = capi::read(reader, to_c(args));
  ASSERT_TRUE(reader.ok()) << reader.take().message();
  EXPECT_EQ(members(read), members(args));
}

// Views that differ in everything, through all dtypes.
class Views {
 public:
  TensorView next() {
    ++n_;
    TensorView view;
    view.data = reinterpret_cast<void*>(std::uintptr_t{4096} * static_cast<std::uintptr_t>(n_));
    view.dtype = static_cast<DType>(n_ % 14);
    view.device = {n_ % 2 == 0 ? DeviceType::kCpu : DeviceType::kCuda, n_ % 5};
    view.rank = n_ % (kMaxRank + 1);
    for (int axis = 0; axis < view.rank; ++axis) {
      view.shape[static_cast<std::size_t>(axis)] = 10 * n_ + axis;
      view.strides[static_cast<std::size_t>(axis)] = -1000 * n_ + axis;
    }
    view.offset = std::int64_t{7} * n_;
    return view;
  }
  std::vector<TensorView> list(std::size_t count) {
    std::vector<TensorView> views(count);
    for (TensorView& view : views) view = next();
    return views;
  }

 private:
  int n_ = 0;
};

TEST(CapiArgs, EveryMemberArrives) {
  Views views;
  // Twice around all dtypes and ranks.
  for (int round = 0; round < 4; ++round) {
    const std::vector<TensorView> first = views.list(3), second = views.list(3);
    GatherPaKvCacheArgs gather{views.next(), views.next(), views.next(), views.next(), views.next(),
                               views.next(), {},           {},           true,         {}};
    expect_all_arrive(gather);
    gather.seq_offset = views.next();
    gather.cache_mode = CacheMode::kPaNz;
    gather.is_seq_lens_cumsum = false;
    gather.index_policy = IndexPolicy::kReject;
    expect_all_arrive(gather);

    ScatterPaKvCacheArgs scatter{views.next(), views.next(), views.next(), {}, {}, {}, {}, {}, {}, {}};
    expect_all_arrive(scatter);
    scatter.value = views.next();
    scatter.value_cache = views.next();
    scatter.cache_mode = CacheMode::kPaNz;
    scatter.scatter_mode = ScatterMode::kNct;
    scatter.nct_strides = {11, 12};
    scatter.nct_offsets = {13, 14};
    scatter.key.storage_elements = 15;
    scatter.value->storage_elements = 16;
    scatter.index_policy = IndexPolicy::kReport;
    expect_all_arrive(scatter);

    GroupMemcpyArgs memcpys{views.next(), 5, {}, {}, {}, false, false};
    expect_all_arrive(memcpys);
    memcpys.sizes = views.next();
    memcpys.count = views.next();
    memcpys.host_count = -3;
    memcpys.skip_null = true;
    expect_all_arrive(memcpys);
    memcpys.skip_null = false;
    memcpys.checked = true;
    expect_all_arrive(memcpys);

    GatherSelectionKvCacheArgs selection{{},           views.next(), views.next(), views.next(),
                                         views.next(), {},           views.next(), views.next(),
                                         views.next(), {},           views.next()};
    expect_all_arrive(selection);
    selection.selection_k_rope = views.next();
    selection.full_k_rope = views.next();
    selection.full_q_actual_seq = views.next();
    selection.status_row = views.next();
    selection.counters = views.next();
    selection.fetch_counts = views.next();
    selection.selection_topk_block_size = 17;
    selection.q_len_mode = QLenMode::kAllRows;
    selection.index_policy = IndexPolicy::kReject;
    expect_all_arrive(selection);

    CopyBlocksArgs copy{first, views.next(), {}, {}};
    expect_all_arrive(copy);
    copy.count = views.next();
    copy.index_policy = IndexPolicy::kReport;
    expect_all_arrive(copy);

    SwapBlocksArgs swap{first, second, views.next(), {}, {}};
    expect_all_arrive(swap);
    swap.count = views.next();
    swap.index_policy = IndexPolicy::kReject;
    expect_all_arrive(swap);

    TransferLayersArgs layers{first, {}, views.next(), views.next(), {}, {}, {}};
    expect_all_arrive(layers);
    layers.value_caches = second;
    layers.chunk_layout = ChunkLayout::kPageFirst;
    expect_all_arrive(layers);
    layers.direction = TransferDirection::kChunkToPools;
    layers.index_policy = IndexPolicy::kReport;
    expect_all_arrive(layers);

    GatherDequantArgs dequant{views.next(), views.next(), views.next(), views.next(), {}, true, {}};
    expect_all_arrive(dequant);
    dequant.seq_offset = views.next();
    dequant.is_seq_lens_cumsum = false;
    dequant.index_policy = IndexPolicy::kReject;
    expect_all_arrive(dequant);
  }
}

TEST(CapiArgs, ContextsGetTheirStaging) {
  kvferry_context_options options;
  KVFERRY_INIT(options);
  options.cuda_staging_bytes = -5;
  kvferry_context* context = nullptr;
  ASSERT_EQ(kvferry_context_create(&options, &context), KVFERRY_OK);
  EXPECT_EQ(context->context.options().cuda_staging_bytes, -5);
  kvferry_context_destroy(context);
}

TEST(CapiArgs, ZeroIsTheDefault) {
  const auto defaults = [](auto args) { return members(args); };
  capi::Reader reader("test");
  kvferry_tensor some = {};
  some.device.type = KVFERRY_DEVICE_CPU;
  some.dtype = {KVFERRY_DTYPE_UINT, 8, 1};
  kvferry_gather_selection_kv_cache_args selection;
  KVFERRY_INIT(selection);
  selection.selection_kv_cache = selection.selection_kv_block_table = selection.selection_kv_block_status =
      selection.selection_topk_indices = selection.full_kv_cache = selection.full_kv_block_table =
          selection.full_kv_actual_seq = selection.selection_kv_actual_seq = &some;
  EXPECT_EQ(members(capi::read(reader, selection)), defaults(GatherSelectionKvCacheArgs()));
  kvferry_gather_dequant_args dequant;
  KVFERRY_INIT(dequant);
  dequant.cache = dequant.block_tables = dequant.seq_lens = dequant.out = &some;
  EXPECT_EQ(members(capi::read(reader, dequant)), defaults(GatherDequantArgs()));
  kvferry_scatter_pa_kv_cache_args scatter;
  KVFERRY_INIT(scatter);
  scatter.key = scatter.key_cache = scatter.slot_mapping = &some;
  EXPECT_EQ(members(capi::read(reader, scatter)), defaults(ScatterPaKvCacheArgs()));
  EXPECT_TRUE(reader.ok());
}

// Words 1, 2, ... behind the size arrive in this order.
template <class CBuffers, class Buffers>
void expect_all_pointers_arrive() {
  std::int64_t words[sizeof(Buffers) / 8];
  for (std::size_t i = 0; i < std::size(words); ++i) words[i] = static_cast<std::int64_t>(i + 1);
  Buffers buffers;
  std::memcpy(&buffers, words, sizeof buffers);
  const Buffers read = capi::read(c_buffers<CBuffers>(buffers));
  EXPECT_EQ(std::memcmp(&read, words, sizeof read), 0) << sizeof(CBuffers);
}

TEST(CapiArgs, EveryPointerArrives) {
  expect_all_pointers_arrive<kvferry_gather_pa_kv_cache_buffers, GatherPaKvCacheBuffers>();
  expect_all_pointers_arrive<kvferry_scatter_pa_kv_cache_buffers, ScatterPaKvCacheBuffers>();
  expect_all_pointers_arrive<kvferry_group_memcpy_buffers, GroupMemcpyBuffers>();
  expect_all_pointers_arrive<kvferry_gather_selection_kv_cache_buffers, GatherSelectionKvCacheBuffers>();
  expect_all_pointers_arrive<kvferry_copy_blocks_buffers, CopyBlocksBuffers>();
  expect_all_pointers_arrive<kvferry_swap_blocks_buffers, SwapBlocksBuffers>();
  expect_all_pointers_arrive<kvferry_transfer_layers_buffers, TransferLayersBuffers>();
  expect_all_pointers_arrive<kvferry_gather_dequant_buffers, GatherDequantBuffers>();
}

// A struct without padding can grow without giving old bytes a new meaning.
template <class Struct, std::size_t kMembers>
constexpr bool kHasNoPadding = sizeof(Struct) == 8 * kMembers;
static_assert(kHasNoPadding<kvferry_context_options, 10>);
static_assert(kHasNoPadding<kvferry_gather_pa_kv_cache_args, 11>);
static_assert(kHasNoPadding<kvferry_scatter_pa_kv_cache_args, 15>);
static_assert(kHasNoPadding<kvferry_group_memcpy_args, 8>);
static_assert(kHasNoPadding<kvferry_gather_selection_kv_cache_args, 18>);
static_assert(kHasNoPadding<kvferry_copy_blocks_args, 6>);
static_assert(kHasNoPadding<kvferry_swap_blocks_args, 7>);
static_assert(kHasNoPadding<kvferry_transfer_layers_args, 9>);
static_assert(kHasNoPadding<kvferry_gather_dequant_args, 8>);

// ---- Plans

struct CContext {
  CContext(int threads, const char* implementation) {
    kvferry_context_options options;
    KVFERRY_INIT(options);
    options.threads = threads;
    options.implementation = implementation;
    EXPECT_EQ(kvferry_context_create(&options, &handle), KVFERRY_OK);
  }
  ~CContext() { kvferry_context_destroy(handle); }
  CContext(const CContext&) = delete;
  CContext& operator=(const CContext&) = delete;

  kvferry_context* handle = nullptr;
};

template <class Args, class CStruct>
void expect_same_plan(const Args& args,
                      kvferry_status (*c_plan)(const CStruct*, const kvferry_context*, kvferry_plan**)) {
  for (const int threads : {1, 3}) {
    for (const char* implementation : {"", "generic", "warp9"}) {
      ContextOptions options;
      options.threads = threads;
      options.implementation = implementation;
      const Result<Plan> expected = plan(args, Context(options));
      const CContext context(threads, implementation);
      CArgs to_c;
      const CStruct c_args = to_c(args);
      kvferry_plan* made = nullptr;
      const kvferry_status status = c_plan(&c_args, context.handle, &made);
      EXPECT_EQ(static_cast<int>(status), static_cast<int>(expected.status().code()));
      ASSERT_EQ(made != nullptr, expected.ok());
      if (expected.ok()) {
        EXPECT_EQ(kvferry_plan_describe(made), expected->describe());
        EXPECT_EQ(kvferry_plan_implementation(made), expected->implementation());
        EXPECT_EQ(kvferry_plan_workspace_bytes(made), expected->workspace_bytes());
        EXPECT_EQ(kvferry_plan_operator(made), static_cast<int>(expected->op()));
      } else {
        EXPECT_EQ(kvferry_last_error_message(), expected.status().message());
      }
      kvferry_plan_destroy(made);
    }
  }
}

TEST(CapiArgs, PlansAreThoseOfTheCxxApi) {
  for (const std::int64_t width : {32, 4096}) {
    GatherExample gather(width, 5);
    expect_same_plan(gather.args, kvferry_gather_pa_kv_cache_plan);
    gather.args.is_seq_lens_cumsum = true;  // lens are one too few
    expect_same_plan(gather.args, kvferry_gather_pa_kv_cache_plan);
    ScatterExample scatter(width, 9);
    expect_same_plan(scatter.args, kvferry_scatter_pa_kv_cache_plan);
    scatter.args.value = scatter.args.key;  // without value_cache
    expect_same_plan(scatter.args, kvferry_scatter_pa_kv_cache_plan);
    GroupMemcpyExample memcpys(width, 7);
    expect_same_plan(memcpys.args, kvferry_group_memcpy_plan);
    memcpys.args.host_count = 3;
    memcpys.args.skip_null = memcpys.args.checked = true;
    expect_same_plan(memcpys.args, kvferry_group_memcpy_plan);
    memcpys.args.host_count = 8;
    expect_same_plan(memcpys.args, kvferry_group_memcpy_plan);
    SelectionExample selection(width, 6);
    expect_same_plan(selection.args, kvferry_gather_selection_kv_cache_plan);
    selection.args.full_q_actual_seq = {};
    expect_same_plan(selection.args, kvferry_gather_selection_kv_cache_plan);
    selection.args.q_len_mode = QLenMode::kAllRows;
    expect_same_plan(selection.args, kvferry_gather_selection_kv_cache_plan);
    BlocksExample blocks(width, 4);
    expect_same_plan(blocks.copy, kvferry_copy_blocks_plan);
    expect_same_plan(blocks.swap, kvferry_swap_blocks_plan);
    blocks.copy.count = blocks.swap.count = blocks.copy.mapping;  // of the wrong rank
    expect_same_plan(blocks.copy, kvferry_copy_blocks_plan);
    expect_same_plan(blocks.swap, kvferry_swap_blocks_plan);
    TransferLayersExample layers(width, 5);
    expect_same_plan(layers.args, kvferry_transfer_layers_plan);
    layers.args.direction = TransferDirection::kChunkToPools;
    expect_same_plan(layers.args, kvferry_transfer_layers_plan);
    layers.args.chunk_layout = ChunkLayout::kPageFirst;  // the chunk is not
    expect_same_plan(layers.args, kvferry_transfer_layers_plan);
    GatherDequantExample dequant(width / 32);
    expect_same_plan(dequant.args, kvferry_gather_dequant_plan);
    dequant.args.out.dtype = DType::kFloat16;
    expect_same_plan(dequant.args, kvferry_gather_dequant_plan);
  }
}

TEST(CapiArgs, EveryOperatorIsThere) {
  int count = 0;
  for (const harness::OperatorInfo& info : harness::operators()) {
    ++count;
    EXPECT_STREQ(kvferry_operator_name(static_cast<int>(info.op)), info.name);
  }
  EXPECT_EQ(kvferry_operator_name(count + 1), nullptr);
}

}  // namespace
}  // namespace kvferry
