// SPDX-License-Identifier: Apache-2.0
//
// aclrtMalloc..., aclrtMemcpy... and aclrtMemset...
#include <fmt/format.h>

#include "acl/acl_rt.h"
#include "acl_device.hpp"
#include "acl_error.hpp"

namespace kvferry::acl {
namespace {

constexpr std::size_t kSizeUnit = 32;  // ACL rounds sizes up to it

// `make` gets the rounded size.
template <class Make>
int allocate(const char* function, void** pointer, std::size_t size, Make make) {
  if (pointer == nullptr) return null_argument(function, "the pointer");
  if (size == 0) return fail(ACL_ERROR_RT_PARAM_INVALID, fmt::format("{}: size is 0", function));
  *pointer = nullptr;
  if (size <= SIZE_MAX - kSizeUnit) {
    Result<void*> made = make((size + kSizeUnit - 1) / kSizeUnit * kSizeUnit);
    if (made.ok()) *pointer = made.value();
    if (made.status().code() != StatusCode::kOutOfMemory) return report(function, made.status());
  }
  return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, fmt::format("{}: no memory for {} bytes", function, size));
}

int allocate_on_device(const char* function, void** pointer, std::size_t size) {
  return allocate(function, pointer, size,
                  [](std::size_t bytes) { return backend().allocate(device().id(), bytes); });
}

int check_policy(const char* function, aclrtMemMallocPolicy policy) {
  if (policy >= ACL_MEM_MALLOC_HUGE_FIRST && policy <= ACL_MEM_MALLOC_NORMAL_ONLY_P2P) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_PARAM_INVALID,
              fmt::format("{}: policy {}, expected 0 to 5", function, static_cast<int>(policy)));
}

int release(const char* function, void* pointer, Status (Backend::*free)(void*)) {
  if (pointer == nullptr) return null_argument(function, "the pointer");
  return report(function, (backend().*free)(pointer));
}

// The rules of a copy, or of a fill that has no source.
int check_range(const char* function, const void* to, std::size_t room, std::size_t count) {
  if (to == nullptr) return null_argument(function, "the destination");
  if (room >= count) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_PARAM_INVALID,
              fmt::format("{}: {} bytes, but the destination has room for {}", function, count, room));
}

int check_copy(const char* function, const void* to, std::size_t room, const void* from, std::size_t count,
               aclrtMemcpyKind kind) {
  if (from == nullptr) return null_argument(function, "the source");
  if (kind < ACL_MEMCPY_HOST_TO_HOST || kind > ACL_MEMCPY_DEFAULT)
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                fmt::format("{}: kind {}, expected 0 to 4", function, static_cast<int>(kind)));
  return check_range(function, to, room, count);
}

// `work` enqueues.
template <class Work>
int enqueue(const char* function, aclrtStream handle, Work work) {
  const auto stream = device().find_stream(handle);
  if (stream == nullptr) return fail(ACL_ERROR_RT_INVALID_HANDLE, no_such(function, "stream", handle));
  return report(function, work(*stream));
}

}  // namespace
}  // namespace kvferry::acl

using namespace kvferry::acl;

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    const int code = check_policy("aclrtMalloc", policy);
    return code != ACL_SUCCESS ? code : allocate_on_device("aclrtMalloc", devPtr, size);
  });
}

aclError aclrtMallocAlign32(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    const int code = check_policy("aclrtMallocAlign32", policy);
    return code != ACL_SUCCESS ? code : allocate_on_device("aclrtMallocAlign32", devPtr, size);
  });
}

aclError aclrtFree(void* devPtr) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] { return release("aclrtFree", devPtr, &Backend::release); });
}

aclError aclrtMallocHost(void** hostPtr, size_t size) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    return allocate("aclrtMallocHost", hostPtr, size,
                    [](std::size_t bytes) { return backend().allocate_host(bytes); });
  });
}

aclError aclrtFreeHost(void* hostPtr) {
  return guarded(ACL_ERROR_BAD_ALLOC,
                 [&] { return release("aclrtFreeHost", hostPtr, &Backend::release_host); });
}

aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    const int code = check_copy("aclrtMemcpy", dst, destMax, src, count, kind);
    return code != ACL_SUCCESS ? code : report("aclrtMemcpy", backend().copy(dst, src, count, kind));
  });
}

aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    const int code = check_copy("aclrtMemcpyAsync", dst, destMax, src, count, kind);
    if (code != ACL_SUCCESS) return code;
    return enqueue("aclrtMemcpyAsync", stream, [&](Stream& s) { return s.copy(dst, src, count, kind); });
  });
}

aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    const int code = check_range("aclrtMemset", devPtr, maxCount, count);
    return code != ACL_SUCCESS ? code : report("aclrtMemset", backend().fill(devPtr, value, count));
  });
}

aclError aclrtMemsetAsync(void* devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    const int code = check_range("aclrtMemsetAsync", devPtr, maxCount, count);
    if (code != ACL_SUCCESS) return code;
    return enqueue("aclrtMemsetAsync", stream, [&](Stream& s) { return s.fill(devPtr, value, count); });
  });
}
