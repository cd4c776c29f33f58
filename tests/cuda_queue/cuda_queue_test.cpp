// SPDX-License-Identifier: Apache-2.0
//
// The queue of the CUDA backend against a runtime that is not there: what it calls, on which device and
// stream, and what it makes of errors.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/cuda/queue.hpp"
#include "core/impl.hpp"
#include "kvferry/backend.hpp"
#include "kvferry/memory.hpp"
#include "tests/cuda_queue/fake_runtime.hpp"
#include "tests/example_calls.hpp"

namespace kvferry {
namespace {

using fake::machine;
using internal::DeviceQueue;
using internal::cuda::CopyRun;
using internal::cuda::Queue;
using Calls = std::vector<std::string>;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class CudaQueue : public testing::Test {
 protected:
  void SetUp() override {
    machine() = {};
    machine().current = {0};  // the caller's device, which nothing may change
    stream_.device = 1;
  }
  // Whatever happened: the caller's device and error are as they were, and all is given back.
  void TearDown() override {
    EXPECT_EQ(machine().current, std::vector<int>{0});
    EXPECT_EQ(machine().last_error, cudaSuccess);
    EXPECT_EQ(machine().capture_mode, cudaStreamCaptureModeGlobal);
    EXPECT_TRUE(machine().device_memory.empty());
    EXPECT_TRUE(machine().host_memory.empty());
    for (const auto& [device, count] : machine().retained) EXPECT_EQ(count, 0) << device;
  }

  ContextOptions options(int device = 1) {
    ContextOptions o;
    o.device = {DeviceType::kCuda, device};
    o.cuda_stream = &stream_;
    return o;
  }
  Result<std::shared_ptr<DeviceQueue>> open() { return internal::open_cuda_queue(options()); }
  // On this stream.
  std::shared_ptr<Queue> opened(void* stream) {
    ContextOptions o = options();
    o.cuda_stream = stream;
    auto queue = internal::open_cuda_queue(o);
    EXPECT_TRUE(queue.ok()) << queue.status().message();
    machine().take();
    return std::static_pointer_cast<Queue>(queue.value());
  }
  std::shared_ptr<Queue> opened() { return opened(&stream_); }

  void expect_refused(const ContextOptions& o, StatusCode code, const std::string& message) {
    const auto queue = internal::open_cuda_queue(o);
    ASSERT_FALSE(queue.ok()) << message;
    EXPECT_EQ(queue.status().code(), code);
    EXPECT_EQ(queue.status().message(), message);
    EXPECT_EQ(machine().last_error, cudaSuccess);
  }

  fake::Stream stream_;
};

// A gather in memory of cuda:1.
struct DeviceGather : GatherExample {
  DeviceGather() {
    for (TensorView* view :
         {&args.key_cache, &args.value_cache, &args.block_tables, &args.seq_lens, &args.key, &args.value})
      view->device = {DeviceType::kCuda, 1};
  }
};

TEST_F(CudaQueue, SaysWhyThereIsNone) {
  machine().fails["cudaGetDeviceCount"] = cudaErrorInsufficientDriver;
  machine().driver = 0;
  expect_refused(options(0), StatusCode::kUnavailable,
                 "cuda:0: no CUDA driver (libcuda.so.1) on this machine");
  machine().driver = 12040;
  const std::string runtime =
      std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
  expect_refused(
      options(0), StatusCode::kUnavailable,
      "cuda:0: the CUDA driver of this machine is for CUDA 12.4, expected " + runtime + " or newer");
  machine().fails["cudaGetDeviceCount"] = cudaErrorNoDevice;
  expect_refused(options(0), StatusCode::kUnavailable,
                 "cuda:0: no CUDA device on this machine, or none visible");
  machine().fails["cudaGetDeviceCount"] = cudaErrorInitializationError;
  expect_refused(options(0), StatusCode::kUnavailable,
                 "cuda:0: error 3 (CUDA does not survive a fork after its first use)");
  machine().fails["cudaGetDeviceCount"] = cudaErrorStubLibrary;
  expect_refused(options(0), StatusCode::kUnavailable, "cuda:0: error 34");
  machine().fails.clear();
  for (const int index : {2, 3, -1, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    expect_refused(options(index), StatusCode::kUnavailable,
                   "cuda:" + std::to_string(index) + ": this machine has 2 CUDA devices");
  }
  machine().devices = 1;
  expect_refused(options(1), StatusCode::kUnavailable, "cuda:1: this machine has 1 CUDA device");
  EXPECT_EQ(machine().calls, Calls());
}

TEST_F(CudaQueue, SaysWhyADeviceCannotBeUsed) {
  for (const char* call : {"cudaInitDevice", "cudaDeviceGetAttribute", "push"}) {
    machine().fails = {{call, cudaErrorDevicesUnavailable}};
    expect_refused(options(), StatusCode::kUnavailable, "cuda:1: error 46");
  }
  for (const char* call : {"cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease",
                           "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"}) {
    machine().fails = {{call, cudaErrorUnknown}};
    expect_refused(options(), StatusCode::kUnavailable, "cuda:1: error 500");  // the symbol is not there
  }
  for (const cudaError_t error : {cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction}) {
    machine().fails = {{"load", error}};
    expect_refused(options(), StatusCode::kUnavailable, "cuda:1: this build has no kernels for sm_90");
  }
  machine().fails = {{"load", cudaErrorUnknown}};
  const auto queue = open();
  ASSERT_FALSE(queue.ok());
  // With the name of the kernel that comes first in the list.
  EXPECT_TRUE(queue.status().message().starts_with("cuda:1: ")) << queue.status().message();
  EXPECT_TRUE(queue.status().message().ends_with(": error 999")) << queue.status().message();
}

TEST_F(CudaQueue, WantsAStreamOfItsDevice) {
  expect_refused(options(0), StatusCode::kInvalidArgument,
                 "ContextOptions: cuda_stream: is of cuda:1, expected a stream of cuda:0");
  machine().fails["cudaStreamGetDevice"] = cudaErrorInvalidResourceHandle;
  expect_refused(options(), StatusCode::kInvalidArgument,
                 "ContextOptions: cuda_stream: error 400, expected a stream of cuda:1");
  // Drivers that cannot tell, and streams that every device has.
  for (const cudaError_t error : {cudaErrorCallRequiresNewerDriver, cudaErrorSymbolNotFound}) {
    machine().fails["cudaStreamGetDevice"] = error;
    EXPECT_TRUE(open().ok());
  }
  machine().fails["cudaStreamGetDevice"] = cudaErrorInvalidResourceHandle;
  for (void* stream : {static_cast<void*>(nullptr), static_cast<void*>(cudaStreamLegacy),
                       static_cast<void*>(cudaStreamPerThread)})
    EXPECT_NE(opened(stream), nullptr);
}

TEST_F(CudaQueue, OpensWithoutChoosingADevice) {
  const auto queue = opened();
  EXPECT_EQ(queue->multiprocessors(), 133);
  EXPECT_EQ(queue->tuning().architecture, 90);
  EXPECT_EQ(machine().retained[1], 1);
  EXPECT_EQ(machine().retained[0], 0);
}

TEST_F(CudaQueue, LaunchesOnItsDeviceAndStream) {
  DeviceGather example;
  const Context context(options());
  const Result<Plan> planned = plan(example.args, context);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->implementation(), "cuda");
  EXPECT_EQ(planned->workspace_bytes(), 0);
  machine().take();
  ASSERT_TRUE(run(planned.value(), buffers(example.args), context).ok());
  EXPECT_EQ(machine().take(), Calls{"launch PagedGather on 1"});
  EXPECT_EQ(machine().streams, std::vector<const void*>{&stream_});

  // The device is the caller's already.
  machine().current = {0, 1};
  ASSERT_TRUE(gather_pa_kv_cache(example.args, context).ok());
  EXPECT_EQ(machine().take(), Calls{"launch PagedGather on 1"});
  EXPECT_EQ(machine().current, (std::vector<int>{0, 1}));
  machine().current = {0};

  // It has none: nor has it afterwards.
  machine().current = {};
  ASSERT_TRUE(gather_pa_kv_cache(example.args, context).ok());
  EXPECT_EQ(machine().take(), Calls{"launch PagedGather on 1"});
  EXPECT_TRUE(machine().current.empty());
  machine().current = {0};

  machine().fails["launch"] = cudaErrorIllegalAddress;
  const Status status = gather_pa_kv_cache(example.args, context);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "gather_pa_kv_cache: PagedGather: on cuda:1: error 700");
  machine().fails = {{"push", cudaErrorContextIsDestroyed}};
  EXPECT_EQ(gather_pa_kv_cache(example.args, context).message(),
            "gather_pa_kv_cache: PagedGather: on cuda:1: error 709");
  machine().fails.clear();
}

TEST_F(CudaQueue, PlansAndContextsAreOfOneDevice) {
  DeviceGather example;
  const Context context(options());
  const Plan planned = plan(example.args, context).value();
  machine().take();
  Status status = run(planned, buffers(example.args), Context());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "gather_pa_kv_cache: context: its device is cpu:0, expected the plan's cuda:1");
  GatherExample on_cpu;
  const Plan cpu_plan = plan(on_cpu.args, Context()).value();
  std::vector<std::byte> scratch(static_cast<std::size_t>(cpu_plan.workspace_bytes()));
  GatherPaKvCacheBuffers pointers = buffers(on_cpu.args);
  pointers.workspace = {scratch.data(), cpu_plan.workspace_bytes()};
  status = run(cpu_plan, pointers, context);
  EXPECT_EQ(status.message(), "gather_pa_kv_cache: context: its device is cuda:1, expected the plan's cpu:0");
  EXPECT_TRUE(on_cpu.untouched());
  EXPECT_EQ(machine().take(), Calls());
}

// The tables of the CPU must not run on a device's memory.
TEST_F(CudaQueue, RunsNoImplementationOfTheCpu) {
  DeviceGather example;
  ContextOptions o = options();
  for (const char* name : {"generic", "avx2", "warp9"}) {
    o.implementation = name;
    const Result<Plan> planned = plan(example.args, Context(o));
    ASSERT_FALSE(planned.ok());
    EXPECT_EQ(planned.status().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(has(planned.status().message(), "expected one of cuda")) << planned.status().message();
  }
  struct Body : internal::PlanBody {
    Body() : PlanBody(Operator::kSwapBlocks) {}
    std::string describe_problem() const override { return {}; }
    const internal::Impl<Body, int>* impl = nullptr;
  } body;
  const std::array table = {
      internal::Impl<Body, int>{"generic", [](const Body&) { return std::string(); },
                                [](const Body&, const int&, internal::ContextState&) { return Status(); }}};
  const auto pick = [&](const Context& context) { return internal::pick<Body, int>(table, context, body); };
  EXPECT_EQ(pick(Context(options())).code(), StatusCode::kUnimplemented);
  EXPECT_TRUE(has(pick(Context(options())).message(), "swap_blocks: on device cuda:1"));
  EXPECT_TRUE(pick(Context()).ok());
}

TEST_F(CudaQueue, KeepsItsWorkspaces) {
  auto queue = opened();
  EXPECT_EQ(queue->workspace(0).value(), nullptr);
  EXPECT_EQ(machine().take(), Calls());
  void* const first = queue->workspace(1000).value();
  EXPECT_EQ(queue->workspace(1000).value(), first);
  EXPECT_EQ(queue->workspace(1).value(), first);
  EXPECT_EQ(machine().take(), Calls{"malloc 1000 on 1"});
  void* const second = queue->workspace(1001).value();
  EXPECT_NE(second, first);
  EXPECT_EQ(queue->workspace(2000).value(), second);
  ASSERT_TRUE(queue->workspace(9000).ok());
  EXPECT_EQ(machine().take(), (Calls{"malloc 2000 on 1", "malloc 9000 on 1"}));
  queue.reset();
  EXPECT_EQ(machine().take(), (Calls{"free 1000 on 1", "free 2000 on 1", "free 9000 on 1"}));
}

TEST_F(CudaQueue, GrowsNoWorkspaceInACapture) {
  auto queue = opened();
  ASSERT_TRUE(queue->workspace(1000).ok());
  machine().take();
  const std::string refusal =
      "workspace: 1001 bytes are wanted of a context that has 1000, and its stream is captured: run the call "
      "once before the capture, or use plan() with a workspace of yours";
  for (const auto status : {cudaStreamCaptureStatusActive, cudaStreamCaptureStatusInvalidated}) {
    stream_.capture = status;
    EXPECT_TRUE(queue->workspace(1000).ok());
    const Result<void*> refused = queue->workspace(1001);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(refused.status().message(), refusal);
  }
  stream_.capture = cudaStreamCaptureStatusNone;
  // The legacy stream while another one is captured.
  machine().fails["cudaStreamIsCapturing"] = cudaErrorStreamCaptureImplicit;
  EXPECT_EQ(queue->workspace(1001).status().message(), refusal);
  machine().fails["cudaStreamIsCapturing"] = cudaErrorIllegalAddress;
  EXPECT_EQ(queue->workspace(1001).status().message(), "workspace: on cuda:1: error 700");
  EXPECT_EQ(machine().take(), Calls());
  machine().fails = {{"cudaMalloc", cudaErrorMemoryAllocation}};
  EXPECT_EQ(queue->workspace(5000).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(queue->workspace(5000).status().message(), "workspace: 5000 bytes on cuda:1");
  machine().fails = {{"cudaMalloc", cudaErrorUnknown}};
  EXPECT_EQ(queue->workspace(5000).status().message(), "workspace: on cuda:1: error 999");
  machine().fails.clear();
  EXPECT_TRUE(queue->workspace(1000).ok());
}

TEST_F(CudaQueue, OneCallFormsNameTheOperator) {
  DeviceGather example;
  const Context context(options());
  example.args.index_policy = IndexPolicy::kReport;  // wants a workspace
  ErrorRecord record;
  stream_.capture = cudaStreamCaptureStatusActive;
  machine().take();
  const Status status = gather_pa_kv_cache(example.args, context, &record);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(has(status.message(), "gather_pa_kv_cache: workspace: ")) << status.message();
  EXPECT_EQ(machine().take(), Calls());
  stream_.capture = cudaStreamCaptureStatusNone;
  EXPECT_TRUE(gather_pa_kv_cache(example.args, context, &record).ok());
}

TEST_F(CudaQueue, WorkspaceOfThePerThreadStreamIsOneThreads) {
  const auto queue = opened(cudaStreamPerThread);
  ASSERT_TRUE(queue->workspace(100).ok());
  std::thread([&] {
    EXPECT_TRUE(queue->workspace(0).ok());
    const Result<void*> refused = queue->workspace(100);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(has(refused.status().message(), "cudaStreamPerThread")) << refused.status().message();
  }).join();
  EXPECT_TRUE(queue->workspace(100).ok());
}

TEST_F(CudaQueue, StagesInMemoryOfItsOwn) {
  auto queue = opened();
  EXPECT_EQ(queue->staging().data, nullptr);
  EXPECT_EQ(machine().take(), Calls());
  EXPECT_EQ(queue->reserve_staging().value(), 16 << 20);
  EXPECT_EQ(queue->reserve_staging().value(), 16 << 20);
  EXPECT_EQ(machine().take(), Calls{"malloc 16777216 on 1"});
  {
    const Queue::Staging held = queue->staging();
    EXPECT_EQ(machine().device_memory.count(held.data), 1U);
    EXPECT_EQ(held.bytes, 16 << 20);
    EXPECT_TRUE(held.lock.owns_lock());
  }
  EXPECT_NE(queue->staging().data, queue->workspace(100).value());
  // A graph would write there whenever it runs.
  stream_.capture = cudaStreamCaptureStatusActive;
  EXPECT_EQ(queue->staging().data, nullptr);
  stream_.capture = cudaStreamCaptureStatusNone;
  machine().fails["cudaStreamIsCapturing"] = cudaErrorStreamCaptureImplicit;
  EXPECT_EQ(queue->staging().data, nullptr);
  machine().fails["cudaStreamIsCapturing"] = cudaErrorIllegalAddress;
  EXPECT_EQ(queue->staging().data, nullptr);
  machine().fails.clear();
  EXPECT_NE(queue->staging().data, nullptr);
  machine().take();
  queue.reset();
  EXPECT_EQ(machine().take(), (Calls{"free 16777216 on 1", "free 100 on 1"}));
}

TEST_F(CudaQueue, StagesAsTheOptionsSay) {
  const auto reserve = [&](void* stream, std::int64_t bytes) {
    ContextOptions o = options();
    o.cuda_stream = stream;
    o.cuda_staging_bytes = bytes;
    const auto queue = std::static_pointer_cast<Queue>(internal::open_cuda_queue(o).value());
    machine().take();
    return queue->reserve_staging();
  };
  EXPECT_EQ(reserve(&stream_, 1000).value(), 1000);
  EXPECT_EQ(machine().take(), (Calls{"malloc 1000 on 1", "free 1000 on 1"}));
  EXPECT_EQ(reserve(&stream_, -1).value(), 0);
  EXPECT_EQ(reserve(cudaStreamPerThread, 1000).value(), 0);
  EXPECT_EQ(machine().take(), Calls());
  machine().fails["cudaMalloc"] = cudaErrorMemoryAllocation;
  EXPECT_EQ(reserve(&stream_, 1000).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(reserve(&stream_, 1000).status().message(), "staging: 1000 bytes on cuda:1");
}

TEST_F(CudaQueue, AsksWhatAHostPointerIs) {
  const auto queue = opened();
  char memory[200] = {};
  auto& pointers = machine().pointers;
  pointers[memory] = {cudaMemoryTypeHost, 0, memory + 100, memory};
  pointers[memory + 1] = {cudaMemoryTypeManaged, 0, memory + 1, memory + 1};
  pointers[memory + 2] = {cudaMemoryTypeHost, 0, nullptr, memory + 2};
  pointers[memory + 3] = {cudaMemoryTypeDevice, 1, memory + 3, nullptr};
  const auto ask = [&](char* pointer) {
    return queue->device_address(Operator::kGatherPaKvCache, "key_cache", pointer);
  };
  EXPECT_EQ(ask(memory).value(), memory + 100);
  EXPECT_EQ(ask(memory + 1).value(), memory + 1);
  EXPECT_EQ(machine().take(), (Calls{"ask on 1", "ask on 1"}));
  const auto refused = [&](char* pointer, const char* seen) {
    const Result<void*> address = ask(pointer);
    ASSERT_FALSE(address.ok());
    EXPECT_EQ(address.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(
        address.status().message(),
        std::string("gather_pa_kv_cache: key_cache: ") + seen +
            ", expected host memory that is pinned and mapped into cuda:1 (PinnedBuffer, cudaHostAlloc, "
            "cudaHostRegister with cudaHostRegisterMapped)");
  };
  refused(memory + 2, "host memory that is not mapped there");
  refused(memory + 3, "memory of device cuda:1");
  refused(memory + 4, "pageable memory");
  machine().fails["cudaPointerGetAttributes"] = cudaErrorInvalidValue;
  refused(memory, "error 1");
}

TEST_F(CudaQueue, RunsAskForPinnedTensors) {
  DeviceGather example;
  example.args.key_cache.device = {DeviceType::kCudaHost, 0};
  const Context context(options());
  const Plan planned = plan(example.args, context).value();
  machine().take();
  const Status status = run(planned, buffers(example.args), context);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(has(status.message(), "gather_pa_kv_cache: key_cache: pageable memory")) << status.message();
  EXPECT_EQ(machine().take(), Calls{"ask on 1"});
  auto* const data = example.cache_k.data();
  machine().pointers[data] = {cudaMemoryTypeHost, 0, data, data};
  EXPECT_TRUE(run(planned, buffers(example.args), context).ok());
  EXPECT_EQ(machine().take(), (Calls{"ask on 1", "launch PagedGather on 1"}));
}

// `count` copies of different sizes, each tenth of none.
std::vector<CopyRun> copies(std::size_t count) {
  static char from[1], to[1];
  std::vector<CopyRun> runs;
  runs.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    runs.push_back({to + i, from + 2 * i, static_cast<std::int64_t>(i % 10 * (i + 1))});
  return runs;
}
void expect_copied(const std::vector<CopyRun>& runs) {
  std::size_t at = 0;
  for (const CopyRun& run : runs) {
    if (run.bytes == 0) continue;
    ASSERT_LT(at, machine().copies.size());
    const fake::Copy& copy = machine().copies[at++];
    EXPECT_EQ(copy.dst, run.dst);
    EXPECT_EQ(copy.src, run.src);
    EXPECT_EQ(copy.bytes, static_cast<std::size_t>(run.bytes));
  }
  EXPECT_EQ(at, machine().copies.size());
}

TEST_F(CudaQueue, CopiesInBatches) {
  const auto queue = opened();
  for (const std::size_t count : {0U, 1U, 2U, 1100U, 1138U, 2276U, 5000U}) {
    machine().copies.clear();
    machine().batches.clear();
    const std::vector<CopyRun> runs = copies(count);
    ASSERT_TRUE(queue->copy_batch(Operator::kSwapBlocks, runs).ok());
    expect_copied(runs);
    const std::size_t real = count - (count + 9) / 10;
    EXPECT_EQ(machine().batches.size(), (real + 1023) / 1024) << count;
  }
  EXPECT_TRUE(std::all_of(machine().streams.begin(), machine().streams.end(),
                          [&](const void* stream) { return stream == &stream_; }));
  const Calls calls = machine().take();
  EXPECT_TRUE(
      std::all_of(calls.begin(), calls.end(), [](const std::string& call) { return call == "batch on 1"; }));
  machine().fails["cudaMemcpyBatchAsync"] = cudaErrorInvalidValue;
  for (const std::size_t count : {2U, 5000U}) {
    const Status status = queue->copy_batch(Operator::kSwapBlocks, copies(count));
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), "swap_blocks: copies: on cuda:1: error 1");
  }
}

TEST_F(CudaQueue, CopiesOneByOneWhereThereAreNoBatches) {
  const auto check = [&](Queue& queue, const void* stream) {
    machine().copies.clear();
    machine().streams.clear();
    machine().take();
    const std::vector<CopyRun> runs = copies(25);
    ASSERT_TRUE(queue.copy_batch(Operator::kSwapBlocks, runs).ok());
    expect_copied(runs);
    EXPECT_EQ(machine().take(), Calls(22, "copy on 1"));
    EXPECT_EQ(machine().streams, std::vector<const void*>(22, stream));
  };
  check(*opened(nullptr), nullptr);
  check(*opened(cudaStreamLegacy), cudaStreamLegacy);
  const auto queue = opened();
  stream_.capture = cudaStreamCaptureStatusActive;
  check(*queue, &stream_);
  stream_.capture = cudaStreamCaptureStatusNone;
  machine().driver = 12070;
  check(*queue, &stream_);
  machine().fails["cudaMemcpyAsync"] = cudaErrorInvalidValue;
  EXPECT_EQ(queue->copy_batch(Operator::kSwapBlocks, copies(25)).message(),
            "swap_blocks: copies: on cuda:1: error 1");
}

TEST_F(CudaQueue, PinnedBuffers) {
  const Device device{DeviceType::kCuda, 1};
  Result<PinnedBuffer> made = PinnedBuffer::make(5000, device);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const std::string flags = std::to_string(cudaHostAllocPortable | cudaHostAllocMapped);
  EXPECT_EQ(machine().take(), (Calls{"init 1 on 0", "pin 5000 flags " + flags + " on 1"}));
  EXPECT_EQ(made->bytes(), 5000);
  EXPECT_EQ(machine().host_memory.count(made->data()), 1U);
  EXPECT_EQ(made->device_data(), made->data() + 1);
  PinnedBuffer second = std::move(made).value();
  PinnedBuffer third;
  third = std::move(second);
  EXPECT_EQ(second.data(), nullptr);  // NOLINT(bugprone-use-after-move): what the header promises
  EXPECT_EQ(second.device_data(), nullptr);
  EXPECT_EQ(second.bytes(), 0);
  EXPECT_EQ(third.bytes(), 5000);
  EXPECT_EQ(machine().take(), Calls());
  third = PinnedBuffer();
  EXPECT_EQ(machine().take(), Calls{"unpin 5000 on 1"});

  machine().fails["cudaHostAlloc"] = cudaErrorMemoryAllocation;
  Result<PinnedBuffer> refused = PinnedBuffer::make(std::int64_t{1} << 50, device);
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(refused.status().message(), "PinnedBuffer: 1125899906842624 bytes of pinned memory");
  machine().fails = {{"cudaHostAlloc", cudaErrorUnknown}};
  EXPECT_EQ(PinnedBuffer::make(1, device).status().message(), "PinnedBuffer: cuda:1: error 999");
  machine().fails = {{"cudaHostGetDevicePointer", cudaErrorUnknown}};
  machine().take();
  EXPECT_EQ(PinnedBuffer::make(1, device).status().message(), "PinnedBuffer: cuda:1: error 999");
  EXPECT_EQ(machine().take().back(), "unpin 1 on 1");
  EXPECT_EQ(PinnedBuffer::make(1, {DeviceType::kCuda, 2}).status().message(),
            "PinnedBuffer: cuda:2: this machine has 2 CUDA devices");
}

TEST_F(CudaQueue, GivesMemoryToKeep) {
  auto context = std::make_unique<Context>(options());
  machine().take();
  std::shared_ptr<void> zero = device_memory(*context, 1000).value();
  EXPECT_EQ(machine().take(), (Calls{"malloc 1000 on 1", "set 1000 on 1"}));
  EXPECT_TRUE(std::all_of(static_cast<char*>(zero.get()), static_cast<char*>(zero.get()) + 1000,
                          [](char byte) { return byte == 0; }));
  const char source[2000] = {};
  const std::shared_ptr<void> copy = device_memory(*context, 2000, source).value();
  EXPECT_EQ(machine().take(), (Calls{"malloc 2000 on 1", "copy on 1"}));
  ASSERT_EQ(machine().copies.size(), 1U);
  EXPECT_EQ(machine().copies[0].dst, copy.get());
  EXPECT_EQ(machine().copies[0].src, source);
  EXPECT_EQ(machine().copies[0].bytes, 2000U);
  EXPECT_TRUE(device_wait(*context).ok());
  EXPECT_EQ(machine().take(), Calls{"wait on 1"});
  EXPECT_EQ(machine().streams, std::vector<const void*>(3, &stream_));

  EXPECT_EQ(device_memory(*context, 0).value(), nullptr);
  EXPECT_EQ(device_memory(*context, -1).status().message(), "device_memory: bytes is -1, expected >= 0");
  context.reset();
  std::shared_ptr<void> second = zero;
  zero.reset();
  EXPECT_EQ(machine().take(), Calls());
  second.reset();
  EXPECT_EQ(machine().take(), Calls{"free 1000 on 1"});
}

TEST_F(CudaQueue, SaysWhyItGivesNoMemory) {
  const Context context(options());
  const auto refusal = [&](const void* from = nullptr) {
    machine().take();
    const Status status = device_memory(context, 1000, from).status();
    return std::string(to_string(status.code())) + ": " + status.message();
  };
  machine().fails = {{"cudaMalloc", cudaErrorMemoryAllocation}};
  EXPECT_EQ(refusal(), "out_of_memory: device_memory: 1000 bytes on cuda:1");
  machine().fails = {{"cudaMalloc", cudaErrorUnknown}};
  EXPECT_EQ(refusal(), "unavailable: device_memory: on cuda:1: error 999");
  // What cannot be filled is freed.
  machine().fails = {{"cudaMemsetAsync", cudaErrorUnknown}};
  EXPECT_EQ(refusal(), "unavailable: device_memory: on cuda:1: error 999");
  EXPECT_EQ(machine().take().back(), "free 1000 on 1");
  machine().fails = {{"cudaMemcpyAsync", cudaErrorInvalidValue}};
  EXPECT_EQ(refusal(&context), "unavailable: device_memory: on cuda:1: error 1");
  EXPECT_EQ(machine().take().back(), "free 1000 on 1");
  machine().fails = {{"cudaStreamSynchronize", cudaErrorIllegalAddress}};
  EXPECT_EQ(device_wait(context).message(), "device_wait: on cuda:1: error 700");
  machine().fails.clear();
  // A capture is asked for first, and left as it is.
  const std::string captured = "on cuda:1: error " + std::to_string(cudaErrorStreamCaptureUnsupported);
  for (const auto status : {cudaStreamCaptureStatusActive, cudaStreamCaptureStatusInvalidated}) {
    stream_.capture = status;
    EXPECT_EQ(refusal(), "unavailable: device_memory: " + captured);
    EXPECT_EQ(device_wait(context).message(), "device_wait: " + captured);
    EXPECT_EQ(machine().take(), Calls());
  }
  stream_.capture = cudaStreamCaptureStatusNone;
  machine().fails = {{"cudaStreamIsCapturing", cudaErrorStreamCaptureImplicit}};
  EXPECT_EQ(device_wait(context).code(), StatusCode::kUnavailable);
  machine().fails = {{"cudaGetDeviceCount", cudaErrorNoDevice}};
  const Context nowhere(options());
  EXPECT_EQ(device_memory(nowhere, 1).status().message(),
            "cuda:1: no CUDA device on this machine, or none visible");
  EXPECT_EQ(device_wait(nowhere).code(), StatusCode::kUnavailable);
}

TEST_F(CudaQueue, StaysWithTheParentOfAFork) {
  DeviceGather example;
  Context context(options());
  const Plan planned = plan(example.args, context).value();
  example.args.index_policy = IndexPolicy::kReport;
  ErrorRecord record;
  ASSERT_TRUE(gather_pa_kv_cache(example.args, context, &record).ok());
  Result<PinnedBuffer> pinned = PinnedBuffer::make(10, {DeviceType::kCuda, 1});
  ASSERT_TRUE(pinned.ok());
  std::shared_ptr<void> memory = device_memory(context, 10).value();
  machine().take();
  const pid_t child = fork();
  if (child == 0) {
    const auto refused = [](const Status& status) {
      return status.code() == StatusCode::kUnavailable && has(status.message(), "gather_pa_kv_cache: ") &&
             has(status.message(), "fork()");
    };
    bool right = refused(run(planned, buffers(example.args), context)) &&
                 refused(plan(example.args, context).status()) &&
                 refused(gather_pa_kv_cache(example.args, context, &record)) &&
                 device_memory(context, 10).status().code() == StatusCode::kUnavailable &&
                 device_wait(context).code() == StatusCode::kUnavailable;
    context = Context();
    pinned.value() = PinnedBuffer();
    memory.reset();
    right = right && machine().calls.empty() && machine().retained[1] == 2;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(run(planned, buffers(example.args), context).ok());
}

TEST_F(CudaQueue, FreesNothingWhenTheDriverIsGone) {
  auto queue = opened();
  ASSERT_TRUE(queue->workspace(1000).ok());
  Result<PinnedBuffer> pinned = PinnedBuffer::make(10, {DeviceType::kCuda, 1});
  ASSERT_TRUE(pinned.ok());
  std::shared_ptr<void> kept = queue->memory(100, nullptr).value();
  machine().take();
  machine().fails["cudaGetDevice"] = cudaErrorCudartUnloading;
  kept.reset();
  queue.reset();
  pinned.value() = PinnedBuffer();
  EXPECT_EQ(machine().take(), Calls());
  EXPECT_EQ(machine().retained[1], 2);
  for (const auto& [memory, bytes] : machine().device_memory) std::free(memory);
  for (const auto& [memory, bytes] : machine().host_memory) std::free(memory);
  machine() = {};
  machine().current = {0};
}

TEST_F(CudaQueue, IsListed) {
  std::vector<BackendInfo> all = backends();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].name, "cpu");
  EXPECT_TRUE(all[0].available);
  EXPECT_EQ(all[1].name, "cuda");
  EXPECT_TRUE(all[1].available);
  EXPECT_EQ(all[1].detail, "cuda:0 First GPU (sm_90, 132 SMs); cuda:1 Second GPU (sm_90, 133 SMs)");
  machine().fails["cudaGetDeviceProperties"] = cudaErrorUnknown;
  EXPECT_EQ(backends()[1].detail, "cuda:0 (error 999); cuda:1 (error 999)");
  machine().fails = {{"cudaGetDeviceCount", cudaErrorNoDevice}};
  all = backends();
  EXPECT_FALSE(all[1].available);
  EXPECT_EQ(all[1].detail, "no CUDA device on this machine, or none visible");
}

}  // namespace
}  // namespace kvferry
