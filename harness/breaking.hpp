// SPDX-License-Identifier: Apache-2.0
//
// Ways to damage a valid TensorView, for the cases that plan() must refuse. Each sets what the message must
// name.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kvferry/tensor.hpp"

namespace kvferry::harness {

// Adds n to a dimension. The storage becomes unknown, so that the refusal is for the shape.
inline void grow(TensorView& view, int axis, std::int64_t n, const char* name,
                 std::vector<std::string>& words) {
  const std::int64_t old = view.dim(axis);
  view.shape[static_cast<std::size_t>(axis)] = old + n;
  view.storage_elements = -1;
  words = {name, fmt::format("dimension {}", axis), std::to_string(old + n), std::to_string(old)};
}

// One less, for views whose storage must stay known.
inline void shrink_kept_storage(TensorView& view, int axis, const char* name,
                                std::vector<std::string>& words) {
  const std::int64_t storage = view.storage_elements;
  grow(view, axis, -1, name, words);
  view.storage_elements = storage;
}

// One dimension of size 1 more behind the last, or the first one less.
inline void change_rank(TensorView& view, int by, const char* name, std::vector<std::string>& words) {
  const int old = view.rank;
  if (by > 0) {
    view.shape[static_cast<std::size_t>(old)] = 1;
    view.strides[static_cast<std::size_t>(old)] = 1;
  } else {
    for (std::size_t i = 1; i < static_cast<std::size_t>(old); ++i) {
      view.shape[i - 1] = view.shape[i];
      view.strides[i - 1] = view.strides[i];
    }
  }
  view.rank = old + by;
  words = {name, "rank", std::to_string(old + by), std::to_string(old)};
}

inline void change_dtype(TensorView& view, DType dtype, const char* name, std::vector<std::string>& words) {
  view.dtype = dtype;
  view.storage_elements = -1;
  words = {name, "dtype", to_string(dtype)};
}

inline void drop(TensorView& view, const char* name, std::vector<std::string>& words) {
  view.data = nullptr;
  words = {name, "null"};
}

}  // namespace kvferry::harness
