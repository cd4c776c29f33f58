// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.hpp"

#include <fmt/format.h>

#include <limits>

#include "capi/reader.hpp"
#include "core/context_state.hpp"
#include "kvferry/backend.hpp"

namespace kvferry::capi {
namespace {

static_assert(KVFERRY_VERSION == KVFERRY_PROJECT_VERSION, "kvferry.h and CMakeLists.txt differ in version");

static_assert(KVFERRY_OK == static_cast<int>(StatusCode::kOk) &&
              KVFERRY_INVALID_ARGUMENT == static_cast<int>(StatusCode::kInvalidArgument) &&
              KVFERRY_NULL == static_cast<int>(StatusCode::kNull) &&
              KVFERRY_INDEX == static_cast<int>(StatusCode::kIndex) &&
              KVFERRY_UNIMPLEMENTED == static_cast<int>(StatusCode::kUnimplemented) &&
              KVFERRY_UNAVAILABLE == static_cast<int>(StatusCode::kUnavailable) &&
              KVFERRY_OUT_OF_MEMORY == static_cast<int>(StatusCode::kOutOfMemory));
static_assert(KVFERRY_DEVICE_CPU == static_cast<int>(DeviceType::kCpu) &&
              KVFERRY_DEVICE_CUDA == static_cast<int>(DeviceType::kCuda) &&
              KVFERRY_DEVICE_CUDA_HOST == static_cast<int>(DeviceType::kCudaHost) &&
              KVFERRY_DEVICE_CUDA_MANAGED == static_cast<int>(DeviceType::kCudaManaged));
// The operators are numbered without gaps.
static_assert(KVFERRY_OP_GATHER_PA_KV_CACHE == 1);
constexpr int kLastOperator = KVFERRY_OP_GATHER_DEQUANT;

// Of a kernel there is; what this machine has is checked with the context.
constexpr std::int64_t kMostCpus = 1 << 20;

thread_local Status last_error;
thread_local std::string last_detail;

// The value that `read` takes from a handle, or what stands for null.
template <class Handle, class Value, class Read>
Value read_or(const char* name, const Handle* handle, Value otherwise, Read read) noexcept {
  Value value = otherwise;
  call([&]() -> Status {
    Reader reader(name);
    reader.need("handle", handle);
    if (reader.ok()) value = read(*handle);
    return reader.take();
  });
  return value;
}

// What `read` takes from a backend, or what stands for a number that is none.
template <class Value, class Read>
Value of_backend(int backend, Value otherwise, Read read) noexcept {
  Value value = otherwise;
  call([&]() -> Status {
    std::vector<BackendInfo> all = backends();
    if (backend >= 0 && static_cast<std::size_t>(backend) < all.size())
      value = read(all[static_cast<std::size_t>(backend)]);
    return {};
  });
  return value;
}

ContextOptions read_options(Reader& reader, const kvferry_context_options* given) {
  ContextOptions options;
  if (given == nullptr) return options;
  const auto o = reader.structure("options", given);
  options.threads = static_cast<int>(reader.choice("threads", o.threads, std::numeric_limits<int>::max()));
  if (o.stream != nullptr) options.stream = &o.stream->stream;
  if (o.implementation != nullptr) options.implementation = o.implementation;
  options.streaming = reader.flag("streaming", o.streaming);
  const std::int64_t num_cpus = reader.choice("num_cpus", o.num_cpus, kMostCpus);
  if (num_cpus > 0) reader.need("cpus", o.cpus);
  for (std::int64_t i = 0; i < num_cpus && reader.ok(); ++i)
    options.cpus.push_back(static_cast<int>(reader.choice("cpus", o.cpus[i], kMostCpus)));
  if (o.device.type != 0 || o.device.id != 0) {
    options.device.type = reader.choice("device.type", o.device.type, DeviceType::kCuda);
    options.device.index = o.device.id;
  }
  options.cuda_stream = o.cuda_stream;
  options.cuda_staging_bytes = o.cuda_staging_bytes;
  return options;
}

}  // namespace

kvferry_status finish(Status status) noexcept {
  const auto code = static_cast<kvferry_status>(status.code());
  if (code != KVFERRY_OK) last_error = std::move(status);
  return code;
}

}  // namespace kvferry::capi

using namespace kvferry;
using namespace kvferry::capi;

int kvferry_version() {
  return KVFERRY_VERSION;
}

const char* kvferry_status_name(kvferry_status status) {
  return to_string(static_cast<StatusCode>(status));
}

const char* kvferry_last_error_message() {
  // Without memory there is no text either.
  return last_error.ok() || !last_error.message().empty() ? last_error.message().c_str()
                                                          : to_string(last_error.code());
}

kvferry_status kvferry_stream_create(kvferry_stream** stream) {
  return call([&]() -> Status {
    Reader reader("stream_create");
    reader.need("stream", stream);
    if (!reader.ok()) return reader.take();
    *stream = nullptr;
    *stream = new kvferry_stream;
    return {};
  });
}

kvferry_status kvferry_stream_wait(kvferry_stream* stream) {
  return call([&]() -> Status {
    Reader reader("stream_wait");
    reader.need("stream", stream);
    return reader.ok() ? stream->stream.wait() : reader.take();
  });
}

void kvferry_stream_destroy(kvferry_stream* stream) {
  delete stream;
}

kvferry_status kvferry_context_create(const kvferry_context_options* options, kvferry_context** context) {
  return call([&]() -> Status {
    Reader reader("context_create");
    reader.need("context", context);
    if (!reader.ok()) return reader.take();
    *context = nullptr;
    const ContextOptions read = read_options(reader, options);
    if (!reader.ok()) return reader.take();
    Context made(read);
    if (!made.state().environment.ok()) return made.state().environment;
    *context = new kvferry_context{std::move(made)};
    return {};
  });
}

void kvferry_context_destroy(kvferry_context* context) {
  delete context;
}

int kvferry_context_threads(const kvferry_context* context) {
  return read_or("context_threads", context, -1, [](const auto& c) { return c.context.threads(); });
}

const char* kvferry_backend_name(int backend) {
  static constexpr const char* kNames[] = {"cpu", "cuda"};
  return backend >= 0 && backend < 2 ? kNames[backend] : nullptr;
}

int kvferry_backend_available(int backend) {
  return of_backend(backend, -1, [](BackendInfo& b) { return b.available ? 1 : 0; });
}

const char* kvferry_backend_detail(int backend) {
  return of_backend(backend, static_cast<const char*>(nullptr), [](BackendInfo& b) {
    last_detail = std::move(b.detail);
    return last_detail.c_str();
  });
}

kvferry_status kvferry_pinned_buffer_create(int64_t bytes, kvferry_device device,
                                            kvferry_pinned_buffer** buffer) {
  return call([&]() -> Status {
    Reader reader("pinned_buffer_create");
    reader.need("buffer", buffer);
    if (!reader.ok()) return reader.take();
    *buffer = nullptr;
    const auto type = static_cast<DeviceType>(reader.choice("device.type", device.type, KVFERRY_DEVICE_CUDA));
    if (!reader.ok()) return reader.take();
    Result<PinnedBuffer> made = PinnedBuffer::make(bytes, {type, device.id});
    if (!made.ok()) return made.status();
    *buffer = new kvferry_pinned_buffer{std::move(made).value()};
    return {};
  });
}

void* kvferry_pinned_buffer_data(const kvferry_pinned_buffer* buffer) {
  return read_or("pinned_buffer_data", buffer, static_cast<void*>(nullptr),
                 [](const auto& b) -> void* { return b.buffer.data(); });
}

void* kvferry_pinned_buffer_device_data(const kvferry_pinned_buffer* buffer) {
  return read_or("pinned_buffer_device_data", buffer, static_cast<void*>(nullptr),
                 [](const auto& b) { return b.buffer.device_data(); });
}

void kvferry_pinned_buffer_destroy(kvferry_pinned_buffer* buffer) {
  delete buffer;
}

const char* kvferry_operator_name(int op) {
  return op >= 1 && op <= kLastOperator ? to_string(static_cast<Operator>(op)) : nullptr;
}

void kvferry_plan_destroy(kvferry_plan* plan) {
  delete plan;
}

int kvferry_plan_operator(const kvferry_plan* plan) {
  return read_or("plan_operator", plan, 0, [](const auto& p) { return static_cast<int>(p.plan.op()); });
}

int64_t kvferry_plan_workspace_bytes(const kvferry_plan* plan) {
  return read_or("plan_workspace_bytes", plan, std::int64_t{-1},
                 [](const auto& p) { return p.plan.workspace_bytes(); });
}

const char* kvferry_plan_implementation(const kvferry_plan* plan) {
  return read_or("plan_implementation", plan, static_cast<const char*>(nullptr),
                 [](const auto& p) { return p.plan.implementation().data(); });
}

const char* kvferry_plan_describe(const kvferry_plan* plan) {
  return read_or("plan_describe", plan, static_cast<const char*>(nullptr), [](const auto& p) {
    std::call_once(p.described, [&] { p.description = p.plan.describe(); });
    return p.description.c_str();
  });
}
