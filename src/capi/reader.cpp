// SPDX-License-Identifier: Apache-2.0
#include "capi/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace kvferry::capi {
namespace {

// Beyond any struct that will ever be: whoever says so did not initialise it.
constexpr std::size_t kMaxStructBytes = 4096;

struct DTypeNumbers {
  kvferry_dtype_code code;
  int bits;
  DType dtype;
};
constexpr DTypeNumbers kDTypes[] = {
    {KVFERRY_DTYPE_FLOAT, 16, DType::kFloat16},
    {KVFERRY_DTYPE_BFLOAT, 16, DType::kBFloat16},
    {KVFERRY_DTYPE_FLOAT, 32, DType::kFloat32},
    {KVFERRY_DTYPE_INT, 8, DType::kInt8},
    {KVFERRY_DTYPE_UINT, 8, DType::kUInt8},
    {KVFERRY_DTYPE_INT, 16, DType::kInt16},
    {KVFERRY_DTYPE_UINT, 16, DType::kUInt16},
    {KVFERRY_DTYPE_INT, 32, DType::kInt32},
    {KVFERRY_DTYPE_UINT, 32, DType::kUInt32},
    {KVFERRY_DTYPE_INT, 64, DType::kInt64},
    {KVFERRY_DTYPE_UINT, 64, DType::kUInt64},
    {KVFERRY_DTYPE_HIFLOAT8, 8, DType::kHiFloat8},
    {KVFERRY_DTYPE_FLOAT8_E5M2, 8, DType::kFloat8E5M2},
    {KVFERRY_DTYPE_FLOAT8_E4M3FN, 8, DType::kFloat8E4M3FN},
};

std::optional<DType> find_dtype(const kvferry_dtype& dtype) {
  for (const DTypeNumbers& row : kDTypes) {
    if (dtype.code == row.code && dtype.bits == row.bits && dtype.lanes == 1) return row.dtype;
  }
  return {};
}

}  // namespace

void Reader::fail(StatusCode code, std::string_view message) {
  if (ok()) status_ = Status(code, fmt::format("{}: {}", what_, message));
}

void Reader::need(const char* name, const void* pointer) {
  if (pointer == nullptr) fail(StatusCode::kNull, fmt::format("{}: pointer is null", name));
}

std::size_t Reader::known_bytes(const char* name, const void* given, std::size_t known) {
  need(name, given);
  if (!ok()) return 0;
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < kMemberBytes || size > kMaxStructBytes || size % kMemberBytes != 0) {
    fail(StatusCode::kInvalidArgument,
         fmt::format("{}: struct_size is {}, expected {} (KVFERRY_INIT sets it)", name, size, known));
    return 0;
  }
  const auto* bytes = static_cast<const unsigned char*>(given);
  const auto* tail = std::find_if(bytes + std::min(known, size), bytes + size, [](auto b) { return b != 0; });
  if (tail != bytes + size) {
    fail(StatusCode::kInvalidArgument,
         fmt::format("{}: struct_size is {} and byte {} is {}, expected zeroes from byte {} on, which this "
                     "version does not know",
                     name, size, tail - bytes, *tail, known));
    return 0;
  }
  return std::min(known, size);
}

TensorView Reader::tensor(const char* name, const kvferry_tensor* given) {
  if (!ok()) return {};
  if (given == nullptr) {
    fail(StatusCode::kNull, fmt::format("{}: pointer is null, expected a tensor", name));
    return {};
  }
  const kvferry_tensor& t = *given;
  const std::optional<DType> dtype = find_dtype(t.dtype);
  if (!dtype) {
    fail(StatusCode::kInvalidArgument,
         fmt::format("{}: dtype has code {}, {} bits, {} lanes, expected one of kvferry.h", name,
                     t.dtype.code, t.dtype.bits, t.dtype.lanes));
    return {};
  }
  if (t.device.type != KVFERRY_DEVICE_CPU && t.device.type != KVFERRY_DEVICE_CUDA &&
      t.device.type != KVFERRY_DEVICE_CUDA_HOST && t.device.type != KVFERRY_DEVICE_CUDA_MANAGED) {
    fail(StatusCode::kInvalidArgument,
         fmt::format("{}: device type is {}, expected 1 (CPU), 2 (CUDA), 3 (CUDA host) or 13 (CUDA managed)",
                     name, t.device.type));
    return {};
  }
  if (t.ndim < 0 || t.ndim > kMaxRank) {
    fail(StatusCode::kInvalidArgument,
         fmt::format("{}: ndim is {}, expected 0 to {}", name, t.ndim, kMaxRank));
    return {};
  }
  if (t.ndim > 0 && t.shape == nullptr) {
    fail(StatusCode::kNull, fmt::format("{}: shape is null, expected {} lengths", name, t.ndim));
    return {};
  }
  // The pointers of run() are to `data`, so the offset cannot go there.
  const auto size = static_cast<std::uint64_t>(size_of(*dtype));
  if (t.byte_offset % size != 0 ||
      t.byte_offset > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    fail(StatusCode::kInvalidArgument,
         fmt::format("{}: byte_offset is {}, expected a multiple of {} ({}) below 2^63", name, t.byte_offset,
                     size, to_string(*dtype)));
    return {};
  }
  const auto rank = static_cast<std::size_t>(t.ndim);
  const std::span shape(t.shape, rank);
  const auto offset = static_cast<std::int64_t>(t.byte_offset / size);
  TensorView view = contiguous(t.data, *dtype, shape);
  if (t.strides != nullptr) std::copy_n(t.strides, rank, view.strides.begin());
  view.offset = offset;
  view.device = {static_cast<DeviceType>(t.device.type), t.device.id};
  return view;
}

std::optional<TensorView> Reader::optional(const char* name, const kvferry_tensor* given) {
  if (given == nullptr) return {};
  return tensor(name, given);
}

std::span<const TensorView> Reader::list(const char* name, const kvferry_tensor* given, std::size_t count) {
  if (count > 0) need(name, given);
  if (!ok()) return {};
  std::vector<TensorView>& views = lists_.emplace_back();
  for (std::size_t i = 0; i < count && ok(); ++i) views.push_back(tensor(name, given + i));
  return views;
}

std::int64_t Reader::choice(const char* name, std::int64_t value, std::int64_t last) {
  if (value >= 0 && value <= last) return value;
  fail(StatusCode::kInvalidArgument, fmt::format("{}: {}, expected 0 to {}", name, value, last));
  return 0;
}

}  // namespace kvferry::capi
