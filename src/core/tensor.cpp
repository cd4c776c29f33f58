// SPDX-License-Identifier: Apache-2.0
#include "kvferry/tensor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace kvferry {
namespace {

struct DTypeInfo {
  const char* name;
  std::int64_t size;
};

DTypeInfo info(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat16:
      return {"float16", 2};
    case DType::kBFloat16:
      return {"bfloat16", 2};
    case DType::kFloat32:
      return {"float32", 4};
    case DType::kInt8:
      return {"int8", 1};
    case DType::kUInt8:
      return {"uint8", 1};
    case DType::kInt16:
      return {"int16", 2};
    case DType::kUInt16:
      return {"uint16", 2};
    case DType::kInt32:
      return {"int32", 4};
    case DType::kUInt32:
      return {"uint32", 4};
    case DType::kInt64:
      return {"int64", 8};
    case DType::kUInt64:
      return {"uint64", 8};
    case DType::kHiFloat8:
      return {"hifloat8", 1};
    case DType::kFloat8E5M2:
      return {"float8_e5m2", 1};
    case DType::kFloat8E4M3FN:
      return {"float8_e4m3fn", 1};
  }
  return {"unknown", 0};
}

// Wraps instead of overflowing: a view too large for 64 bits is refused by plan(), not here.
std::int64_t wrapping_mul(std::int64_t a, std::int64_t b) noexcept {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

}  // namespace

std::string to_string(Device device) {
  const char* name = "unknown";
  switch (device.type) {
    case DeviceType::kCpu:
      name = "cpu";
      break;
    case DeviceType::kCuda:
      name = "cuda";
      break;
    case DeviceType::kCudaHost:
      name = "cuda_host";
      break;
    case DeviceType::kCudaManaged:
      name = "cuda_managed";
      break;
  }
  return fmt::format("{}:{}", name, device.index);
}

std::int64_t size_of(DType dtype) noexcept {
  return info(dtype).size;
}
const char* to_string(DType dtype) noexcept {
  return info(dtype).name;
}

TensorView contiguous(void* data, DType dtype, std::span<const std::int64_t> shape) noexcept {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(std::min<std::size_t>(shape.size(), kMaxRank + 1));
  if (shape.size() > kMaxRank) return view;
  std::int64_t step = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    view.shape[axis] = shape[axis];
    view.strides[axis] = step;
    step = wrapping_mul(step, std::max<std::int64_t>(shape[axis], 1));
  }
  return view;
}

TensorView strided(void* data, DType dtype, std::span<const std::int64_t> shape,
                   std::span<const std::int64_t> strides, std::int64_t offset) noexcept {
  TensorView view = contiguous(data, dtype, shape);
  view.offset = offset;
  if (strides.size() != shape.size()) view.rank = kMaxRank + 1;
  if (view.rank <= kMaxRank) std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

bool is_contiguous(const TensorView& view) noexcept {
  std::int64_t step = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    if (view.dim(axis) == 0) return true;
    if (view.dim(axis) != 1 && view.stride(axis) != step) return false;
    step = wrapping_mul(step, view.dim(axis));
  }
  return true;
}

std::string to_string(const TensorView& view) {
  if (view.rank < 0 || view.rank > kMaxRank)
    return fmt::format("{} of rank {}", to_string(view.dtype), view.rank);
  const auto rank = static_cast<std::size_t>(view.rank);
  std::string text =
      fmt::format("{} [{}]", to_string(view.dtype), fmt::join(std::span(view.shape).first(rank), ", "));
  if (!is_contiguous(view))
    text += fmt::format(" strides [{}]", fmt::join(std::span(view.strides).first(rank), ", "));
  return text;
}

}  // namespace kvferry
