// SPDX-License-Identifier: Apache-2.0
//
// The memory that kernels may touch: buffers of the device, and host memory that is mapped into it. Whatever
// a launch touches outside of these is a finding, host memory that happens to be readable included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/cuda/kernel.hpp"
#include "harness/memory.hpp"

namespace kvferry::emulation {

struct Region {
  std::uintptr_t begin, end;
  bool contested;
};

// While it lives, the range belongs to the device.
class RegisteredRange {
 public:
  // `contested`: the problem lets threads write the same bytes (repeated slots), which are unspecified then:
  // only the bounds are checked.
  RegisteredRange(const void* data, std::size_t bytes, bool contested = false);
  ~RegisteredRange();
  RegisteredRange(const RegisteredRange&) = delete;
  RegisteredRange& operator=(const RegisteredRange&) = delete;

 private:
  std::uintptr_t begin_;
};

// Those of now, by address.
std::vector<Region> registered_regions();

// Memory with guards of its own, registered; starts `skew` bytes behind a multiple of 64.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t count, std::int64_t skew = 0)
      : count_(count),
        memory_(static_cast<std::int64_t>(count * sizeof(T)), harness::Placement::kGuarded, skew),
        range_(memory_.data(), count * sizeof(T)) {}
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    for (std::size_t i = 0; i < count_; ++i) data()[i] = values[i];
  }

  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t i) const { return data()[i]; }
  bool intact() const { return !memory_.damage(); }
  internal::cuda::DevicePtr<T> device() const { return internal::cuda::DevicePtr<T>::at(data()); }
  internal::cuda::MappedPtr<T> mapped() const { return internal::cuda::MappedPtr<T>::at(data()); }

 private:
  std::size_t count_;
  harness::Memory memory_;
  RegisteredRange range_;
};

}  // namespace kvferry::emulation
