// SPDX-License-Identifier: Apache-2.0
//
// What the GPU benchmark measures: problems, made from a line of text, and the variants that solve them on
// the same memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/spec.hpp"
#include "kvferry/context.hpp"
#include "kvferry/status.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry::bench::gpu {

// CUDA itself failed.
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// The library says that it does not do this (yet), or not here.
class Unavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void require(cudaError_t error, const char* what);
void require(const Status& status);  // throws Unavailable, or std::runtime_error for what is our mistake

// Bytes of the device, or pinned bytes of the host.
class Buffer {
 public:
  enum class Kind { kDevice, kPinned };
  Buffer() = default;
  Buffer(Kind kind, std::int64_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::int64_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Kind kind_ = Kind::kDevice;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

inline Buffer on_device(std::int64_t bytes) {
  return Buffer(Buffer::Kind::kDevice, bytes);
}
template <class T>
Buffer on_device(const std::vector<T>& values) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  Buffer buffer = on_device(bytes);
  if (bytes > 0)
    require(cudaMemcpy(buffer.data(), values.data(), values.size() * sizeof(T), cudaMemcpyDefault),
            "cudaMemcpy");
  return buffer;
}
std::vector<std::byte> download(const std::byte* from, std::int64_t bytes);

// Pinned random bytes that all problems read; where problems have a cache on the host, it is this.
const Buffer& host_pool();
constexpr std::int64_t kPoolBytes = std::int64_t{512} << 20;

// The GPU's share of a problem: its stream and a context on it.
struct Gpu {
  cudaStream_t stream = nullptr;
  Context context() const;
};

inline TensorView on(DeviceType where, TensorView view) {
  view.device = {where, 0};
  return view;
}

struct Variant {
  std::string name;
  std::function<void()> call;
  std::int64_t bytes = 0;  // payload of a call, counted once
};

struct Problem {
  Problem() = default;
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;
  virtual ~Problem() = default;

  std::int64_t bytes = 0;         // payload of a call of the first variant, counted once
  std::int64_t missed_bytes = 0;  // of it, what comes over the link
  bool cold = true;               // nothing of it is in the L2 cache when a sample begins
  int calls = 1;                  // of one sample. More: small calls, whose cost for the host is measured too
  std::vector<Variant> variants;  // the first is ours
  // Runs the first variant. Empty, or what is wrong with its result.
  virtual std::string verify() = 0;
};

// Throws SpecError, CudaError, Unavailable.
std::unique_ptr<Problem> make_problem(const Spec& spec, const Gpu& gpu);
std::unique_ptr<Problem> make_paged_problem(const Spec& spec, const Gpu& gpu);
std::unique_ptr<Problem> make_copies_problem(const Spec& spec, const Gpu& gpu);
std::unique_ptr<Problem> make_swap_problem(const Spec& spec, const Gpu& gpu);
std::unique_ptr<Problem> make_selection_problem(const Spec& spec, const Gpu& gpu);

}  // namespace kvferry::bench::gpu
