// SPDX-License-Identifier: Apache-2.0
//
// Array: what an oracle knows of a tensor. Kept apart from TensorView so that oracle and library share
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace kvferry::harness {

inline std::size_t to_size(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

struct Array {
  std::byte* data = nullptr;
  std::int64_t item = 1;  // bytes of an element
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // elements
  std::int64_t offset = 0;            // elements

  std::int64_t dim(std::size_t axis) const { return shape[axis]; }
  std::int64_t elements() const {
    std::int64_t product = 1;
    for (const std::int64_t n : shape) product *= n;
    return product;
  }
  // The stride of an axis of length 1 is never used: its only index is 0.
  std::byte* at(std::initializer_list<std::int64_t> index) const {
    std::int64_t element = offset;
    std::size_t axis = 0;
    for (const std::int64_t i : index) {
      if (i != 0) element += i * strides[axis];
      ++axis;
    }
    return data + element * item;
  }
};

inline void copy_element(std::byte* to, const std::byte* from, std::int64_t item) {
  std::memcpy(to, from, to_size(item));
}
inline void zero_element(std::byte* to, std::int64_t item) {
  std::memset(to, 0, to_size(item));
}

// Index tensors: int32 or int64 by `item`.
inline std::int64_t load_index(const Array& array, std::initializer_list<std::int64_t> index) {
  if (array.item == 4) {
    std::int32_t value = 0;
    std::memcpy(&value, array.at(index), sizeof value);
    return value;
  }
  std::int64_t value = 0;
  std::memcpy(&value, array.at(index), sizeof value);
  return value;
}
inline void store_index(const Array& array, std::initializer_list<std::int64_t> index, std::int64_t value) {
  if (array.item == 4) {
    const auto narrow = static_cast<std::int32_t>(value);
    std::memcpy(array.at(index), &narrow, sizeof narrow);
  } else {
    std::memcpy(array.at(index), &value, sizeof value);
  }
}

}  // namespace kvferry::harness
