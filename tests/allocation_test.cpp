// SPDX-License-Identifier: Apache-2.0
//
// run() allocates nothing. A binary of its own, because it replaces operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "capi/c_calls.hpp"
#include "example_calls.hpp"

namespace {

std::atomic<std::int64_t> allocations = 0;

void* counted_or_null(std::size_t bytes, std::size_t align) noexcept {
  ++allocations;
  return std::aligned_alloc(align, (bytes + align - 1) / align * align);
}
void* counted(std::size_t bytes, std::size_t align) {
  void* const memory = counted_or_null(bytes, align);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new[](std::size_t bytes) {
  return counted(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(std::size_t bytes, std::align_val_t align) {
  return counted(bytes, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t bytes, std::align_val_t align) {
  return counted(bytes, static_cast<std::size_t>(align));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted_or_null(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted_or_null(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(std::size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return counted_or_null(bytes, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return counted_or_null(bytes, static_cast<std::size_t>(align));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace kvferry {
namespace {

// Runs `args` 20 times after 3 for warming up (threads start at the first large call).
template <class Args, class Buffers>
void expect_no_allocation(const Args& args, Buffers pointers, const char* what) {
  for (const int threads : {1, 3}) {
    for (const bool with_stream : {false, true}) {
      for (const char* implementation : {"generic", ""}) {
        Stream stream;
        ContextOptions options;
        options.threads = threads;
        options.implementation = implementation;
        options.stream = with_stream ? &stream : nullptr;
        const Context context(options);
        const Plan planned = plan(args, context).value();
        std::vector<std::byte> memory(static_cast<std::size_t>(planned.workspace_bytes()));
        pointers.workspace = {memory.data(), planned.workspace_bytes()};
        const auto run_all = [&](int times) {
          bool ok = true;
          for (int i = 0; i < times; ++i) ok = run(planned, pointers, context).ok() && ok;
          if (with_stream) ok = stream.wait().ok() && ok;
          return ok;
        };
        EXPECT_TRUE(run_all(3));
        const std::int64_t before = allocations;
        const bool ok = run_all(20);
        const std::int64_t after = allocations;
        EXPECT_TRUE(ok);
        EXPECT_EQ(after - before, 0) << what << ", threads " << threads << ", stream " << with_stream
                                     << ", implementation " << planned.implementation();
      }
    }
  }
}

template <class Args>
void expect_no_allocation(const Args& args, const char* what) {
  expect_no_allocation(args, buffers(args), what);
}

TEST(Allocation, TheCountWorks) {
  const std::int64_t before = allocations;
  // Written so that no compiler removes the pair.
  const auto owner = std::make_unique<int>(3);
  EXPECT_EQ(*owner, 3);
  EXPECT_GT(allocations, before);
}

TEST(Allocation, NoneInRun) {
  for (const std::int64_t width : {24, 600, 64 << 10}) {
    GatherExample gather(width, 16);
    ScatterExample scatter(width, 60);
    GroupMemcpyExample copies(width, 40);
    SelectionExample selection(width, 60);
    BlocksExample blocks(width, 40);
    TransferLayersExample layers(width, 20);
    GatherDequantExample dequant(width / 24);
    for (const IndexPolicy policy : {IndexPolicy::kDefault, IndexPolicy::kReport, IndexPolicy::kReject}) {
      gather.args.index_policy = scatter.args.index_policy = selection.args.index_policy = policy;
      blocks.copy.index_policy = blocks.swap.index_policy = policy;
      layers.args.index_policy = dequant.args.index_policy = policy;
      expect_no_allocation(gather.args, "gather_pa_kv_cache");
      expect_no_allocation(scatter.args, "scatter_pa_kv_cache");
      expect_no_allocation(selection.args, "gather_selection_kv_cache");
      expect_no_allocation(blocks.copy, blocks.copy_buffers(), "copy_blocks");
      expect_no_allocation(blocks.swap, blocks.swap_buffers(), "swap_blocks");
      expect_no_allocation(dequant.args, "gather_dequant");
      TransferLayersArgs back = layers.args;
      back.direction = TransferDirection::kChunkToPools;
      expect_no_allocation(layers.args, buffers(layers.args, layers.pointers),
                           "transfer_layers to the chunk");
      expect_no_allocation(back, buffers(back, layers.pointers), "transfer_layers to the pools");
    }
    expect_no_allocation(copies.args, "group_memcpy");
    copies.args.checked = true;
    expect_no_allocation(copies.args, "group_memcpy checked");
    std::vector<std::int64_t> sizes(40, width);
    copies.args.sizes = contiguous(sizes.data(), DType::kInt64, {40});
    copies.args.copy_bytes = 0;
    expect_no_allocation(copies.args, "group_memcpy with sizes");
    EXPECT_TRUE(gather.right());
    EXPECT_TRUE(scatter.right());
    EXPECT_TRUE(copies.right());
    EXPECT_TRUE(selection.right());
    EXPECT_TRUE(blocks.copied());
    EXPECT_TRUE(blocks.swapped());
    EXPECT_TRUE(layers.right());
    EXPECT_TRUE(dequant.right());
  }
}

TEST(Allocation, NoneInScheduleAndCopy) {
  SelectionExample example(600, 60);
  const Context context;
  const Plan planned = plan(example.args, context).value();
  std::vector<std::byte> memory(static_cast<std::size_t>(planned.workspace_bytes()));
  GatherSelectionKvCacheBuffers pointers = buffers(example.args);
  pointers.workspace = {memory.data(), planned.workspace_bytes()};
  const std::int64_t before = allocations;
  bool ok = schedule(planned, pointers, context).ok();
  for (int i = 0; i < 20; ++i) ok = copy(planned, pointers, context).ok() && ok;
  const std::int64_t after = allocations;
  EXPECT_TRUE(ok);
  EXPECT_EQ(after - before, 0);
  EXPECT_TRUE(example.right());
}

template <class Args, class Buffers, class CStruct, class CBuffers>
void expect_no_allocation_in_c(const Args& args, Buffers pointers,
                               kvferry_status (*c_plan)(const CStruct*, const kvferry_context*,
                                                        kvferry_plan**),
                               kvferry_status (*c_run)(const kvferry_plan*, const CBuffers*,
                                                       const kvferry_context*)) {
  for (const bool with_stream : {false, true}) {
    kvferry_stream* stream = nullptr;
    ASSERT_EQ(kvferry_stream_create(&stream), KVFERRY_OK);
    kvferry_context_options options;
    KVFERRY_INIT(options);
    options.threads = 2;
    options.stream = with_stream ? stream : nullptr;
    kvferry_context* context = nullptr;
    ASSERT_EQ(kvferry_context_create(&options, &context), KVFERRY_OK);
    CArgs to_c;
    const CStruct c_args = to_c(args);
    kvferry_plan* planned = nullptr;
    ASSERT_EQ(c_plan(&c_args, context, &planned), KVFERRY_OK);
    std::vector<std::byte> memory(static_cast<std::size_t>(kvferry_plan_workspace_bytes(planned)));
    pointers.workspace = {memory.data(), kvferry_plan_workspace_bytes(planned)};
    const auto c_pointers = c_buffers<CBuffers>(pointers);
    const auto run_all = [&](int times) {
      bool ok = true;
      for (int i = 0; i < times; ++i) ok = c_run(planned, &c_pointers, context) == KVFERRY_OK && ok;
      return kvferry_stream_wait(stream) == KVFERRY_OK && ok;
    };
    EXPECT_TRUE(run_all(3));
    const std::int64_t before = allocations;
    const bool ok = run_all(20);
    const std::int64_t after = allocations;
    EXPECT_TRUE(ok);
    EXPECT_EQ(after - before, 0) << kvferry_plan_describe(planned) << "stream " << with_stream;
    kvferry_plan_destroy(planned);
    kvferry_context_destroy(context);
    kvferry_stream_destroy(stream);
  }
}

TEST(Allocation, NoneInRunOfTheCApi) {
  GatherExample gather;
  ScatterExample scatter;
  GroupMemcpyExample copies;
  SelectionExample selection;
  BlocksExample blocks;
  TransferLayersExample layers;
  GatherDequantExample dequant;
  expect_no_allocation_in_c(gather.args, buffers(gather.args), kvferry_gather_pa_kv_cache_plan,
                            kvferry_gather_pa_kv_cache_run);
  expect_no_allocation_in_c(scatter.args, buffers(scatter.args), kvferry_scatter_pa_kv_cache_plan,
                            kvferry_scatter_pa_kv_cache_run);
  expect_no_allocation_in_c(copies.args, buffers(copies.args), kvferry_group_memcpy_plan,
                            kvferry_group_memcpy_run);
  expect_no_allocation_in_c(selection.args, buffers(selection.args), kvferry_gather_selection_kv_cache_plan,
                            kvferry_gather_selection_kv_cache_run);
  expect_no_allocation_in_c(blocks.copy, blocks.copy_buffers(), kvferry_copy_blocks_plan,
                            kvferry_copy_blocks_run);
  expect_no_allocation_in_c(blocks.swap, blocks.swap_buffers(), kvferry_swap_blocks_plan,
                            kvferry_swap_blocks_run);
  expect_no_allocation_in_c(layers.args, buffers(layers.args, layers.pointers), kvferry_transfer_layers_plan,
                            kvferry_transfer_layers_run);
  expect_no_allocation_in_c(dequant.args, buffers(dequant.args), kvferry_gather_dequant_plan,
                            kvferry_gather_dequant_run);
  EXPECT_TRUE(gather.right());
  EXPECT_TRUE(scatter.right());
  EXPECT_TRUE(copies.right());
  EXPECT_TRUE(selection.right());
  EXPECT_TRUE(blocks.copied());
  EXPECT_TRUE(blocks.swapped());
  EXPECT_TRUE(layers.right());
  EXPECT_TRUE(dequant.right());
}

TEST(Allocation, NoneInRunOfFractalNzAndStrides) {
  GatherExample example(96, 16);
  const std::int64_t blocks = example.args.key_cache.dim(0);
  example.args.cache_mode = CacheMode::kPaNz;
  example.args.key_cache = contiguous(example.cache_k.data(), DType::kUInt8, {blocks, 3, 4, 32});
  example.args.value_cache = contiguous(example.cache_v.data(), DType::kUInt8, {blocks, 3, 4, 32});
  example.args.key = contiguous(example.key.data(), DType::kUInt8, {example.rows, 96});
  example.args.value = contiguous(example.value.data(), DType::kUInt8, {example.rows, 96});
  expect_no_allocation(example.args, "gather_pa_kv_cache of FRACTAL_NZ");

  GatherExample permuted(96, 16);
  permuted.args.key_cache =
      strided(permuted.cache_k.data(), DType::kUInt8, {blocks, 4, 12, 8}, {384, 8, 32, 1});
  permuted.args.key = contiguous(permuted.key.data(), DType::kUInt8, {permuted.rows, 12, 8});
  expect_no_allocation(permuted.args, "gather_pa_kv_cache of permuted axes");
}

TEST(Allocation, OneCallFormsAllocateOnlyThePlan) {
  // The workspace belongs to the context and is kept; planning allocates a fixed number of times.
  const Context context([] {
    ContextOptions options;
    options.threads = 1;
    return options;
  }());
  GatherExample small(24, 2);
  GatherExample large(24, 200);
  EXPECT_TRUE(gather_pa_kv_cache(large.args, context).ok());
  const auto count = [&](const GatherPaKvCacheArgs& args) {
    const std::int64_t before = allocations;
    EXPECT_TRUE(gather_pa_kv_cache(args, context).ok());
    return allocations - before;
  };
  EXPECT_EQ(count(small.args), count(large.args));
}

}  // namespace
}  // namespace kvferry
