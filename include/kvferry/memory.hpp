// SPDX-License-Identifier: Apache-2.0
//
// HostBuffer: memory for pools of KV cache on the host. PinnedBuffer: that CUDA devices read and write too.
// device_workspace, device_memory: memory of a CUDA device, as scratch and to keep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "kvferry/context.hpp"
#include "kvferry/status.hpp"

namespace kvferry {

// Zeroed memory from the system, aligned to 2 MiB and rounded up to whole 2 MiB, advised for transparent huge
// pages (where the system has none it gives small ones). For pools, not for small things. Freed by the
// destructor; work that uses it must be done by then.
//
// The system gives pages when they are first touched: 11.5 us for each 4 KiB, or 0.23 us with huge pages, of
// whatever call comes first. Touch them at start-up instead. Pages land on the NUMA node of the thread that
// touches them: use a context whose threads run where the pool will be used (ContextOptions::cpus, and the
// caller bound alike).
//
// Errors of make(), which throws nothing: kInvalidArgument for a negative size; kOutOfMemory, with the size,
// when the system refuses it. A system that promises more than it has (Linux by default) accepts what exceeds
// free memory and ends the process when the pages are touched: choose sizes by what is available.
//
// Thread-safe as a pointer is: any thread may use the bytes and touch() while the object stays.
class KVFERRY_EXPORT HostBuffer {
 public:
  HostBuffer() noexcept = default;  // no bytes
  static Result<HostBuffer> make(std::int64_t bytes) noexcept;
  // With every page touched by the threads of this context.
  static Result<HostBuffer> make(std::int64_t bytes, const Context& context) noexcept;

  // What was moved from has no bytes.
  HostBuffer(HostBuffer&& other) noexcept { swap(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    HostBuffer(std::move(other)).swap(*this);
    return *this;
  }
  ~HostBuffer();

  std::byte* data() const noexcept { return data_; }  // null without bytes
  std::int64_t bytes() const noexcept { return bytes_; }

  // Makes the pages of the first `bytes` (clamped to those that there are) present, with all threads of the
  // context. Their content stays.
  void touch(std::int64_t bytes, const Context& context) const noexcept;

 private:
  void swap(HostBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// Page-locked memory from CUDA, mapped into this device and every other (cudaHostAlloc, portable and mapped):
// copies to and from it are asynchronous, and kernels read and write it over the link. Not zeroed, aligned
// to a page. Operators of a CUDA context take it in tensors of the device {kCudaHost, 0}, by data(). Slow to
// make: for pools, not for a call.
//
// Freed by the destructor, which may wait for the devices; work that uses it must be done by then. Pinned
// pages are never given back by the system: leave it enough to run.
//
// Errors of make(), which throws nothing: kInvalidArgument for a negative size or a device that is not a CUDA
// device; kUnavailable, with the reason, where that device or CUDA is not there; kOutOfMemory, with the size,
// when the system cannot pin so much.
//
// After fork() the memory stays with the parent: a child may not touch it, and its destructor only forgets
// it.
class KVFERRY_EXPORT PinnedBuffer {
 public:
  PinnedBuffer() noexcept = default;  // no bytes
  static Result<PinnedBuffer> make(std::int64_t bytes, Device device) noexcept;

  // What was moved from has no bytes.
  PinnedBuffer(PinnedBuffer&& other) noexcept { swap(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    PinnedBuffer(std::move(other)).swap(*this);
    return *this;
  }

  std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.get()); }  // null without bytes
  // The address for kernels of yours. Operators ask for it themselves.
  void* device_data() const noexcept { return device_data_; }
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  void swap(PinnedBuffer& other) noexcept {
    memory_.swap(other.memory_);
    std::swap(device_data_, other.device_data_);
    std::swap(bytes_, other.bytes_);
  }

  std::shared_ptr<void> memory_;  // with one owner: its deleter knows how
  void* device_data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// Of the context's CUDA device: this many bytes or more, those of its one-call forms, for runs of plans by
// callers that have no memory there. The address holds until more is asked for, and work that was enqueued
// with an earlier one is safe. Of runs that share it, one is to be enqueued whole before the next.
// kInvalidArgument on the CPU; kUnavailable after fork().
KVFERRY_EXPORT Result<void*> device_workspace(const Context& context, std::int64_t bytes) noexcept;

// Memory of the context's CUDA device (cudaMalloc) for callers that have no allocator there: zero, or a copy
// of `from`, which is memory of that device, managed or pinned, and stays until the copy is done. Both are
// work on the context's stream. Null for 0 bytes.
//
// Freed with its last owner, in any thread, also after the context: by cudaFree, which waits for the device.
// Slow to make and to free: for results, not for scratch.
//
// kInvalidArgument for a negative size and on the CPU; kOutOfMemory, with the size; kUnavailable in a capture
// of the stream, which it leaves as it is, and after fork().
KVFERRY_EXPORT Result<std::shared_ptr<void>> device_memory(const Context& context, std::int64_t bytes,
                                                           const void* from = nullptr) noexcept;

// Returns when the work on the context's CUDA stream is done: kUnavailable, in CUDA's words, when some of it
// failed, in a capture and after fork(); kInvalidArgument on the CPU.
KVFERRY_EXPORT Status device_wait(const Context& context) noexcept;

}  // namespace kvferry
