// SPDX-License-Identifier: Apache-2.0
//
// Context: where and how work runs. Stream: a FIFO of work on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvferry/status.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry {

namespace internal {
struct ContextState;
struct StreamState;
}  // namespace internal

// A CPU stream: one background thread that runs the enqueued operators in order.
//
// Operators enqueued with a stream return at once. Index tensors, pointer tables and data are read when the
// work runs. Plans, buffers and workspaces must live until wait() returns.
//
// A refusal at run time (IndexPolicy::kReject, a checked mode) writes nothing, is returned once by the next
// wait(), and does not stop the work behind it. Of several refusals wait() returns the first and says how
// many followed. The destructor waits; a Status that nobody fetched is lost.
//
// Thread-safe: any thread may enqueue or wait; wait() covers what was enqueued before the call.
//
// After fork() a stream stays with the parent. In the child wait() and calls of contexts that have it are
// kUnavailable, and its destructor only forgets it: make a new one.
class KVFERRY_EXPORT Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Status wait();

  internal::StreamState& state() const noexcept { return *state_; }

 private:
  std::unique_ptr<internal::StreamState> state_;
};

struct ContextOptions {
  Device device;
  // Threads that an operator may use, the caller's included. 0: KVFERRY_NUM_THREADS, else as many as there
  // are `cpus`, else as there are processors that the thread which makes the context may run on.
  int threads = 0;
  // Processors that the helper threads may run on, each on any of them. Empty: those of the thread whose call
  // starts them. The calling thread is never bound; for a set of its own (a NUMA node, say) bind it yourself.
  // One that this process may not use is an error of the first plan().
  std::vector<int> cpus;
  // Null: operators run in the calling thread (with its helpers) and return the final Status.
  // The stream must outlive the context.
  Stream* stream = nullptr;
  // Of a CUDA device: the cudaStream_t that operators are launched on, one of that device. Null is CUDA's
  // legacy default stream, as everywhere in CUDA. KVFerry never destroys it, and synchronises it only in
  // device_wait(); it must outlive the context and the work. With a CPU device it must be null.
  void* cuda_stream = nullptr;
  // Of a CUDA device: device memory of the context's that swap_blocks may stage copies between host and
  // device in, allocated by the first plan() that has a use for it. 0: 16 MiB. Negative: none, and no call
  // is staged.
  std::int64_t cuda_staging_bytes = 0;
  // Name of the implementation that every plan() must use ("avx512", "avx2", "neon", "generic"; "cuda", the
  // only one of a CUDA device); empty: KVFERRY_FORCE_IMPL, else the first of the operator's table that can
  // run. Forcing one that cannot run is an error of plan().
  std::string implementation;
  // The result is read next by a DMA engine or another device, not by this CPU: non-temporal stores already
  // pay for small calls.
  bool streaming = false;
};

// Holds the threads (started at the first large call, kept for the next) and the workspace of the one-call
// forms. Cheap to copy: copies share both. The environment is read once, in the constructor; what is wrong in
// it is an error of the first plan(), not an exception.
//
// Thread-safe. Calls that run at the same time through one context do not share its helper threads (the
// second runs with its caller's thread alone), and one-call forms take turns: give each thread that matters a
// context.
//
// Beside threads of your own (OpenMP, an engine's pool):
// - Calls from inside a parallel region: one context with threads = 1 for each thread (or, without the
//   one-call forms, for all of them), so that no processor has two threads to run. A shared context with more
//   threads is safe: one of the calls at a time has the helpers, the others run alone.
// - Calls between parallel regions: helpers spin for about 50 us after a call and then sleep. The other
//   side's threads should not spin longer (OMP_WAIT_POLICY=passive): while they do, they hold the processors
//   that the helpers want. A call never waits for a helper that has not begun, so it costs speed at most.
//
// After fork() a context works in the child, which starts helper threads of its own, whatever threads of the
// parent did at that moment. Streams stay behind (see above).
//
// Of a CUDA device (docs/cuda.md): operators are launched on cuda_stream and the call returns; errors of the
// kernels are CUDA's, met where the stream is synchronised. threads, cpus, streaming and the variables of the
// environment are for the CPU and mean nothing. Why there is no such device is the error of every plan(). The
// workspace of the one-call forms is device memory: a call that needs more than there is cannot be captured,
// a graph that was captured with it needs the context alive, and the destructor frees it with cudaFree, which
// waits. On cudaStreamPerThread the one-call forms are for one thread. After fork() the child cannot use it
// (kUnavailable): CUDA stays with the parent.
class KVFERRY_EXPORT Context {
 public:
  explicit Context(ContextOptions options = {});

  const ContextOptions& options() const noexcept;
  int threads() const noexcept;  // resolved, >= 1

  internal::ContextState& state() const noexcept { return *state_; }

 private:
  std::shared_ptr<internal::ContextState> state_;
};

}  // namespace kvferry
