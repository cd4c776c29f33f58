// SPDX-License-Identifier: Apache-2.0
//
// Layout: how a shape lies in its storage, as text that fits into a case. Words joined by '+'; empty: dense.
//   order0213  memory order of the axes, outermost first
//   pad2:8     8 unused elements behind every run over axis 2
//   step3      distance of neighbours on the innermost axis
//   neg0       axis 0 runs backwards
//   off5       the view starts 5 elements into the storage
//   set1:16    stride of axis 1, whatever the other words say (0 and overlap are possible)
//   one        axes of length 1 get absurd strides
//   tail7      7 unused elements at the end
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/random.hpp"

namespace kvferry::harness {

struct Layout {
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;
  std::int64_t storage_elements = 0;
};

// Throws CaseError for words that do not fit the shape.
Layout make_layout(std::span<const std::int64_t> shape, std::string_view text);

// Words without overlap for a tensor of this rank.
std::string random_layout(Random& random, int rank);

}  // namespace kvferry::harness
