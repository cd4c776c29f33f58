// SPDX-License-Identifier: Apache-2.0
//
// The backend of KVFERRY_ACL_CUDA: devices are this machine's GPUs, streams and events are CUDA's.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "acl_backend.hpp"

namespace kvferry::acl {
namespace {

// ACL numbers the kinds of copies as CUDA does.
static_assert(static_cast<int>(ACL_MEMCPY_HOST_TO_HOST) == cudaMemcpyHostToHost &&
              static_cast<int>(ACL_MEMCPY_HOST_TO_DEVICE) == cudaMemcpyHostToDevice &&
              static_cast<int>(ACL_MEMCPY_DEVICE_TO_HOST) == cudaMemcpyDeviceToHost &&
              static_cast<int>(ACL_MEMCPY_DEVICE_TO_DEVICE) == cudaMemcpyDeviceToDevice &&
              static_cast<int>(ACL_MEMCPY_DEFAULT) == cudaMemcpyDefault);

Status checked(const char* function, cudaError_t error) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());  // it is told here, and not by the next call of somebody else
  return {error == cudaErrorMemoryAllocation ? StatusCode::kOutOfMemory : StatusCode::kUnavailable,
          fmt::format("{}: {} ({})", function, cudaGetErrorString(error), cudaGetErrorName(error))};
}

// The thread's current device while it lives.
class OnDevice {
 public:
  explicit OnDevice(std::int32_t device) {
    status_ = checked("cudaGetDevice", cudaGetDevice(&before_));
    if (!status_.ok() || before_ == device) return;
    status_ = checked("cudaSetDevice", cudaSetDevice(device));
    moved_ = status_.ok();
  }
  ~OnDevice() {
    if (moved_) static_cast<void>(cudaSetDevice(before_));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  // `call` is one function of CUDA.
  template <class Call>
  Status run(const char* function, Call call) const {
    return status_.ok() ? checked(function, call()) : status_;
  }

 private:
  int before_ = 0;
  bool moved_ = false;
  Status status_;
};

ContextOptions options_of(std::int32_t device, cudaStream_t stream) {
  ContextOptions options;
  options.device = {DeviceType::kCuda, device};
  options.cuda_stream = stream;
  return options;
}

class CudaStream final : public Stream {
 public:
  // Null: CUDA's default stream of the device, which nobody destroys.
  CudaStream(std::int32_t device, cudaStream_t stream)
      : device_(device), stream_(stream), context_(options_of(device, stream)) {}
  ~CudaStream() override {
    if (stream_ == nullptr) return;
    const OnDevice there(device_);
    static_cast<void>(there.run("cudaStreamDestroy", [&] { return cudaStreamDestroy(stream_); }));
  }

  std::int32_t device() const { return device_; }
  cudaStream_t get() const { return stream_; }

  Status push(std::unique_ptr<Task> task) override {
    const OnDevice there(device_);
    return task->run(context_);
  }
  Status copy(void* to, const void* from, std::size_t count, aclrtMemcpyKind kind) override {
    const OnDevice there(device_);
    return there.run("cudaMemcpyAsync", [&] {
      return cudaMemcpyAsync(to, from, count, static_cast<cudaMemcpyKind>(kind), stream_);
    });
  }
  Status fill(void* to, int value, std::size_t count) override {
    const OnDevice there(device_);
    return there.run("cudaMemsetAsync", [&] { return cudaMemsetAsync(to, value, count, stream_); });
  }
  Status wait() override {
    const OnDevice there(device_);
    return there.run("cudaStreamSynchronize", [&] { return cudaStreamSynchronize(stream_); });
  }

 private:
  const std::int32_t device_;
  const cudaStream_t stream_;
  const Context context_;
};

class CudaEvent final : public Event {
 public:
  CudaEvent(std::int32_t device, cudaEvent_t event) : device_(device), event_(event) {}
  ~CudaEvent() override {
    const OnDevice there(device_);
    static_cast<void>(there.run("cudaEventDestroy", [&] { return cudaEventDestroy(event_); }));
  }

  Status record(Stream& stream) override {
    const auto& on = static_cast<const CudaStream&>(stream);
    const OnDevice there(on.device());
    Status status = there.run("cudaEventRecord", [&] { return cudaEventRecord(event_, on.get()); });
    if (status.ok()) recorded_ = true;
    return status;
  }
  Status hold_up(Stream& stream) const override {
    const auto& held = static_cast<const CudaStream&>(stream);
    const OnDevice there(held.device());
    return there.run("cudaStreamWaitEvent", [&] { return cudaStreamWaitEvent(held.get(), event_, 0); });
  }
  Status wait() const override { return checked("cudaEventSynchronize", cudaEventSynchronize(event_)); }
  bool happened() const override {
    if (!recorded_) return false;
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
    return error == cudaSuccess;
  }
  Result<float> milliseconds_since(const Event& start) const override {
    float milliseconds = 0;
    Status status =
        checked("cudaEventElapsedTime",
                cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(start).event_, event_));
    if (!status.ok()) return status;
    return milliseconds;
  }

 private:
  const std::int32_t device_;
  const cudaEvent_t event_;
  std::atomic<bool> recorded_{false};  // CUDA takes one that never was for one that happened
};

class CudaBackend final : public Backend {
 public:
  Result<std::int32_t> device_count() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {  // or no driver at all
      static_cast<void>(cudaGetLastError());
      return 0;
    }
    Status status = checked("cudaGetDeviceCount", error);
    if (!status.ok()) return status;
    return count;
  }
  Status use_device(std::int32_t device) override { return checked("cudaSetDevice", cudaSetDevice(device)); }
  Context make_context(std::int32_t device) override { return Context(options_of(device, nullptr)); }
  kvferry::Device place_of(const void* memory, std::int32_t device) override {
    const kvferry::Device own{DeviceType::kCuda, device};
    cudaPointerAttributes found{};
    if (memory == nullptr) return own;
    // What fails here fails in plan() too, which says why.
    if (!checked("cudaPointerGetAttributes", cudaPointerGetAttributes(&found, memory)).ok()) return own;
    switch (found.type) {
      case cudaMemoryTypeHost:
        return {DeviceType::kCudaHost, 0};
      case cudaMemoryTypeManaged:
        return {DeviceType::kCudaManaged, found.device};
      case cudaMemoryTypeDevice:
        return {DeviceType::kCuda, found.device};
      case cudaMemoryTypeUnregistered:
        break;
    }
    return {};
  }

  Result<void*> allocate(std::int32_t device, std::size_t bytes) override {
    void* memory = nullptr;
    const OnDevice there(device);
    Status status = there.run("cudaMalloc", [&] { return cudaMalloc(&memory, bytes); });
    if (!status.ok()) return status;
    return memory;
  }
  Result<void*> allocate_host(std::size_t bytes) override {
    void* memory = nullptr;
    Status status =
        checked("cudaHostAlloc", cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    if (!status.ok()) return status;
    return memory;
  }
  Status release(void* memory) override { return checked("cudaFree", cudaFree(memory)); }
  Status release_host(void* memory) override { return checked("cudaFreeHost", cudaFreeHost(memory)); }

  Status copy(void* to, const void* from, std::size_t count, aclrtMemcpyKind kind) override {
    Status status = checked("cudaMemcpy", cudaMemcpy(to, from, count, static_cast<cudaMemcpyKind>(kind)));
    return status.ok() ? wait_for_default() : status;
  }
  Status fill(void* to, int value, std::size_t count) override {
    Status status = checked("cudaMemset", cudaMemset(to, value, count));
    return status.ok() ? wait_for_default() : status;
  }

  // Beside CUDA's default stream: ACL's streams wait for events alone.
  Result<std::shared_ptr<Stream>> make_stream(std::int32_t device) override {
    cudaStream_t stream = nullptr;
    const OnDevice there(device);
    Status status = there.run("cudaStreamCreateWithFlags",
                              [&] { return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); });
    if (!status.ok()) return status;
    return std::shared_ptr<Stream>(std::make_shared<CudaStream>(device, stream));
  }
  Result<std::shared_ptr<Stream>> make_default_stream(std::int32_t device) override {
    return std::shared_ptr<Stream>(std::make_shared<CudaStream>(device, nullptr));
  }
  Result<std::shared_ptr<Event>> make_event(std::int32_t device) override {
    cudaEvent_t event = nullptr;
    const OnDevice there(device);
    Status status = there.run("cudaEventCreate", [&] { return cudaEventCreate(&event); });
    if (!status.ok()) return status;
    return std::shared_ptr<Event>(std::make_shared<CudaEvent>(device, event));
  }

 private:
  // CUDA returns from copies inside a device, and from fills, before they are done.
  static Status wait_for_default() {
    return checked("cudaStreamSynchronize", cudaStreamSynchronize(nullptr));
  }
};

}  // namespace

Backend& backend() {
  static auto& the_backend = *new CudaBackend;
  return the_backend;
}

}  // namespace kvferry::acl
