// SPDX-License-Identifier: Apache-2.0
//
// Backend: where device memory, streams and events come from. One is compiled: the CPU (acl_backend_cpu.cpp),
// or with KVFERRY_ACL_CUDA this machine's GPUs (acl_backend_cuda.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "acl/acl_rt.h"
#include "kvferry/context.hpp"
#include "kvferry/status.hpp"

namespace kvferry::acl {

class CpuStream;

class Task {
 public:
  Task() = default;
  Task(const Task&) = default;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  // With the stream's context: on the stream's thread, or where the context enqueues the work itself.
  virtual Status run(const Context& context) noexcept = 0;

 private:
  friend class CpuStream;
  Task* next_ = nullptr;  // behind this one: tasks are their own queue, so that enqueuing allocates nothing
};

// What is enqueued runs in order. Any thread may enqueue or wait. The destructor does not return before all
// has run that it is needed for.
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  // Status: of the enqueuing. What fails later is told once by the next wait() and stops nothing.
  virtual Status push(std::unique_ptr<Task> task) = 0;
  virtual Status copy(void* to, const void* from, std::size_t count, aclrtMemcpyKind kind) = 0;
  virtual Status fill(void* to, int value, std::size_t count) = 0;
  // Until everything that was enqueued before the call has run. Returns the first failure since the last
  // wait.
  virtual Status wait() = 0;
};

// A point between what streams of the same backend run.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  virtual ~Event() = default;

  // Happens behind everything that the stream holds now. Replaces what was recorded before, for later waits.
  virtual Status record(Stream& stream) = 0;
  // These wait for the last record made before the call, if there is one.
  virtual Status hold_up(Stream& stream) const = 0;
  virtual Status wait() const = 0;
  // Whether the last record happened; false if there is none.
  virtual bool happened() const = 0;
  // REQUIRES that both happened.
  virtual Result<float> milliseconds_since(const Event& start) const = 0;
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  // Devices are 0 to count - 1.
  virtual Result<std::int32_t> device_count() = 0;
  // What the calling thread does from here on is done on this device.
  virtual Status use_device(std::int32_t device) = 0;
  // For plan().
  virtual Context make_context(std::int32_t device) = 0;
  // Where memory lies, for plan() too; null is where the device's own memory is.
  virtual kvferry::Device place_of(const void* memory, std::int32_t device) = 0;

  // kOutOfMemory, or what the device says.
  virtual Result<void*> allocate(std::int32_t device, std::size_t bytes) = 0;
  virtual Result<void*> allocate_host(std::size_t bytes) = 0;
  virtual Status release(void* memory) = 0;
  virtual Status release_host(void* memory) = 0;
  // Done when they return.
  virtual Status copy(void* to, const void* from, std::size_t count, aclrtMemcpyKind kind) = 0;
  virtual Status fill(void* to, int value, std::size_t count) = 0;

  virtual Result<std::shared_ptr<Stream>> make_stream(std::int32_t device) = 0;
  // Of a null handle. Once for each device.
  virtual Result<std::shared_ptr<Stream>> make_default_stream(std::int32_t device) = 0;
  virtual Result<std::shared_ptr<Event>> make_event(std::int32_t device) = 0;
};

// Never destroyed: threads of the caller may outlive main().
Backend& backend();

}  // namespace kvferry::acl
