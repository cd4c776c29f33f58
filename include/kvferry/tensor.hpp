// SPDX-License-Identifier: Apache-2.0
//
// TensorView: memory that the caller owns, seen as an array. It never owns, copies or converts anything.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "kvferry/status.hpp"

namespace kvferry {

enum class DType : std::uint8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kInt8,
  kUInt8,
  kInt16,
  kUInt16,
  kInt32,
  kUInt32,
  kInt64,
  kUInt64,
  kHiFloat8,
  kFloat8E5M2,
  kFloat8E4M3FN,
};

KVFERRY_EXPORT std::int64_t size_of(DType dtype) noexcept;   // bytes of one element
KVFERRY_EXPORT const char* to_string(DType dtype) noexcept;  // "float16", "float8_e4m3fn", ...

// The numbers of DLPack.
enum class DeviceType : std::uint8_t {
  kCpu = 1,
  kCuda = 2,
  kCudaHost = 3,      // host memory that is pinned and mapped into CUDA devices
  kCudaManaged = 13,  // memory that CUDA moves between host and devices
};

struct Device {
  DeviceType type = DeviceType::kCpu;
  std::int32_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

KVFERRY_EXPORT std::string to_string(Device device);  // "cpu:0", "cuda:1", "cuda_host:0", "cuda_managed:0"

inline constexpr int kMaxRank = 8;

// Element (i0, i1, ...) lies at  data + (offset + i0 * strides[0] + i1 * strides[1] + ...) * size_of(dtype).
//
// Strides and offset count elements, as in PyTorch. Any strides are accepted: permuted axes, padding, zero on
// an axis of an input, negative. The stride of an axis of length 1 is ignored. No alignment is required, not
// even that of the element type.
struct TensorView {
  void* data = nullptr;  // operators never write through the views that they document as inputs
  DType dtype = DType::kUInt8;
  Device device;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};
  std::int64_t offset = 0;
  // Elements of the allocation that starts at `data`, or -1 for unknown. When known, plan() refuses a view
  // that reaches outside it.
  std::int64_t storage_elements = -1;

  std::int64_t dim(int axis) const noexcept { return shape[static_cast<std::size_t>(axis)]; }
  std::int64_t stride(int axis) const noexcept { return strides[static_cast<std::size_t>(axis)]; }
};

// A dense row-major view. A rank above kMaxRank gives a view that every operator refuses.
KVFERRY_EXPORT TensorView contiguous(void* data, DType dtype, std::span<const std::int64_t> shape) noexcept;
inline TensorView contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape) noexcept {
  return contiguous(data, dtype, std::span<const std::int64_t>(shape.begin(), shape.size()));
}
// The same for memory that is only read: the operators' inputs.
inline TensorView contiguous(const void* data, DType dtype,
                             std::initializer_list<std::int64_t> shape) noexcept {
  return contiguous(const_cast<void*>(data), dtype, shape);
}

// A view with the given strides.
KVFERRY_EXPORT TensorView strided(void* data, DType dtype, std::span<const std::int64_t> shape,
                                  std::span<const std::int64_t> strides, std::int64_t offset = 0) noexcept;
inline TensorView strided(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                          std::initializer_list<std::int64_t> strides, std::int64_t offset = 0) noexcept {
  return strided(data, dtype, std::span<const std::int64_t>(shape.begin(), shape.size()),
                 std::span<const std::int64_t>(strides.begin(), strides.size()), offset);
}

// "float16 [4, 16, 8, 128] strides [16384, 1024, 128, 1]"; strides are left out when dense.
KVFERRY_EXPORT std::string to_string(const TensorView& view);

// True if the elements are dense and row-major (axes of length 1 ignored).
KVFERRY_EXPORT bool is_contiguous(const TensorView& view) noexcept;

}  // namespace kvferry
