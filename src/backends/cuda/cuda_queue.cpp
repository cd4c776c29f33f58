// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend on a stream of a GPU. Compiled by the C++ compiler: kernels come through launcher.cuh. The
// runtime is linked statically and opens libcuda.so.1 itself, so that the library loads where there is none.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backends/cuda/launcher.cuh"
#include "backends/cuda/queue.hpp"
#include "core/device_queue.hpp"

static_assert(CUDART_VERSION >= 12080, "the CUDA backend needs CUDA 12.8 or newer");

namespace kvferry::internal::cuda {
namespace {

// The runtime keeps an error for the caller's next cudaGetLastError, who did not ask for ours.
cudaError_t quiet(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

// Errors of the driver have the runtime's numbers.
cudaError_t of_driver(CUresult result) {
  return static_cast<cudaError_t>(result);
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Why the first call of CUDA failed.
std::string why_no_cuda(cudaError_t error) {
  int driver = 0;
  if (quiet(cudaDriverGetVersion(&driver)) != cudaSuccess || driver == 0)
    return "no CUDA driver (libcuda.so.1) on this machine";
  switch (error) {
    case cudaErrorInsufficientDriver:
      return fmt::format("the CUDA driver of this machine is for CUDA {}, expected {} or newer",
                         version_text(driver), version_text(CUDART_VERSION));
    case cudaErrorNoDevice:
      return "no CUDA device on this machine, or none visible";
    case cudaErrorInitializationError:
      return fmt::format("{} (CUDA does not survive a fork after its first use)", cudaGetErrorString(error));
    default:
      return cudaGetErrorString(error);
  }
}

// What the runtime has no function for.
struct Driver {
  decltype(&cuDeviceGet) device_get;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuDevicePrimaryCtxRelease) release;
  decltype(&cuCtxGetCurrent) get_current;
  decltype(&cuCtxPushCurrent) push_current;
  decltype(&cuCtxPopCurrent) pop_current;

  cudaError_t load() {
    const auto find = [](const char* name, auto& function) {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
      const cudaError_t error =
          quiet(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result));
      if (error != cudaSuccess) return error;
      if (result != cudaDriverEntryPointSuccess || found == nullptr) return cudaErrorSymbolNotFound;
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
      return cudaSuccess;
    };
    cudaError_t error = find("cuDeviceGet", device_get);
    if (error == cudaSuccess) error = find("cuDevicePrimaryCtxRetain", retain);
    if (error == cudaSuccess) error = find("cuDevicePrimaryCtxRelease", release);
    if (error == cudaSuccess) error = find("cuCtxGetCurrent", get_current);
    if (error == cudaSuccess) error = find("cuCtxPushCurrent", push_current);
    if (error == cudaSuccess) error = find("cuCtxPopCurrent", pop_current);
    return error;
  }
};

// A device that can be used, by the context that the runtime has for it.
class OpenDevice {
 public:
  static Result<std::shared_ptr<const OpenDevice>> open(std::int32_t index) {
    const auto fail = [&](std::string_view reason) {
      return Status(StatusCode::kUnavailable, fmt::format("cuda:{}: {}", index, reason));
    };
    int count = 0;
    if (const cudaError_t error = quiet(cudaGetDeviceCount(&count)); error != cudaSuccess)
      return fail(why_no_cuda(error));
    if (index < 0 || index >= count)
      return fail(fmt::format("this machine has {} CUDA device{}", count, count == 1 ? "" : "s"));

    auto device = std::make_shared<OpenDevice>();
    device->index_ = index;
    CUdevice handle = 0;
    cudaError_t error = quiet(cudaInitDevice(index, 0, 0));
    if (error == cudaSuccess) error = device->driver_.load();
    if (error == cudaSuccess) error = of_driver(device->driver_.device_get(&handle, index));
    if (error == cudaSuccess) error = of_driver(device->driver_.retain(&device->context_, handle));
    if (error != cudaSuccess) return fail(cudaGetErrorString(error));
    device->handle_ = handle;
    return std::shared_ptr<const OpenDevice>(std::move(device));
  }

  OpenDevice() = default;
  OpenDevice(const OpenDevice&) = delete;
  OpenDevice& operator=(const OpenDevice&) = delete;
  ~OpenDevice() {
    if (handle_ && can_free()) driver_.release(*handle_);
  }

  std::int32_t index() const { return index_; }
  // False in a child of the process that opened it, and at the end of the process, where the runtime has
  // unloaded the driver with all that was there to be freed.
  bool can_free() const {
    int current = 0;
    return process_ == getpid() && quiet(cudaGetDevice(&current)) == cudaSuccess;
  }

 private:
  friend class Current;
  std::int32_t index_ = 0;
  Driver driver_{};
  CUcontext context_ = nullptr;
  std::optional<CUdevice> handle_;  // of a context that was retained
  const pid_t process_ = getpid();
};

// Makes the device the thread's while it lives. By the driver's stack of contexts: to restore with
// cudaSetDevice what cudaGetDevice said would make a context on a device that the caller never used.
class Current {
 public:
  explicit Current(const OpenDevice& device) : driver_(device.driver_) {
    CUcontext before = nullptr;
    error_ = of_driver(driver_.get_current(&before));
    if (error_ != cudaSuccess || before == device.context_) return;
    error_ = of_driver(driver_.push_current(device.context_));
    pushed_ = error_ == cudaSuccess;
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    CUcontext popped = nullptr;
    if (pushed_) driver_.pop_current(&popped);
  }
  cudaError_t error() const { return error_; }

 private:
  const Driver& driver_;
  cudaError_t error_ = cudaSuccess;
  bool pushed_ = false;
};

// Memory is asked for and freed although another thread captures a stream: its graph has nothing of it.
class RelaxedCapture {
 public:
  RelaxedCapture() { quiet(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { quiet(cudaThreadExchangeStreamCaptureMode(&mode_)); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

struct KernelEntry {
  std::string_view name;
  cudaError_t (*launch)(const void* params, std::uint32_t blocks, cudaStream_t stream);
  cudaError_t (*load)();
};

// "PagedGather"
template <class K>
constexpr std::string_view name_of_kernel() {
  std::string_view text = __PRETTY_FUNCTION__;  // "... [with K = kvferry::...::PagedGather; ...]"
  text = text.substr(text.find("K = ") + 4);
  text = text.substr(0, text.find_first_of(";]"));
  return text.substr(text.rfind(':') + 1);
}

template <class K>
cudaError_t launch_of(const void* params, std::uint32_t blocks, cudaStream_t stream) {
  return launch<K>(*static_cast<const typename K::Params*>(params), blocks, stream);
}
template <class K>
cudaError_t load_of() {
  return launch<K>(typename K::Params{}, 0, nullptr);
}

template <class... K>
constexpr auto entries_of(KernelList<K...>) {
  return std::array<KernelEntry, sizeof...(K)>{KernelEntry{name_of_kernel<K>(), launch_of<K>, load_of<K>}...};
}
constexpr auto kKernels = entries_of(Kernels());

bool is_default(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

struct DeviceFacts {
  int architecture = 0;  // 90: sm_90
  int multiprocessors = 0;
};

cudaError_t ask(std::int32_t index, DeviceFacts& facts) {
  int major = 0, minor = 0;
  cudaError_t error = quiet(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  if (error == cudaSuccess)
    error = quiet(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  if (error == cudaSuccess)
    error = quiet(cudaDeviceGetAttribute(&facts.multiprocessors, cudaDevAttrMultiProcessorCount, index));
  facts.architecture = 10 * major + minor;
  return error;
}

// Long enough copies to fill the link, and little beside the pools.
constexpr std::int64_t kStagingBytes = 16 << 20;

class CudaQueue final : public Queue {
 public:
  static Result<std::shared_ptr<DeviceQueue>> open(const ContextOptions& options) {
    const std::int32_t index = options.device.index;
    auto device = OpenDevice::open(index);
    if (!device.ok()) return device.status();
    const auto fail = [&](std::string_view reason) {
      return Status(StatusCode::kUnavailable, fmt::format("cuda:{}: {}", index, reason));
    };
    DeviceFacts facts;
    if (const cudaError_t error = ask(index, facts); error != cudaSuccess)
      return fail(cudaGetErrorString(error));

    const Current current(*device.value());
    if (current.error() != cudaSuccess) return fail(cudaGetErrorString(current.error()));
    auto* const stream = static_cast<cudaStream_t>(options.cuda_stream);
    if (Status status = check_stream(stream, index); !status.ok()) return status;
    for (const KernelEntry& kernel : kKernels) {
      const cudaError_t error = kernel.load();
      if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction)
        return fail(fmt::format("this build has no kernels for sm_{}", facts.architecture));
      if (error != cudaSuccess) return fail(fmt::format("{}: {}", kernel.name, cudaGetErrorString(error)));
    }
    return std::shared_ptr<DeviceQueue>(
        std::make_shared<CudaQueue>(std::move(device).value(), stream, facts, options.cuda_staging_bytes));
  }

  CudaQueue(std::shared_ptr<const OpenDevice> device, cudaStream_t stream, DeviceFacts facts,
            std::int64_t staging_bytes)
      : Queue(facts.architecture, facts.multiprocessors),
        device_(std::move(device)),
        stream_(stream),
        staging_bytes_(staging_bytes == 0 ? kStagingBytes : std::max<std::int64_t>(staging_bytes, 0)) {}
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;
  ~CudaQueue() override {
    if (allocations_.empty() || !device_->can_free()) return;
    const Current current(*device_);
    if (current.error() != cudaSuccess) return;  // the device was reset
    const RelaxedCapture relaxed;
    for (void* memory : allocations_) quiet(cudaFree(memory));
  }

  Result<void*> workspace(std::int64_t bytes) override {
    if (bytes <= 0) return static_cast<void*>(nullptr);
    if (stream_ == cudaStreamPerThread) {
      // Work of two threads is on two streams and would share the memory.
      if (user_ == std::thread::id()) user_ = std::this_thread::get_id();
      if (user_ != std::this_thread::get_id()) {
        return Status(
            StatusCode::kUnavailable,
            "workspace: cudaStreamPerThread is another stream in each thread, expected calls of one "
            "thread, or plan() with a workspace of yours");
      }
    }
    if (bytes <= workspace_bytes_) return workspace_;
    const Current current(*device_);
    bool captured = false;
    cudaError_t error = current.error();
    if (error == cudaSuccess) error = ask_capture(captured);
    if (error != cudaSuccess) return unavailable("workspace", error);
    if (captured) {
      return Status(
          StatusCode::kUnavailable,
          fmt::format("workspace: {} bytes are wanted of a context that has {}, and its stream is "
                      "captured: run the call once before the capture, or use plan() with a workspace "
                      "of yours",
                      bytes, workspace_bytes_));
    }
    const std::int64_t wanted = std::max(bytes, 2 * workspace_bytes_);
    auto memory = allocate_for_queue("workspace", wanted);
    if (!memory.ok()) return memory;
    workspace_ = memory.value();
    workspace_bytes_ = wanted;
    return workspace_;
  }

  Result<std::int64_t> reserve_staging() override {
    const std::lock_guard lock(staging_mutex_);
    if (stream_ == cudaStreamPerThread || staging_bytes_ == 0) return std::int64_t{0};
    if (staging_ == nullptr) {
      const Current current(*device_);
      if (current.error() != cudaSuccess) return unavailable("staging", current.error());
      auto memory = allocate_for_queue("staging", staging_bytes_);
      if (!memory.ok()) return memory.status();
      staging_ = static_cast<std::byte*>(memory.value());
    }
    return staging_bytes_;
  }

  Staging staging() override {
    Staging held{std::unique_lock(staging_mutex_)};
    if (staging_ == nullptr) return {};
    const Current current(*device_);
    bool captured = false;
    if (current.error() != cudaSuccess || ask_capture(captured) != cudaSuccess || captured) return {};
    held.data = staging_;
    held.bytes = staging_bytes_;
    return held;
  }

  Result<std::shared_ptr<void>> memory(std::int64_t bytes, const void* from) override {
    const Current current(*device_);
    cudaError_t error = current.error();
    if (error == cudaSuccess) error = check_not_captured();
    if (error != cudaSuccess) return unavailable("device_memory", error);
    const Result<void*> allocated = allocate("device_memory", bytes);
    if (!allocated.ok()) return allocated.status();
    void* const made = allocated.value();
    // cudaFree waits for the device. shared_ptr calls this too when it has no memory for itself.
    std::shared_ptr<void> memory(made, [device = device_](void* freed) {
      if (!device->can_free()) return;
      const Current freeing(*device);
      const RelaxedCapture relaxed;
      if (freeing.error() == cudaSuccess) quiet(cudaFree(freed));
    });
    const auto size = static_cast<std::size_t>(bytes);
    error = quiet(from == nullptr ? cudaMemsetAsync(made, 0, size, stream_)
                                  : cudaMemcpyAsync(made, from, size, cudaMemcpyDefault, stream_));
    if (error != cudaSuccess) return unavailable("device_memory", error);
    return memory;
  }

  Status wait() override {
    const Current current(*device_);
    cudaError_t error = current.error();
    if (error == cudaSuccess) error = check_not_captured();
    if (error == cudaSuccess) error = quiet(cudaStreamSynchronize(stream_));
    return error == cudaSuccess ? Status() : unavailable("device_wait", error);
  }

  Result<void*> device_address(Operator op, const char* name, const void* host) override {
    const Current current(*device_);
    cudaError_t error = current.error();
    cudaPointerAttributes found = {};
    if (error == cudaSuccess) error = quiet(cudaPointerGetAttributes(&found, host));
    const auto fail = [&](std::string_view seen) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{}: {}: {}, expected host memory that is pinned and mapped into cuda:{} "
                                "(PinnedBuffer, cudaHostAlloc, cudaHostRegister with cudaHostRegisterMapped)",
                                to_string(op), name, seen, device_->index()));
    };
    if (error != cudaSuccess) return fail(cudaGetErrorString(error));
    if (found.type == cudaMemoryTypeUnregistered) return fail("pageable memory");
    if (found.type != cudaMemoryTypeHost && found.type != cudaMemoryTypeManaged)
      return fail(fmt::format("memory of device cuda:{}", found.device));
    if (found.devicePointer == nullptr) return fail("host memory that is not mapped there");
    return found.devicePointer;
  }

  Status copy_batch(Operator op, std::span<const CopyRun> runs) override {
    if (runs.empty()) return {};
    const Current current(*device_);
    cudaError_t error = current.error();
    bool batches = false;
    if (error == cudaSuccess) error = can_batch(batches);
    if (error == cudaSuccess) error = batches ? copy_in_batches(runs) : copy_one_by_one(runs);
    return error == cudaSuccess ? Status() : unavailable(fmt::format("{}: copies", to_string(op)), error);
  }

 protected:
  Status launch_kernel(Operator op, std::size_t kernel, const void* params, std::uint32_t blocks) override {
    const Current current(*device_);
    cudaError_t error = current.error();
    if (error == cudaSuccess) error = kKernels[kernel].launch(params, blocks, stream_);
    return error == cudaSuccess
               ? Status()
               : unavailable(fmt::format("{}: {}", to_string(op), kKernels[kernel].name), error);
  }

 private:
  static Status check_stream(cudaStream_t stream, std::int32_t index) {
    if (is_default(stream)) return {};
    int owner = 0;
    const cudaError_t error = quiet(cudaStreamGetDevice(stream, &owner));
    // A driver that is older than CUDA 12.8 cannot say; a launch will.
    if (error == cudaErrorCallRequiresNewerDriver || error == cudaErrorSymbolNotFound ||
        error == cudaErrorNotSupported)
      return {};
    if (error == cudaSuccess && owner == index) return {};
    const std::string seen =
        error == cudaSuccess ? fmt::format("is of cuda:{}", owner) : std::string(cudaGetErrorString(error));
    return {StatusCode::kInvalidArgument,
            fmt::format("ContextOptions: cuda_stream: {}, expected a stream of cuda:{}", seen, index)};
  }

  Status unavailable(std::string_view what, cudaError_t error) const {
    return {StatusCode::kUnavailable,
            fmt::format("{}: on cuda:{}: {}", what, device_->index(), cudaGetErrorString(error))};
  }

  // Whether what is enqueued now becomes part of a graph, or is refused because others capture.
  cudaError_t ask_capture(bool& captured) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t error = quiet(cudaStreamIsCapturing(stream_, &status));
    captured = error == cudaErrorStreamCaptureImplicit || status != cudaStreamCaptureStatusNone;
    return error == cudaErrorStreamCaptureImplicit ? cudaSuccess : error;
  }

  // For what a capture forbids, and would be lost by.
  cudaError_t check_not_captured() const {
    bool captured = false;
    const cudaError_t error = ask_capture(captured);
    return captured ? cudaErrorStreamCaptureUnsupported : error;
  }

  // REQUIRES that the device is current.
  Result<void*> allocate(const char* what, std::int64_t bytes) const {
    const RelaxedCapture relaxed;
    void* memory = nullptr;
    const cudaError_t error = quiet(cudaMalloc(&memory, static_cast<std::size_t>(bytes)));
    if (error == cudaErrorMemoryAllocation) {
      return Status(StatusCode::kOutOfMemory,
                    fmt::format("{}: {} bytes on cuda:{}", what, bytes, device_->index()));
    }
    if (error != cudaSuccess) return unavailable(what, error);
    return memory;
  }
  // For as long as the queue lives.
  Result<void*> allocate_for_queue(const char* what, std::int64_t bytes) {
    const std::lock_guard lock(allocations_mutex_);
    allocations_.reserve(allocations_.size() + 1);
    Result<void*> memory = allocate(what, bytes);
    if (memory.ok()) allocations_.push_back(memory.value());
    return memory;
  }

  // The runtime has batches since 12.8; they are refused on the legacy default stream, and nothing says that
  // they can be captured.
  cudaError_t can_batch(bool& batches) {
    if (stream_ == nullptr || stream_ == cudaStreamLegacy) return cudaSuccess;
    int driver = 0;
    bool captured = false;
    cudaError_t error = quiet(cudaDriverGetVersion(&driver));
    if (error == cudaSuccess) error = ask_capture(captured);
    batches = driver >= 12080 && !captured;
    return error;
  }

  cudaError_t copy_one_by_one(std::span<const CopyRun> runs) {
    for (const CopyRun& run : runs) {
      if (run.bytes <= 0) continue;
      const cudaError_t error = quiet(
          cudaMemcpyAsync(run.dst, run.src, static_cast<std::size_t>(run.bytes), cudaMemcpyDefault, stream_));
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

  // In pieces that need no memory of the heap.
  cudaError_t copy_in_batches(std::span<const CopyRun> runs) {
    constexpr std::size_t kMost = 1024;
    std::array<void*, kMost> to;
    std::array<const void*, kMost> from;
    std::array<std::size_t, kMost> bytes;
    std::size_t count = 0;
    const auto flush = [&] {
      if (count == 0) return cudaSuccess;
      cudaMemcpyAttributes attributes = {};
      attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
      std::size_t first = 0;
#if CUDART_VERSION >= 13000
      const cudaError_t error =
          cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), count, &attributes, &first, 1, stream_);
#else
      std::size_t failed = 0;
      const cudaError_t error = cudaMemcpyBatchAsync(to.data(), const_cast<void**>(from.data()), bytes.data(),
                                                     count, &attributes, &first, 1, &failed, stream_);
#endif
      count = 0;
      return quiet(error);
    };
    for (const CopyRun& run : runs) {
      if (run.bytes <= 0) continue;
      to[count] = run.dst;
      from[count] = run.src;
      bytes[count] = static_cast<std::size_t>(run.bytes);
      if (++count < kMost) continue;
      if (const cudaError_t error = flush(); error != cudaSuccess) return error;
    }
    return flush();
  }

  std::shared_ptr<const OpenDevice> device_;
  cudaStream_t stream_;
  std::mutex allocations_mutex_;
  std::vector<void*> allocations_;  // with outgrown workspaces, which work on the stream may still use
  void* workspace_ = nullptr;
  std::int64_t workspace_bytes_ = 0;
  std::thread::id user_;  // of the workspace on cudaStreamPerThread
  std::mutex staging_mutex_;
  std::byte* staging_ = nullptr;
  const std::int64_t staging_bytes_;
};

}  // namespace
}  // namespace kvferry::internal::cuda

namespace kvferry::internal {

Result<std::shared_ptr<DeviceQueue>> open_cuda_queue(const ContextOptions& options) {
  return cuda::CudaQueue::open(options);
}

Result<std::string> describe_cuda() {
  int count = 0;
  if (const cudaError_t error = cuda::quiet(cudaGetDeviceCount(&count)); error != cudaSuccess)
    return Status(StatusCode::kUnavailable, cuda::why_no_cuda(error));
  std::string text;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    cuda::DeviceFacts facts;
    cudaError_t error = cuda::quiet(cudaGetDeviceProperties(&properties, index));
    if (error == cudaSuccess) error = cuda::ask(index, facts);
    text += fmt::format("{}cuda:{} ", index == 0 ? "" : "; ", index);
    text += error == cudaSuccess
                ? fmt::format("{} (sm_{}, {} SMs)", static_cast<const char*>(properties.name),
                              facts.architecture, facts.multiprocessors)
                : fmt::format("({})", cudaGetErrorString(error));
  }
  return text;
}

Result<PinnedMemory> allocate_pinned(std::int64_t bytes, std::int32_t index) {
  auto device = cuda::OpenDevice::open(index);
  if (!device.ok()) return device.status();
  const cuda::Current current(*device.value());
  const cuda::RelaxedCapture relaxed;
  void* host = nullptr;
  cudaError_t error = current.error();
  if (error == cudaSuccess) {
    error = cuda::quiet(
        cudaHostAlloc(&host, static_cast<std::size_t>(bytes), cudaHostAllocPortable | cudaHostAllocMapped));
  }
  if (error == cudaErrorMemoryAllocation)
    return Status(StatusCode::kOutOfMemory, fmt::format("{} bytes of pinned memory", bytes));
  PinnedMemory memory;
  if (error == cudaSuccess) {
    // shared_ptr calls this too when it has no memory for itself.
    memory.host = std::shared_ptr<void>(host, [device = device.value()](void* pinned) {
      if (!device->can_free()) return;
      const cuda::Current freeing(*device);
      const cuda::RelaxedCapture relaxed_too;
      if (freeing.error() == cudaSuccess) cuda::quiet(cudaFreeHost(pinned));
    });
    error = cuda::quiet(cudaHostGetDevicePointer(&memory.device, host, 0));
  }
  if (error != cudaSuccess)
    return Status(StatusCode::kUnavailable, fmt::format("cuda:{}: {}", index, cudaGetErrorString(error)));
  return memory;
}

}  // namespace kvferry::internal
