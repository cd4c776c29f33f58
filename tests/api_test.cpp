// SPDX-License-Identifier: Apache-2.0
//
// What all operators have in common: plans, contexts, streams, workspaces, errors.
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "example_calls.hpp"
#include "kvferry/backend.hpp"
#include "kvferry/memory.hpp"
#include "process_threads.hpp"

namespace kvferry {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Context with_stream(Stream& stream, int threads = 1) {
  ContextOptions options;
  options.threads = threads;
  options.stream = &stream;
  return Context(options);
}

Context with_threads(int threads) {
  ContextOptions options;
  options.threads = threads;
  return Context(options);
}

Context forced(const char* implementation) {
  ContextOptions options;
  options.implementation = implementation;
  return Context(options);
}

// Sets a variable of the environment while it lives.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value, 1);
  }
  ~Environment() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

// Memory for one run of a plan.
class Scratch {
 public:
  explicit Scratch(const Plan& plan) : bytes_(static_cast<std::size_t>(plan.workspace_bytes())) {}
  Workspace get() { return {bytes_.data(), static_cast<std::int64_t>(bytes_.size())}; }

 private:
  std::vector<std::byte> bytes_;
};

TEST(Status, CodesAndNames) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().code(), StatusCode::kOk);
  EXPECT_EQ(aclnn_code(StatusCode::kOk), 0);
  EXPECT_EQ(aclnn_code(StatusCode::kInvalidArgument), 161002);
  EXPECT_EQ(aclnn_code(StatusCode::kNull), 161001);
  EXPECT_EQ(aclnn_code(StatusCode::kIndex), 361001);
  EXPECT_EQ(aclnn_code(StatusCode::kUnimplemented), 561003);
  EXPECT_EQ(aclnn_code(StatusCode::kUnavailable), 561003);
  EXPECT_EQ(aclnn_code(StatusCode::kOutOfMemory), 561000);
  EXPECT_STREQ(to_string(StatusCode::kInvalidArgument), "invalid_argument");
  EXPECT_STREQ(to_string(StatusCode::kIndex), "index");
  const Result<int> good = 3;
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(good.value(), 3);
  const Result<int> bad = Status(StatusCode::kNull, "no");
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().message(), "no");
}

TEST(TensorView, Helpers) {
  int data = 0;
  const TensorView dense = contiguous(&data, DType::kFloat16, {4, 0, 8});
  EXPECT_EQ(dense.rank, 3);
  const TensorView usual = contiguous(&data, DType::kBFloat16, {4, 16, 8, 128});
  EXPECT_EQ(usual.stride(0), 16 * 8 * 128);
  EXPECT_EQ(usual.stride(3), 1);
  EXPECT_TRUE(is_contiguous(usual));
  EXPECT_TRUE(has(to_string(usual), "bfloat16 [4, 16, 8, 128]"));
  EXPECT_FALSE(has(to_string(usual), "strides"));
  const TensorView permuted = strided(&data, DType::kInt8, {2, 3}, {1, 2}, 5);
  EXPECT_FALSE(is_contiguous(permuted));
  EXPECT_EQ(permuted.offset, 5);
  EXPECT_TRUE(has(to_string(permuted), "strides [1, 2]"));
  EXPECT_TRUE(is_contiguous(strided(&data, DType::kInt8, {1, 3}, {77, 1})));
  EXPECT_EQ(size_of(DType::kInt64), 8);
  EXPECT_EQ(size_of(DType::kFloat8E4M3FN), 1);
  EXPECT_STREQ(to_string(DType::kFloat8E4M3FN), "float8_e4m3fn");
}

TEST(Plan, EmptyAndForeignPlansAreRefused) {
  const Context context = with_threads(1);
  GatherExample gather;
  ScatterExample scatter;
  EXPECT_TRUE(Plan().empty());
  Status status = run(Plan(), buffers(gather.args), context);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(has(status.message(), "gather_pa_kv_cache"));
  EXPECT_TRUE(has(status.message(), "empty"));
  const Plan foreign = plan(scatter.args, context).value();
  EXPECT_EQ(foreign.op(), Operator::kScatterPaKvCache);
  status = run(foreign, buffers(gather.args), context);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(has(status.message(), "scatter_pa_kv_cache"));
  EXPECT_TRUE(gather.untouched());
  GroupMemcpyExample copies;
  EXPECT_EQ(run(foreign, buffers(copies.args), context).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(copies.untouched());
  SelectionExample selection;
  for (const auto& part : {run, schedule, copy}) {
    for (const Plan& wrong : {foreign, Plan()}) {
      status = part(wrong, buffers(selection.args), context);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_TRUE(has(status.message(), "gather_selection_kv_cache")) << status.message();
    }
  }
  EXPECT_TRUE(selection.untouched());
  BlocksExample blocks;
  const Plan copy = plan(blocks.copy, context).value();
  EXPECT_EQ(copy.op(), Operator::kCopyBlocks);
  EXPECT_EQ(run(copy, blocks.swap_buffers(), context).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(foreign, blocks.copy_buffers(), context).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(blocks.untouched());
  TransferLayersExample layers;
  EXPECT_EQ(run(foreign, buffers(layers.args, layers.pointers), context).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(layers.untouched());
  GatherDequantExample dequant;
  EXPECT_EQ(run(foreign, buffers(dequant.args), context).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(dequant.untouched());
}

TEST(Plan, ServesManyLayers) {
  const Context context = with_threads(2);
  std::vector<std::unique_ptr<GatherExample>> layers;
  for (int i = 0; i < 61; ++i) {
    layers.push_back(std::make_unique<GatherExample>());
    std::rotate(layers.back()->cache_k.begin(), layers.back()->cache_k.begin() + i + 1,
                layers.back()->cache_k.end());
  }
  const Plan planned = plan(layers[0]->args, context).value();
  Scratch scratch(planned);
  for (const auto& layer : layers) {
    GatherPaKvCacheBuffers pointers = buffers(layer->args);
    pointers.workspace = scratch.get();
    ASSERT_TRUE(run(planned, pointers, context).ok());
  }
  for (const auto& layer : layers) EXPECT_TRUE(layer->right());
}

TEST(Plan, OneScheduleServesManyLayers) {
  const Context context = with_threads(2);
  SelectionExample first;
  std::vector<std::unique_ptr<SelectionExample>> layers;
  for (int i = 0; i < 61; ++i) {
    layers.push_back(std::make_unique<SelectionExample>());
    std::rotate(layers.back()->full.begin(), layers.back()->full.begin() + i + 1, layers.back()->full.end());
  }
  const Plan planned = plan(first.args, context).value();
  Scratch scratch(planned);
  GatherSelectionKvCacheBuffers pointers = buffers(first.args);
  pointers.selection_kv_cache = nullptr;  // not looked at
  pointers.full_kv_cache = nullptr;
  pointers.workspace = scratch.get();
  ASSERT_TRUE(schedule(planned, pointers, context).ok());
  for (const auto& layer : layers) {
    GatherSelectionKvCacheBuffers caches;
    caches.selection_kv_cache = layer->selection.data();
    caches.full_kv_cache = layer->full.data();
    caches.workspace = scratch.get();
    ASSERT_TRUE(copy(planned, caches, context).ok());
  }
  for (const auto& layer : layers) {
    layer->status = first.status;
    layer->out = first.out;
    EXPECT_TRUE(layer->right());
  }
}

TEST(Plan, OutlivesItsContextAndArguments) {
  GatherExample example;
  Plan kept;
  {
    const Context context = with_threads(3);
    const GatherPaKvCacheArgs args = example.args;
    kept = plan(args, context).value();
  }
  const Plan copy = kept;
  kept = Plan();
  Scratch scratch(copy);
  GatherPaKvCacheBuffers pointers = buffers(example.args);
  pointers.workspace = scratch.get();
  EXPECT_TRUE(run(copy, pointers, with_threads(1)).ok());
  EXPECT_TRUE(example.right());
}

TEST(Plan, DescribesItself) {
  GatherExample example;
  const Plan planned = plan(example.args, with_threads(2)).value();
  const std::string text = planned.describe();
  EXPECT_TRUE(has(text, std::string(planned.implementation()))) << text;
  EXPECT_TRUE(has(text, "gather_pa_kv_cache")) << text;
  EXPECT_TRUE(has(text, std::to_string(planned.workspace_bytes()))) << text;
  EXPECT_TRUE(has(text, "1100")) << text;  // CANN's tiling key: Norm, plain lengths, no offset
}

TEST(Workspace, TooSmallNamesBothNumbers) {
  const Context context = with_threads(1);
  GatherExample example;
  const Plan planned = plan(example.args, context).value();
  const std::int64_t needed = planned.workspace_bytes();
  ASSERT_GT(needed, 0);
  std::vector<std::byte> memory(static_cast<std::size_t>(needed) + 1);
  GatherPaKvCacheBuffers pointers = buffers(example.args);
  for (const std::int64_t bytes : {std::int64_t{0}, needed - 1}) {
    pointers.workspace = {memory.data(), bytes};
    const Status status = run(planned, pointers, context);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(has(status.message(), "workspace")) << status.message();
    EXPECT_TRUE(has(status.message(), std::to_string(bytes))) << status.message();
    EXPECT_TRUE(has(status.message(), std::to_string(needed))) << status.message();
    EXPECT_TRUE(example.untouched());
  }
  pointers.workspace = {nullptr, needed};
  EXPECT_EQ(run(planned, pointers, context).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(example.untouched());
  pointers.workspace = {memory.data() + 1, needed};  // any alignment
  EXPECT_TRUE(run(planned, pointers, context).ok());
  EXPECT_TRUE(example.right());
}

TEST(Run, NullBuffersAreNamed) {
  const Context context = with_threads(1);
  GatherExample gather;
  const Plan planned = plan(gather.args, context).value();
  Scratch scratch(planned);
  const auto check = [&](const char* name, auto member) {
    GatherPaKvCacheBuffers pointers = buffers(gather.args);
    pointers.workspace = scratch.get();
    pointers.*member = nullptr;
    const Status status = run(planned, pointers, context);
    EXPECT_EQ(status.code(), StatusCode::kNull) << name;
    EXPECT_TRUE(has(status.message(), std::string(name) + ":")) << status.message();
    EXPECT_TRUE(gather.untouched()) << name;
  };
  check("key_cache", &GatherPaKvCacheBuffers::key_cache);
  check("value_cache", &GatherPaKvCacheBuffers::value_cache);
  check("block_tables", &GatherPaKvCacheBuffers::block_tables);
  check("seq_lens", &GatherPaKvCacheBuffers::seq_lens);
  check("key", &GatherPaKvCacheBuffers::key);
  check("value", &GatherPaKvCacheBuffers::value);

  ScatterExample scatter;
  const Plan scatter_plan = plan(scatter.args, context).value();
  const auto check_scatter = [&](const char* name, auto member) {
    ScatterPaKvCacheBuffers pointers = buffers(scatter.args);
    pointers.*member = nullptr;
    const Status status = run(scatter_plan, pointers, context);
    EXPECT_EQ(status.code(), StatusCode::kNull) << name;
    EXPECT_TRUE(has(status.message(), std::string(name) + ":")) << status.message();
    EXPECT_TRUE(scatter.untouched()) << name;
  };
  check_scatter("key", &ScatterPaKvCacheBuffers::key);
  check_scatter("key_cache", &ScatterPaKvCacheBuffers::key_cache);
  check_scatter("slot_mapping", &ScatterPaKvCacheBuffers::slot_mapping);

  GatherDequantExample dequant;
  const Plan dequant_plan = plan(dequant.args, context).value();
  Scratch dequant_scratch(dequant_plan);
  const auto check_dequant = [&](const char* name, auto member) {
    GatherDequantBuffers pointers = buffers(dequant.args);
    pointers.workspace = dequant_scratch.get();
    pointers.*member = nullptr;
    const Status status = run(dequant_plan, pointers, context);
    EXPECT_EQ(status.code(), StatusCode::kNull) << name;
    EXPECT_TRUE(has(status.message(), std::string(name) + ":")) << status.message();
    EXPECT_TRUE(dequant.untouched()) << name;
  };
  check_dequant("cache", &GatherDequantBuffers::cache);
  check_dequant("block_tables", &GatherDequantBuffers::block_tables);
  check_dequant("seq_lens", &GatherDequantBuffers::seq_lens);
  check_dequant("out", &GatherDequantBuffers::out);
  GroupMemcpyExample copies;
  GroupMemcpyBuffers pointers = buffers(copies.args);
  pointers.addr_table = nullptr;
  EXPECT_EQ(run(plan(copies.args, context).value(), pointers, context).code(), StatusCode::kNull);

  SelectionExample selection;
  std::vector<std::int32_t> numbers(6, 1);
  selection.args.status_row = contiguous(numbers.data(), DType::kInt32, {2});
  selection.args.counters = contiguous(numbers.data(), DType::kInt32, {2, 3});
  selection.args.fetch_counts = contiguous(numbers.data(), DType::kInt32, {1});
  selection.args.selection_k_rope = selection.args.selection_kv_cache;
  selection.args.full_k_rope = selection.args.full_kv_cache;
  const Plan selection_plan = plan(selection.args, context).value();
  Scratch selection_scratch(selection_plan);
  const auto check_selection = [&](const char* name, auto member, bool cache) {
    GatherSelectionKvCacheBuffers parts = buffers(selection.args);
    parts.workspace = selection_scratch.get();
    parts.*member = nullptr;
    for (const auto& part : {run, cache ? copy : schedule}) {
      const Status status = part(selection_plan, parts, context);
      EXPECT_EQ(status.code(), StatusCode::kNull) << name;
      EXPECT_TRUE(has(status.message(), std::string(name) + ":")) << status.message();
    }
    EXPECT_TRUE(selection.untouched()) << name;
  };
  using Selection = GatherSelectionKvCacheBuffers;
  check_selection("selection_k_rope", &Selection::selection_k_rope, true);
  check_selection("selection_kv_cache", &Selection::selection_kv_cache, true);
  check_selection("full_k_rope", &Selection::full_k_rope, true);
  check_selection("full_kv_cache", &Selection::full_kv_cache, true);
  check_selection("selection_kv_block_table", &Selection::selection_kv_block_table, false);
  check_selection("selection_kv_block_status", &Selection::selection_kv_block_status, false);
  check_selection("selection_topk_indices", &Selection::selection_topk_indices, false);
  check_selection("full_kv_block_table", &Selection::full_kv_block_table, false);
  check_selection("full_kv_actual_seq", &Selection::full_kv_actual_seq, false);
  check_selection("full_q_actual_seq", &Selection::full_q_actual_seq, false);
  check_selection("selection_kv_actual_seq", &Selection::selection_kv_actual_seq, false);
  check_selection("status_row", &Selection::status_row, false);
  check_selection("counters", &Selection::counters, false);
  check_selection("fetch_counts", &Selection::fetch_counts, false);
}

TEST(Run, NullPointersInArraysAreNamed) {
  const Context context = with_threads(1);
  BlocksExample blocks;
  const std::int64_t count = 1;
  blocks.copy.count = blocks.swap.count = contiguous(&count, DType::kInt64, {});
  const auto check = [&](const Plan& planned, const auto& pointers, const char* name) {
    const Status status = run(planned, pointers, context);
    EXPECT_EQ(status.code(), StatusCode::kNull) << name;
    EXPECT_TRUE(has(status.message(), std::string(name) + ":")) << status.message();
    EXPECT_TRUE(blocks.untouched()) << name;
  };
  const auto check_member = [&](const Plan& planned, auto pointers, auto member, const char* name) {
    pointers.*member = nullptr;
    check(planned, pointers, name);
  };
  const Plan copy = plan(blocks.copy, context).value();
  check_member(copy, blocks.copy_buffers(), &CopyBlocksBuffers::caches, "caches");
  check_member(copy, blocks.copy_buffers(), &CopyBlocksBuffers::mapping, "mapping");
  check_member(copy, blocks.copy_buffers(), &CopyBlocksBuffers::count, "count");
  const CopyBlocksBuffers copy_pointers = blocks.copy_buffers();
  blocks.caches[1] = nullptr;
  check(copy, copy_pointers, "caches[1]");

  const Plan swap = plan(blocks.swap, context).value();
  check_member(swap, blocks.swap_buffers(), &SwapBlocksBuffers::src, "src");
  check_member(swap, blocks.swap_buffers(), &SwapBlocksBuffers::dst, "dst");
  check_member(swap, blocks.swap_buffers(), &SwapBlocksBuffers::mapping, "mapping");
  check_member(swap, blocks.swap_buffers(), &SwapBlocksBuffers::count, "count");
  SwapBlocksBuffers swap_pointers = blocks.swap_buffers();
  blocks.sources[0] = nullptr;
  check(swap, swap_pointers, "src[0]");
  swap_pointers = blocks.swap_buffers();
  blocks.caches[1] = nullptr;
  check(swap, swap_pointers, "dst[1]");
}

TEST(Run, NullIsFineForWhatIsEmpty) {
  const Context context = with_threads(1);
  GatherExample example;
  example.args.value_cache = contiguous(static_cast<void*>(nullptr), DType::kUInt8, {3, 4, 1, 0});
  example.args.value = contiguous(static_cast<void*>(nullptr), DType::kUInt8, {example.rows, 1, 0});
  EXPECT_TRUE(gather_pa_kv_cache(example.args, context).ok());
  GroupMemcpyArgs nothing;
  nothing.addr_table = contiguous(static_cast<void*>(nullptr), DType::kInt64, {0});
  nothing.copy_bytes = 64;
  const Plan planned = plan(nothing, context).value();
  EXPECT_EQ(planned.workspace_bytes(), 0);
  EXPECT_TRUE(run(planned, buffers(nothing), context).ok());

  CopyBlocksArgs no_caches;
  no_caches.mapping = contiguous(static_cast<void*>(nullptr), DType::kInt64, {0, 2});
  no_caches.index_policy = IndexPolicy::kReject;
  EXPECT_TRUE(run(plan(no_caches, context).value(), buffers(no_caches, nullptr), context).ok());
  SwapBlocksArgs no_tensors;
  no_tensors.mapping = no_caches.mapping;
  EXPECT_TRUE(run(plan(no_tensors, context).value(), buffers(no_tensors, nullptr, nullptr), context).ok());
}

TEST(Context, DevicesThatAreNotThere) {
  const Environment force("KVFERRY_FORCE_IMPL", "generic"), threads("KVFERRY_NUM_THREADS", "x");
  const BackendInfo cuda = backends()[1];
  ContextOptions options;
  GatherExample example;
  // No machine has the first.
  for (const int index : cuda.available ? std::vector<int>{1000} : std::vector<int>{1000, 0}) {
    const std::string device = "cuda:" + std::to_string(index) + ": ";
    options.device = {DeviceType::kCuda, index};
    for (const char* implementation : {"", "cuda", "avx2"}) {
      options.implementation = implementation;
      const Context context(options);
      for (int i = 0; i < 2; ++i) {
        const Result<Plan> planned = plan(example.args, context);
        ASSERT_FALSE(planned.ok());
        EXPECT_EQ(planned.status().code(), StatusCode::kUnavailable);
        EXPECT_EQ(planned.status().message().rfind(device, 0), 0U) << planned.status().message();
        if (!cuda.available) {
          EXPECT_EQ(planned.status().message(), device + cuda.detail);
        }
      }
      EXPECT_EQ(gather_pa_kv_cache(example.args, context).code(), StatusCode::kUnavailable);
    }
    const Result<PinnedBuffer> pinned = PinnedBuffer::make(4096, options.device);
    ASSERT_FALSE(pinned.ok());
    EXPECT_EQ(pinned.status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(pinned.status().message().rfind("PinnedBuffer: " + device, 0), 0U) << pinned.status().message();
  }
  options = {};
  options.threads = 1;
  for (const Device device :
       {Device{DeviceType::kCpu, 1}, Device{DeviceType::kCudaHost, 0}, Device{DeviceType::kCudaManaged, 0}}) {
    options.device = device;
    const Result<Plan> planned = plan(example.args, Context(options));
    ASSERT_FALSE(planned.ok());
    EXPECT_EQ(planned.status().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(has(planned.status().message(), to_string(device))) << planned.status().message();
  }
  EXPECT_TRUE(example.untouched());
}

TEST(Context, CudaStreamsAreOfCudaDevices) {
  ContextOptions options;
  options.cuda_stream = &options;
  GatherExample example;
  const Result<Plan> planned = plan(example.args, Context(options));
  ASSERT_FALSE(planned.ok());
  EXPECT_EQ(planned.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(has(planned.status().message(), "cuda_stream")) << planned.status().message();
  EXPECT_TRUE(has(planned.status().message(), "cpu:0")) << planned.status().message();
  Stream stream;
  options = {};
  options.device = {DeviceType::kCuda, 0};
  options.stream = &stream;
  const Status status = gather_pa_kv_cache(example.args, Context(options));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(has(status.message(), "cuda_stream")) << status.message();
  EXPECT_TRUE(example.untouched());
}

TEST(Run, PlansAreForTheirDevice) {
  GatherExample example;
  const Plan planned = plan(example.args, with_threads(1)).value();
  Scratch scratch(planned);
  GatherPaKvCacheBuffers pointers = buffers(example.args);
  pointers.workspace = scratch.get();
  ContextOptions options;
  options.device = {DeviceType::kCuda, 1000};
  const Status status = run(planned, pointers, Context(options));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(has(status.message(), "cuda:1000, expected the plan's cpu:0")) << status.message();
  EXPECT_TRUE(example.untouched());
  EXPECT_TRUE(run(planned, pointers, with_threads(2)).ok());
  EXPECT_TRUE(example.right());
}

TEST(Backends, AreListed) {
  const std::vector<BackendInfo> all = backends();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].name, "cpu");
  EXPECT_TRUE(all[0].available);
  // Best first, and what it says can be had.
  EXPECT_TRUE(has(", " + all[0].detail + ",", ", generic,")) << all[0].detail;
  GatherExample example;
  const std::string first = all[0].detail.substr(0, all[0].detail.find(','));
  EXPECT_EQ(plan(example.args, Context())->implementation(), first);
  EXPECT_EQ(all[1].name, "cuda");
  EXPECT_FALSE(all[1].detail.empty());
  EXPECT_EQ(all[1].available, has(all[1].detail, "cuda:0 ")) << all[1].detail;
}

TEST(DeviceMemory, IsOfACudaDevice) {
  const Context context;
  const std::string reason = ": the context's device is the CPU, expected a CUDA device";
  for (const auto& [status, name] : {std::pair(device_workspace(context, 1).status(), "device_workspace"),
                                     std::pair(device_memory(context, 1).status(), "device_memory"),
                                     std::pair(device_wait(context), "device_wait")}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), name + reason);
  }
}

TEST(PinnedBuffers, RefuseWhatIsNoCudaDeviceOrSize) {
  for (const DeviceType type : {DeviceType::kCpu, DeviceType::kCudaHost, DeviceType::kCudaManaged}) {
    const Result<PinnedBuffer> refused = PinnedBuffer::make(1, {type, 0});
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(has(refused.status().message(), to_string(Device{type, 0}))) << refused.status().message();
  }
  const Result<PinnedBuffer> refused = PinnedBuffer::make(-5, {DeviceType::kCuda, 0});
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(has(refused.status().message(), "-5")) << refused.status().message();
  const Result<PinnedBuffer> nothing = PinnedBuffer::make(0, {DeviceType::kCuda, 0});
  ASSERT_TRUE(nothing.ok());
  EXPECT_EQ(nothing->data(), nullptr);
  EXPECT_EQ(nothing->device_data(), nullptr);
  EXPECT_EQ(nothing->bytes(), 0);
}

TEST(Context, ForcedImplementations) {
  GatherExample example;
  for (const char* name : {"generic", "avx2", "avx512", "neon"}) {
    const Result<Plan> planned = plan(example.args, forced(name));
    if (!planned.ok()) {
      EXPECT_EQ(planned.status().code(), StatusCode::kUnavailable);
      EXPECT_TRUE(has(planned.status().message(), name));
      continue;
    }
    EXPECT_EQ(planned->implementation(), name);
    example.clear();
    EXPECT_TRUE(gather_pa_kv_cache(example.args, forced(name)).ok());
    EXPECT_TRUE(example.right());
  }
  example.clear();
  const Status status = gather_pa_kv_cache(example.args, forced("warp9"));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  for (const char* part : {"gather_pa_kv_cache", "warp9", "generic"})
    EXPECT_TRUE(has(status.message(), part)) << part;
  EXPECT_TRUE(example.untouched());
  EXPECT_EQ(plan(ScatterExample().args, forced("warp9")).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(plan(GroupMemcpyExample().args, forced("warp9")).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(plan(SelectionExample().args, forced("warp9")).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(plan(BlocksExample().copy, forced("warp9")).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(plan(BlocksExample().swap, forced("warp9")).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(plan(TransferLayersExample().args, forced("warp9")).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(plan(GatherDequantExample().args, forced("warp9")).status().code(), StatusCode::kUnavailable);
}

TEST(Context, ForcedByTheEnvironment) {
  GatherExample example;
  {
    const Environment force("KVFERRY_FORCE_IMPL", "generic");
    EXPECT_EQ(plan(example.args, Context())->implementation(), "generic");
    EXPECT_EQ(plan(ScatterExample().args, Context())->implementation(), "generic");
    EXPECT_EQ(plan(GroupMemcpyExample().args, Context())->implementation(), "generic");
    EXPECT_EQ(plan(SelectionExample().args, Context())->implementation(), "generic");
    EXPECT_EQ(plan(BlocksExample().copy, Context())->implementation(), "generic");
    EXPECT_EQ(plan(BlocksExample().swap, Context())->implementation(), "generic");
    EXPECT_EQ(plan(TransferLayersExample().args, Context())->implementation(), "generic");
    EXPECT_EQ(plan(GatherDequantExample().args, Context())->implementation(), "generic");
  }
  {
    const Environment force("KVFERRY_FORCE_IMPL", "warp9");
    const Context context;
    const Result<Plan> planned = plan(example.args, context);
    EXPECT_EQ(planned.status().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(has(planned.status().message(), "warp9"));
    EXPECT_EQ(plan(example.args, forced("generic"))->implementation(), "generic");  // the option wins
    const Environment changed("KVFERRY_FORCE_IMPL", "generic");
    EXPECT_FALSE(plan(example.args, context).ok());  // read once, in the constructor
  }
}

TEST(Context, Threads) {
  EXPECT_EQ(with_threads(3).threads(), 3);
  EXPECT_GE(Context().threads(), 1);
  GatherExample example;
  {
    const Environment threads("KVFERRY_NUM_THREADS", "5");
    EXPECT_EQ(Context().threads(), 5);
    EXPECT_EQ(with_threads(2).threads(), 2);
  }
  for (const char* bad : {"0", "-1", "x", "3x", "99999999999", "1e3"}) {
    const Environment threads("KVFERRY_NUM_THREADS", bad);
    const Result<Plan> planned = plan(example.args, Context());
    ASSERT_FALSE(planned.ok()) << bad;
    EXPECT_EQ(planned.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(has(planned.status().message(), "KVFERRY_NUM_THREADS")) << planned.status().message();
    EXPECT_TRUE(has(planned.status().message(), bad)) << planned.status().message();
    EXPECT_TRUE(plan(example.args, with_threads(1)).ok());
  }
  const Result<Plan> planned = plan(example.args, with_threads(-3));
  EXPECT_EQ(planned.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(has(planned.status().message(), "-3"));
}

TEST(Context, Processors) {
  cpu_set_t own;
  ASSERT_EQ(sched_getaffinity(0, sizeof own, &own), 0);
  int first = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(first), &own)) ++first;
  GatherExample example;
  ContextOptions options;
  options.cpus = {first, first};
  EXPECT_EQ(Context(options).threads(), 1);  // the default follows them
  EXPECT_TRUE(plan(example.args, Context(options)).ok());
  options.threads = 3;
  EXPECT_EQ(Context(options).threads(), 3);
  for (const int bad : {-1, CPU_SETSIZE - 1, CPU_SETSIZE, 1 << 30}) {
    options.cpus = {first, bad};
    const Result<Plan> planned = plan(example.args, Context(options));
    ASSERT_FALSE(planned.ok()) << bad;
    EXPECT_EQ(planned.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(has(planned.status().message(), "cpus[1] is " + std::to_string(bad)))
        << planned.status().message();
  }
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&own, &after));
}

TEST(Context, ProcessorsBeyondThoseOfABoundThread) {
  cpu_set_t own, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof own, &own), 0);
  if (CPU_COUNT(&own) < 2) GTEST_SKIP() << "needs two processors";
  int first = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(first), &own)) ++first;
  ContextOptions options;
  for (int cpu = first; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &own)) options.cpus.push_back(cpu);
  }
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(first), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_TRUE(plan(GatherExample().args, Context(options)).ok());
  EXPECT_EQ(Context(options).threads(), CPU_COUNT(&own));
  ASSERT_EQ(sched_setaffinity(0, sizeof own, &own), 0);
}

TEST(Context, SmallCallsStartNoThread) {
  const int before = threads_of_this_process();
  const Context context = with_threads(4);
  GatherExample small;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(gather_pa_kv_cache(small.args, context).ok());
  EXPECT_EQ(threads_of_this_process(), before);
  GatherExample large(64 << 10, 64);  // 32 MiB
  EXPECT_TRUE(gather_pa_kv_cache(large.args, context).ok());
  EXPECT_EQ(threads_of_this_process(), before + 3);
  EXPECT_TRUE(large.right());
}

TEST(Context, ThreadsEndWithIt) {
  const int before = threads_of_this_process();
  {
    GatherExample large(64 << 10, 64);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(gather_pa_kv_cache(large.args, with_threads(4)).ok());
  }
  EXPECT_EQ(threads_of_this_process(), before);
}

TEST(Context, OneForManyThreads) {
  const Context context = with_threads(3);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  callers.reserve(6);
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&context, &wrong, caller] {
      // Large ones compete for the helpers, one-call forms for the workspace.
      GatherExample gather(caller % 2 == 0 ? 8 << 10 : 40, 16);
      ScatterExample scatter(caller % 2 == 0 ? 8 << 10 : 40, 100);
      GroupMemcpyExample copies(1000, 900);
      SelectionExample selection(caller % 2 == 0 ? 8 << 10 : 40, 60);
      TransferLayersExample layers(caller % 2 == 0 ? 8 << 10 : 40, 20);
      GatherDequantExample dequant(caller % 2 == 0 ? 100 : 2);
      scatter.args.index_policy = IndexPolicy::kReject;
      copies.args.checked = true;
      BlocksExample blocks(1000, 900);
      blocks.copy.index_policy = blocks.swap.index_policy = IndexPolicy::kReject;
      for (int i = 0; i < 25; ++i) {
        gather.clear();
        wrong += gather_pa_kv_cache(gather.args, context).ok() && gather.right() ? 0 : 1;
        wrong += scatter_pa_kv_cache(scatter.args, context).ok() && scatter.right() ? 0 : 1;
        wrong += group_memcpy(copies.args, context).ok() && copies.right() ? 0 : 1;
        selection.clear();
        wrong += gather_selection_kv_cache(selection.args, context).ok() && selection.right() ? 0 : 1;
        wrong += swap_blocks(blocks.swap, context).ok() && blocks.swapped() ? 0 : 1;
        wrong += copy_blocks(blocks.copy, context).ok() && blocks.copied() ? 0 : 1;
        wrong += transfer_layers(layers.args, context).ok() && layers.right() ? 0 : 1;
        wrong += gather_dequant(dequant.args, context).ok() && dequant.right() ? 0 : 1;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Plan, OneForManyThreads) {
  GatherExample model(4 << 10, 16);
  const Plan planned = plan(model.args, with_threads(1)).value();
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&planned, &wrong] {
      const Context context = with_threads(2);
      GatherExample mine(4 << 10, 16);
      Scratch scratch(planned);
      GatherPaKvCacheBuffers pointers = buffers(mine.args);
      pointers.workspace = scratch.get();
      for (int i = 0; i < 25; ++i) {
        mine.clear();
        wrong += run(planned, pointers, context).ok() && mine.right() ? 0 : 1;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Stream, IsFifo) {
  // Each copy reads what the one before it wrote. More of them than any ring buffer holds at first.
  constexpr std::size_t kLinks = 1500;
  constexpr std::size_t kBytes = 3000;
  std::vector<std::uint8_t> memory((kLinks + 1) * kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) memory[i] = static_cast<std::uint8_t>(i * 13 + 1);
  std::vector<std::uint64_t> table(2 * kLinks);
  Stream stream;
  const Context context = with_stream(stream);
  for (std::size_t i = 0; i < kLinks; ++i) {
    table[2 * i] = reinterpret_cast<std::uintptr_t>(memory.data() + i * kBytes);
    table[2 * i + 1] = reinterpret_cast<std::uintptr_t>(memory.data() + (i + 1) * kBytes);
    GroupMemcpyArgs args;
    args.addr_table = contiguous(table.data() + 2 * i, DType::kUInt64, {2});
    args.copy_bytes = kBytes;
    ASSERT_TRUE(group_memcpy(args, context).ok());
  }
  EXPECT_TRUE(stream.wait().ok());
  EXPECT_TRUE(std::equal(memory.begin(), memory.begin() + kBytes, memory.end() - kBytes));
}

TEST(Stream, WorksThroughContextsInOrder) {
  // Two contexts on one stream, one with helper threads: gather, then scatter what was gathered.
  Stream stream;
  const Context first = with_stream(stream, 3);
  const Context second = with_stream(stream, 1);
  GatherExample gather(16 << 10, 32);
  ScatterExample scatter(16 << 10, gather.rows);
  scatter.args.key.data = gather.key.data();
  EXPECT_TRUE(gather_pa_kv_cache(gather.args, first).ok());
  EXPECT_TRUE(scatter_pa_kv_cache(scatter.args, second).ok());
  EXPECT_TRUE(stream.wait().ok());
  scatter.key = gather.key;
  EXPECT_TRUE(gather.right());
  EXPECT_TRUE(scatter.right());
}

TEST(Stream, RefusalComesOnceAndStopsNothing) {
  Stream stream;
  const Context context = with_stream(stream);
  GatherExample bad;
  bad.args.index_policy = IndexPolicy::kReject;
  bad.table[1] = 999;
  GatherExample also_bad;
  also_bad.args.index_policy = IndexPolicy::kReject;
  also_bad.table[0] = -5;
  GatherExample good;
  EXPECT_TRUE(gather_pa_kv_cache(bad.args, context).ok());
  EXPECT_TRUE(gather_pa_kv_cache(also_bad.args, context).ok());
  EXPECT_TRUE(gather_pa_kv_cache(also_bad.args, context).ok());
  EXPECT_TRUE(gather_pa_kv_cache(good.args, context).ok());
  const Status status = stream.wait();
  EXPECT_EQ(status.code(), StatusCode::kIndex);
  EXPECT_TRUE(has(status.message(), "999")) << status.message();  // the first
  EXPECT_FALSE(has(status.message(), "-5")) << status.message();
  EXPECT_TRUE(has(status.message(), "2 later")) << status.message();  // and how many followed
  EXPECT_TRUE(bad.untouched());
  EXPECT_TRUE(also_bad.untouched());
  EXPECT_TRUE(good.right());
  EXPECT_TRUE(stream.wait().ok());
  EXPECT_TRUE(gather_pa_kv_cache(also_bad.args, context).ok());
  EXPECT_TRUE(has(stream.wait().message(), "-5"));
}

TEST(Stream, OneCallFormsKeepTheirPointers) {
  Stream stream;
  const Context context = with_stream(stream, 2);
  BlocksExample blocks(64 << 10, 40);
  for (int i = 0; i < 5; ++i) {
    const std::vector<TensorView> src = blocks.src_views;  // gone before the stream comes to it
    const std::vector<TensorView> dst = blocks.dst_views;
    CopyBlocksArgs copy = blocks.copy;
    copy.caches = src;
    SwapBlocksArgs swap = blocks.swap;
    swap.src = src;
    swap.dst = dst;
    EXPECT_TRUE(swap_blocks(swap, context).ok());
    EXPECT_TRUE(copy_blocks(copy, context).ok());
  }
  EXPECT_TRUE(stream.wait().ok());
  EXPECT_TRUE(blocks.swapped());
  EXPECT_TRUE(blocks.copied());
}

TEST(Stream, ChecksOfPlanAndBuffersComeAtOnce) {
  Stream stream;
  const Context context = with_stream(stream);
  GatherExample example;
  const Plan planned = plan(example.args, context).value();
  EXPECT_EQ(run(planned, buffers(example.args), context).code(),
            StatusCode::kInvalidArgument);  // no workspace
  example.args.key.rank = 2;
  EXPECT_EQ(gather_pa_kv_cache(example.args, context).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(stream.wait().ok());
  EXPECT_TRUE(example.untouched());
}

TEST(Stream, DestructorWaits) {
  GatherExample example(16 << 10, 64);
  {
    Stream stream;
    const Context context = with_stream(stream, 2);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(gather_pa_kv_cache(example.args, context).ok());
  }
  EXPECT_TRUE(example.right());
}

TEST(Stream, OutlivesContextsAndPlansOfItsWork) {
  // The stream keeps what its work needs; the caller keeps the buffers.
  Stream stream;
  GatherExample example(16 << 10, 64);
  {
    const Context context = with_stream(stream, 2);
    EXPECT_TRUE(gather_pa_kv_cache(example.args, context).ok());
  }
  EXPECT_TRUE(stream.wait().ok());
  EXPECT_TRUE(example.right());
}

TEST(Stream, OneCallFormsKeepTheirListsOfPools) {
  Stream stream;
  TransferLayersExample example(16 << 10, 32);
  {
    const Context context = with_stream(stream, 2);
    GatherExample busy(16 << 10, 64);  // the transfer waits behind it
    EXPECT_TRUE(gather_pa_kv_cache(busy.args, context).ok());
    std::vector<TensorView> pools = example.pools;
    TransferLayersArgs args = example.args;
    args.key_caches = pools;
    EXPECT_TRUE(transfer_layers(args, context).ok());
    for (TensorView& pool : pools) pool.data = nullptr;
    EXPECT_TRUE(stream.wait().ok());
  }
  EXPECT_TRUE(example.right());
}

TEST(Stream, ManyThreadsEnqueueAndWait) {
  Stream stream;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&stream, &wrong] {
      const Context context = with_stream(stream);
      for (int i = 0; i < 50; ++i) {
        GatherExample gather;
        ScatterExample scatter;
        if (!gather_pa_kv_cache(gather.args, context).ok() ||
            !scatter_pa_kv_cache(scatter.args, context).ok())
          ++wrong;
        // wait() covers what was enqueued before it, so the buffers may die now.
        if (!stream.wait().ok() || !gather.right() || !scatter.right()) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ErrorRecord, AccumulatesOverCalls) {
  const Context context = with_threads(1);
  ErrorRecord record;
  GatherExample example;
  example.args.index_policy = IndexPolicy::kReport;
  example.table[2] = 77;  // batch 1, column 0
  EXPECT_TRUE(gather_pa_kv_cache(example.args, context, &record).ok());
  EXPECT_EQ(record.bad, 2U);
  EXPECT_EQ(record.batch, 1);
  EXPECT_EQ(record.id, 77);
  EXPECT_EQ(record.op, static_cast<std::uint32_t>(Operator::kGatherPaKvCache));
  example.table[1] = -9;  // lower: batch 0, column 1
  EXPECT_TRUE(gather_pa_kv_cache(example.args, context, &record).ok());
  EXPECT_EQ(record.bad, 6U);
  EXPECT_EQ(record.batch, 0);
  EXPECT_EQ(record.column, 1);
  EXPECT_EQ(record.id, -9);
  EXPECT_EQ(record.which, kBadKey | kBadValue);
  example.table[1] = 0;
  EXPECT_TRUE(gather_pa_kv_cache(example.args, context, &record).ok());
  EXPECT_EQ(record.bad, 8U);
  EXPECT_EQ(record.id, -9);  // the lowest so far stays
  EXPECT_TRUE(gather_pa_kv_cache(example.args, context, nullptr).ok());

  ErrorRecord slots;
  ScatterExample scatter;
  scatter.args.index_policy = IndexPolicy::kReport;
  scatter.slots[3] = 1 << 20;
  scatter.slots[4] = 0;
  EXPECT_TRUE(scatter_pa_kv_cache(scatter.args, context, &slots).ok());
  EXPECT_TRUE(scatter_pa_kv_cache(scatter.args, context, &slots).ok());
  EXPECT_EQ(slots.bad, 4U);
  EXPECT_EQ(slots.batch, 3);
  EXPECT_EQ(slots.id, 1 << 20);
  EXPECT_EQ(slots.which, kBadKey);
  EXPECT_TRUE(scatter_pa_kv_cache(scatter.args, context, nullptr).ok());

  ErrorRecord selected;
  SelectionExample selection;
  selection.args.index_policy = IndexPolicy::kReport;
  selection.full_table[0] = -3;  // tokens 0 to 3: row 1 wants them all
  EXPECT_TRUE(gather_selection_kv_cache(selection.args, context, &selected).ok());
  EXPECT_EQ(selected.bad, 4U);
  EXPECT_EQ(selected.batch, 1);
  EXPECT_EQ(selected.column, 2);
  EXPECT_EQ(selected.id, 3);
  EXPECT_EQ(selected.which, kBadSource);
  EXPECT_EQ(selected.op, static_cast<std::uint32_t>(Operator::kGatherSelectionKvCache));
  selection.table[0] = 99;  // slots 0 to 3 of row 0
  EXPECT_TRUE(gather_selection_kv_cache(selection.args, context, &selected).ok());
  EXPECT_EQ(selected.bad, 12U);
  EXPECT_EQ(selected.batch, 0);
  EXPECT_EQ(selected.column, 0);
  EXPECT_EQ(selected.which, kBadDestination);
}

TEST(ErrorRecord, CountsPairsOfBlocks) {
  const Context context = with_threads(1);
  ErrorRecord record;
  BlocksExample blocks;
  blocks.copy.index_policy = IndexPolicy::kReport;
  blocks.mapping[6] = 10;  // the source of pair 3, of 10 blocks
  EXPECT_TRUE(copy_blocks(blocks.copy, context, &record).ok());
  EXPECT_EQ(record.which, kBadSource);
  blocks.mapping[6] = 3;
  blocks.mapping[5] = blocks.mapping[1];  // the destinations of pairs 2 and 0
  EXPECT_TRUE(copy_blocks(blocks.copy, context, &record).ok());
  EXPECT_EQ(record.bad, 2U);
  EXPECT_EQ(record.batch, 2);
  EXPECT_EQ(record.id, 9);
  EXPECT_EQ(record.which, kBadDestination | kBadDuplicate);
  EXPECT_EQ(record.op, static_cast<std::uint32_t>(Operator::kCopyBlocks));
  EXPECT_TRUE(copy_blocks(blocks.copy, context, nullptr).ok());
}

TEST(ErrorRecord, OfTransferLayersAccumulates) {
  const Context context = with_threads(1);
  ErrorRecord record;
  TransferLayersExample example;
  example.args.index_policy = IndexPolicy::kReport;
  example.ids[2] = 1000;
  EXPECT_TRUE(transfer_layers(example.args, context, &record).ok());
  EXPECT_EQ(record.bad, 1U);  // once, not for each layer
  EXPECT_EQ(record.which, kBadSource);
  example.args.direction = TransferDirection::kChunkToPools;
  example.ids[1] = example.ids[0];
  EXPECT_TRUE(transfer_layers(example.args, context, &record).ok());
  EXPECT_EQ(record.bad, 3U);
  EXPECT_EQ(record.batch, 1);
  EXPECT_EQ(record.which, kBadDuplicate);
  EXPECT_EQ(record.op, static_cast<std::uint32_t>(Operator::kTransferLayers));
  EXPECT_TRUE(transfer_layers(example.args, context, nullptr).ok());
}

TEST(ErrorRecord, TieOverCallsKeepsTheFirstEntry) {
  const Context context = with_threads(1);
  ErrorRecord record;
  ScatterExample scatter;
  scatter.args.index_policy = IndexPolicy::kReport;
  scatter.slots[3] = 1 << 20;
  EXPECT_TRUE(scatter_pa_kv_cache(scatter.args, context, &record).ok());
  scatter.slots[3] = 0;  // the same token, bad for another reason
  EXPECT_TRUE(scatter_pa_kv_cache(scatter.args, context, &record).ok());
  EXPECT_EQ(record.bad, 2U);
  EXPECT_EQ(record.batch, 3);
  EXPECT_EQ(record.id, 1 << 20);
  EXPECT_EQ(record.which, kBadKey);  // not mixed with the other entry's
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // they abort instead of throwing bad_alloc
TEST(OutOfMemory, IsAStatus) {
  // 2^45 batches, all of them the same row of length 0: the workspace is beyond any machine.
  GatherExample example;
  const std::int64_t batches = std::int64_t{1} << 45;
  std::int64_t zero = 0;
  example.args.block_tables = strided(example.table.data(), DType::kInt64, {batches, 2}, {0, 1});
  example.args.seq_lens = strided(&zero, DType::kInt64, {batches}, {0});
  EXPECT_EQ(gather_pa_kv_cache(example.args, with_threads(1)).code(), StatusCode::kOutOfMemory);
  EXPECT_TRUE(example.untouched());
}
#endif

}  // namespace
}  // namespace kvferry
