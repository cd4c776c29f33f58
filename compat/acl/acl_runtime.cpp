// SPDX-License-Identifier: Apache-2.0
//
// aclInit, aclnnInit, devices and contexts.
#include <fmt/format.h>

#include <atomic>
#include <map>
#include <mutex>

#include "acl/acl.h"
#include "acl_device.hpp"
#include "acl_error.hpp"
#include "acl_settings.hpp"
#include "aclnn/aclnn_base.h"

namespace kvferry::acl {
namespace {

std::atomic<bool> initialised{false};

// A context names a device; the streams of one device are the same in all its contexts.
struct DeviceContext {
  std::int32_t device = 0;
};

Handles<DeviceContext>& contexts() {
  static auto& table = *new Handles<DeviceContext>;
  return table;
}

// That of a device whose number was set. REQUIRES a device that there is.
aclrtContext default_context(std::int32_t device) {
  static auto& mutex = *new std::mutex;
  static auto& handles = *new std::map<std::int32_t, aclrtContext>;
  const std::lock_guard lock(mutex);
  aclrtContext& handle = handles[device];
  if (handle == nullptr) handle = contexts().add(std::make_shared<DeviceContext>(DeviceContext{device}));
  return handle;
}

thread_local aclrtContext current_context = nullptr;

int check_device(const char* function, std::int32_t id) {
  const auto count = backend().device_count();
  if (!count.ok()) return report(function, count.status());
  if (id >= 0 && id < count.value()) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_INVALID_DEVICEID,
              count.value() == 0
                  ? fmt::format("{}: device {}, and this machine has none: {}", function, id,
                                backend().use_device(0).message())
                  : fmt::format("{}: device {}, expected 0 to {}", function, id, count.value() - 1));
}

// Makes `context`, of device `id`, that of the calling thread.
int enter(const char* function, aclrtContext context, std::int32_t id) {
  const int code = report(function, use_device(id));
  if (code == ACL_SUCCESS) current_context = context;
  return code;
}

int no_context(const char* function) {
  return fail(ACL_ERROR_RT_CONTEXT_NULL,
              fmt::format("{}: this thread has no context, expected aclrtSetDevice before", function));
}

}  // namespace
}  // namespace kvferry::acl

using namespace kvferry::acl;

aclError aclInit(const char* /*configPath*/) {
  return guarded(ACL_ERROR_BAD_ALLOC, [] {
    if (!initialised.exchange(true)) return ACL_SUCCESS;
    return fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit: called before, expected aclFinalize in between");
  });
}

aclError aclFinalize() {
  return guarded(ACL_ERROR_BAD_ALLOC, [] {
    if (initialised.exchange(false)) return ACL_SUCCESS;
    return fail(ACL_ERROR_REPEAT_FINALIZE, "aclFinalize: nothing to finalize, expected aclInit before");
  });
}

aclnnStatus aclnnInit(const char* /*configPath*/) {
  return ACLNN_SUCCESS;
}

aclnnStatus aclnnFinalize() {
  return ACLNN_SUCCESS;
}

aclError aclrtSetDevice(int32_t deviceId) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    const int code = check_device("aclrtSetDevice", deviceId);
    return code == ACL_SUCCESS ? enter("aclrtSetDevice", default_context(deviceId), deviceId) : code;
  });
}

aclError aclrtResetDevice(int32_t deviceId) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    const int code = check_device("aclrtResetDevice", deviceId);
    if (code != ACL_SUCCESS) return code;
    device(deviceId).reset();
    current_context = nullptr;
    return ACL_SUCCESS;
  });
}

aclError aclrtGetDevice(int32_t* deviceId) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    if (deviceId == nullptr) return null_argument("aclrtGetDevice", "deviceId");
    const auto context = contexts().find(current_context);
    if (context == nullptr) return no_context("aclrtGetDevice");
    *deviceId = context->device;
    return ACL_SUCCESS;
  });
}

aclError aclrtGetDeviceCount(uint32_t* count) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    if (count == nullptr) return null_argument("aclrtGetDeviceCount", "count");
    const auto found = backend().device_count();
    if (!found.ok()) return report("aclrtGetDeviceCount", found.status());
    *count = static_cast<std::uint32_t>(found.value());
    return ACL_SUCCESS;
  });
}

const char* aclrtGetSocName() {
  auto profile = Profile::k950;
  // A wrong variable is told by the first phases; this function has no way to.
  guarded(ACL_ERROR_BAD_ALLOC,
          [&] { return settings().profile.get(profile).ok() ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM; });
  return profile == Profile::kA2 ? "Ascend910B" : "Ascend950";
}

aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    if (context == nullptr) return null_argument("aclrtCreateContext", "context");
    const int code = check_device("aclrtCreateContext", deviceId);
    if (code != ACL_SUCCESS) return code;
    *context = contexts().add(std::make_shared<DeviceContext>(DeviceContext{deviceId}));
    return enter("aclrtCreateContext", *context, deviceId);
  });
}

aclError aclrtDestroyContext(aclrtContext context) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    if (context == nullptr) return null_argument("aclrtDestroyContext", "context");
    const auto found = contexts().find(context);
    if (found == nullptr || context == default_context(found->device) || contexts().take(context) == nullptr)
      return fail(ACL_ERROR_RT_INVALID_HANDLE, no_such("aclrtDestroyContext", "context", context));
    return ACL_SUCCESS;
  });
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    if (context == nullptr) return null_argument("aclrtSetCurrentContext", "context");
    const auto found = contexts().find(context);
    if (found == nullptr)
      return fail(ACL_ERROR_RT_INVALID_HANDLE, no_such("aclrtSetCurrentContext", "context", context));
    return enter("aclrtSetCurrentContext", context, found->device);
  });
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    if (context == nullptr) return null_argument("aclrtGetCurrentContext", "context");
    if (contexts().find(current_context) == nullptr) return no_context("aclrtGetCurrentContext");
    *context = current_context;
    return ACL_SUCCESS;
  });
}
