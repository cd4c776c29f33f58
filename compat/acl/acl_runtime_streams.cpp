// SPDX-License-Identifier: Apache-2.0
//
// aclrt...Stream and aclrt...Event.
#include <fmt/format.h>

#include "acl/acl_rt.h"
#include "acl_device.hpp"
#include "acl_error.hpp"

namespace kvferry::acl {
namespace {

Handles<Event>& events() {
  static auto& table = *new Handles<Event>;
  return table;
}

// Calls body(*found...) if all handles were there.
template <class Body>
int with_stream(const char* function, aclrtStream handle, Body body) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&]() -> int {
    const auto stream = device().find_stream(handle);
    if (stream == nullptr) return fail(ACL_ERROR_RT_INVALID_HANDLE, no_such(function, "stream", handle));
    return body(*stream);
  });
}

template <class Body>
int with_event(const char* function, aclrtEvent handle, Body body) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&]() -> int {
    const auto event = events().find(handle);
    if (event == nullptr) return fail(ACL_ERROR_RT_INVALID_HANDLE, no_such(function, "event", handle));
    return body(*event);
  });
}

int report(const Status& status) {
  return status.ok() ? ACL_SUCCESS : fail(ACL_ERROR_RT_INTERNAL_ERROR, status.message());
}

}  // namespace
}  // namespace kvferry::acl

using namespace kvferry::acl;

aclError aclrtCreateStream(aclrtStream* stream) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    if (stream == nullptr) return null_argument("aclrtCreateStream", "stream");
    auto made = backend().make_stream(device().id());
    if (!made.ok()) return report(made.status());
    *stream = device().streams.add(std::move(made).value());
    return ACL_SUCCESS;
  });
}

aclError aclrtDestroyStream(aclrtStream stream) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    const auto taken = device().streams.take(stream);
    if (taken == nullptr)
      return fail(ACL_ERROR_RT_INVALID_HANDLE, no_such("aclrtDestroyStream", "stream", stream));
    // Not left to the destructor: a thread in aclrtSynchronizeDevice may have the last reference.
    static_cast<void>(taken->wait());
    return ACL_SUCCESS;
  });
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  return with_stream("aclrtSynchronizeStream", stream, [](Stream& s) { return report(s.wait()); });
}

aclError aclrtSynchronizeDevice() {
  return guarded(ACL_ERROR_BAD_ALLOC, [] {
    kvferry::Status first;
    for (const auto& stream : device().all_streams()) {
      kvferry::Status status = stream->wait();
      if (first.ok()) first = std::move(status);
    }
    return report(first);
  });
}

aclError aclrtCreateEvent(aclrtEvent* event) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    if (event == nullptr) return null_argument("aclrtCreateEvent", "event");
    auto made = backend().make_event(device().id());
    if (!made.ok()) return report(made.status());
    *event = events().add(std::move(made).value());
    return ACL_SUCCESS;
  });
}

aclError aclrtDestroyEvent(aclrtEvent event) {
  return guarded(ACL_ERROR_BAD_ALLOC, [&] {
    if (events().take(event) != nullptr) return ACL_SUCCESS;
    return fail(ACL_ERROR_RT_INVALID_HANDLE, no_such("aclrtDestroyEvent", "event", event));
  });
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  return with_event("aclrtRecordEvent", event, [&](Event& e) {
    return with_stream("aclrtRecordEvent", stream, [&](Stream& s) { return report(e.record(s)); });
  });
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  return with_event("aclrtStreamWaitEvent", event, [&](const Event& e) {
    return with_stream("aclrtStreamWaitEvent", stream, [&](Stream& s) { return report(e.hold_up(s)); });
  });
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  return with_event("aclrtSynchronizeEvent", event, [](const Event& e) { return report(e.wait()); });
}

aclError aclrtEventElapsedTime(float* ms, aclrtEvent start, aclrtEvent end) {
  return with_event("aclrtEventElapsedTime", start, [&](const Event& from) {
    return with_event("aclrtEventElapsedTime", end, [&](const Event& to) {
      if (ms == nullptr) return null_argument("aclrtEventElapsedTime", "ms");
      const bool begun = from.happened();
      if (!begun || !to.happened())
        return fail(ACL_ERROR_RT_PARAM_INVALID,
                    fmt::format("aclrtEventElapsedTime: event {} has not happened", begun ? "end" : "start"));
      const auto elapsed = to.milliseconds_since(from);
      if (!elapsed.ok()) return report(elapsed.status());
      *ms = elapsed.value();
      return ACL_SUCCESS;
    });
  });
}
