// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_queue/fake_runtime.hpp"

#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "backends/cuda/kernels.hpp"
#include "backends/cuda/launcher.cuh"

namespace kvferry::fake {

Machine& machine() {
  static Machine one;
  return one;
}

std::vector<std::string> Machine::take() {
  return std::exchange(calls, {});
}

namespace {

// What a call of this name returns: its planted error, which the runtime keeps too.
cudaError_t enter(const char* name) {
  const auto planted = machine().fails.find(name);
  if (planted == machine().fails.end()) return cudaSuccess;
  return machine().last_error = planted->second;
}

void record(const std::string& call) {
  const auto& current = machine().current;
  machine().calls.push_back(call + " on " + (current.empty() ? "none" : std::to_string(current.back())));
}

// Handles of contexts: device + 1.
CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
}

CUresult get_device(CUdevice* device, int ordinal) {
  *device = ordinal + 100;  // not the ordinal
  return CUDA_SUCCESS;
}
CUresult retain(CUcontext* context, CUdevice device) {
  ++machine().retained[device - 100];
  *context = context_of(device - 100);
  return CUDA_SUCCESS;
}
CUresult release(CUdevice device) {
  --machine().retained[device - 100];
  return CUDA_SUCCESS;
}
CUresult get_current(CUcontext* context) {
  const auto& current = machine().current;
  *context = current.empty() ? nullptr : context_of(current.back());
  return CUDA_SUCCESS;
}
CUresult push_current(CUcontext context) {
  if (const cudaError_t error = enter("push")) {
    machine().last_error = cudaSuccess;  // the driver keeps none
    return static_cast<CUresult>(error);
  }
  machine().current.push_back(static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1);
  return CUDA_SUCCESS;
}
CUresult pop_current(CUcontext* context) {
  get_current(context);
  machine().current.pop_back();
  return CUDA_SUCCESS;
}

template <class K>
const char* name_of() {
  return std::is_same_v<K, internal::cuda::PagedGather> ? "PagedGather" : "kernel";
}

}  // namespace
}  // namespace kvferry::fake

using kvferry::fake::enter;
using kvferry::fake::machine;
using kvferry::fake::record;

// ---- What .cu files instantiate

namespace kvferry::internal::cuda {

template <class K>
cudaError_t launch(const typename K::Params& /*params*/, std::uint32_t blocks, cudaStream_t stream) {
  if (blocks == 0) {
    const cudaError_t error = enter("load");
    machine().last_error = cudaSuccess;
    return error;
  }
  record(std::string("launch ") + fake::name_of<K>());
  machine().streams.push_back(stream);
  const cudaError_t error = enter("launch");
  machine().last_error = cudaSuccess;
  return error;
}

template <class... K>
constexpr auto all_launches(KernelList<K...>) {
  return std::tuple(&launch<K>...);
}
// Seen from outside, so that the compiler keeps every one of them.
extern const decltype(all_launches(Kernels())) kInstantiated;
const decltype(all_launches(Kernels())) kInstantiated = all_launches(Kernels());

}  // namespace kvferry::internal::cuda

// ---- The runtime

extern "C" {

cudaError_t cudaGetLastError() {
  return std::exchange(machine().last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  text = "error " + std::to_string(error);
  return text.c_str();
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = machine().driver;
  return enter("cudaDriverGetVersion");
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = machine().devices;
  return enter("cudaGetDeviceCount");
}
cudaError_t cudaGetDevice(int* device) {
  *device = machine().current.empty() ? 0 : machine().current.back();
  return enter("cudaGetDevice");
}
cudaError_t cudaInitDevice(int device, unsigned /*device_flags*/, unsigned /*flags*/) {
  record("init " + std::to_string(device));
  return enter("cudaInitDevice");
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* result) {
  using namespace kvferry::fake;
  static const std::map<std::string, void*> functions = {
      {"cuDeviceGet", reinterpret_cast<void*>(get_device)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(retain)},
      {"cuDevicePrimaryCtxRelease", reinterpret_cast<void*>(release)},
      {"cuCtxGetCurrent", reinterpret_cast<void*>(get_current)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(push_current)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(pop_current)},
  };
  const auto found = functions.find(symbol);
  const bool known = found != functions.end() && version >= 4000 && enter(symbol) == cudaSuccess;
  machine().last_error = cudaSuccess;
  *function = known ? found->second : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor   ? 9
           : attribute == cudaDevAttrComputeCapabilityMinor ? 0
                                                            : 132 + device;
  return enter("cudaDeviceGetAttribute");
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, device == 0 ? "First GPU" : "Second GPU");
  return enter("cudaGetDeviceProperties");
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  *device = reinterpret_cast<kvferry::fake::Stream*>(stream)->device;
  return enter("cudaStreamGetDevice");
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = reinterpret_cast<std::uintptr_t>(stream) <= 2
                ? cudaStreamCaptureStatusNone
                : reinterpret_cast<kvferry::fake::Stream*>(stream)->capture;
  return enter("cudaStreamIsCapturing");
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, machine().capture_mode);
  return enter("cudaThreadExchangeStreamCaptureMode");
}
// Both kinds of memory are only wanted where another thread's capture allows it.
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  record("malloc " + std::to_string(bytes));
  if (machine().capture_mode != cudaStreamCaptureModeRelaxed)
    return machine().last_error = cudaErrorStreamCaptureUnsupported;
  if (const cudaError_t error = enter("cudaMalloc")) return error;
  *memory = std::malloc(bytes);
  machine().device_memory[*memory] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  record("free " + std::to_string(machine().device_memory.at(memory)));
  if (machine().capture_mode != cudaStreamCaptureModeRelaxed)
    return machine().last_error = cudaErrorStreamCaptureUnsupported;
  machine().device_memory.erase(memory);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  record("set " + std::to_string(bytes));
  if (const cudaError_t error = enter("cudaMemsetAsync")) return error;
  std::memset(memory, value, bytes);
  machine().streams.push_back(stream);
  return cudaSuccess;
}
// A stream that is captured cannot be waited for, and its capture is lost.
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  record("wait");
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &status);
  if (status != cudaStreamCaptureStatusNone) return machine().last_error = cudaErrorStreamCaptureUnsupported;
  machine().streams.push_back(stream);
  return enter("cudaStreamSynchronize");
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  record("pin " + std::to_string(bytes) + " flags " + std::to_string(flags));
  if (const cudaError_t error = enter("cudaHostAlloc")) return error;
  *memory = std::malloc(bytes);
  machine().host_memory[*memory] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  record("unpin " + std::to_string(machine().host_memory.at(memory)));
  machine().host_memory.erase(memory);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned /*flags*/) {
  *device = static_cast<char*>(host) + 1;
  return enter("cudaHostGetDevicePointer");
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  record("ask");
  const auto found = machine().pointers.find(pointer);
  *attributes = found == machine().pointers.end() ? cudaPointerAttributes{} : found->second;
  return enter("cudaPointerGetAttributes");
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  record("copy");
  if (const cudaError_t error = enter("cudaMemcpyAsync")) return error;
  if (kind != cudaMemcpyDefault) return machine().last_error = cudaErrorInvalidMemcpyDirection;
  machine().copies.push_back({dst, src, bytes});
  machine().streams.push_back(stream);
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void* const* dsts, const void* const* srcs, const std::size_t* sizes,
                                 std::size_t count, cudaMemcpyAttributes* attributes, std::size_t* first,
                                 std::size_t attribute_count, cudaStream_t stream) {
#else
cudaError_t cudaMemcpyBatchAsync(void** dsts, void** srcs, std::size_t* sizes, std::size_t count,
                                 cudaMemcpyAttributes* attributes, std::size_t* first,
                                 std::size_t attribute_count, std::size_t* /*failed*/, cudaStream_t stream) {
#endif
  record("batch");
  if (const cudaError_t error = enter("cudaMemcpyBatchAsync")) return error;
  if (stream == nullptr || stream == cudaStreamLegacy || count == 0 || attribute_count != 1 || *first != 0 ||
      attributes->srcAccessOrder != cudaMemcpySrcAccessOrderStream || attributes->flags != 0)
    return machine().last_error = cudaErrorInvalidValue;
  for (std::size_t i = 0; i < count; ++i) {
    if (sizes[i] == 0) return machine().last_error = cudaErrorInvalidValue;
    machine().copies.push_back({dsts[i], srcs[i], sizes[i]});
  }
  machine().batches.push_back(count);
  machine().streams.push_back(stream);
  return cudaSuccess;
}

}  // extern "C"
