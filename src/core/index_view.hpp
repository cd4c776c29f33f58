// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvferry/tensor.hpp"

namespace kvferry::internal {

// The bytes from one index of `axis` to the next; 0 where there is no next one, since that stride is
// arbitrary.
inline std::int64_t step_bytes(const TensorView& view, int axis) {
  return view.dim(axis) > 1 ? view.stride(axis) * size_of(view.dtype) : 0;
}

inline std::int64_t offset_bytes(const TensorView& view) {
  return view.offset * size_of(view.dtype);
}

inline std::int32_t load_int32(const std::byte* p) noexcept {
  std::int32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store_int32(std::byte* p, std::int32_t value) noexcept {
  std::memcpy(p, &value, sizeof value);
}

// One row of an index tensor, for loops: what IndexView looks up for each entry stands in registers.
struct IndexRow {
  const std::byte* data;
  std::int64_t step;
  bool wide;

  std::int64_t at(std::int64_t j) const noexcept {
    const std::byte* p = data + j * step;
    if (!wide) return load_int32(p);
    std::int64_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  // REQUIRES !wide
  std::int32_t at32(std::int64_t j) const noexcept { return load_int32(data + j * step); }
};

// An index tensor of rank 0 to 2, int32 or int64 of any stride and alignment, without its pointer.
struct IndexView {
  std::int64_t base = 0;  // bytes
  std::int64_t step0 = 0;
  std::int64_t step1 = 0;
  bool wide = false;

  IndexView() = default;
  explicit IndexView(const TensorView& view)
      : base(offset_bytes(view)),
        step0(view.rank > 0 ? step_bytes(view, 0) : 0),
        step1(view.rank > 1 ? step_bytes(view, 1) : 0),
        wide(size_of(view.dtype) == 8) {}

  std::int64_t at(const void* data, std::int64_t i, std::int64_t j = 0) const noexcept {
    return row(data, i).at(j);
  }
  IndexRow row(const void* data, std::int64_t i) const noexcept {
    return {static_cast<const std::byte*>(data) + base + i * step0, step1, wide};
  }
  // REQUIRES !wide
  void put(void* data, std::int32_t value, std::int64_t i, std::int64_t j = 0) const noexcept {
    store_int32(static_cast<std::byte*>(data) + base + i * step0 + j * step1, value);
  }
};

}  // namespace kvferry::internal
