// SPDX-License-Identifier: Apache-2.0
//
// What operators that write by index have in common: repeated indices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::internal {

// Entry `entry` of an index tensor names `index` (a slot, a block).
struct IndexUse {
  std::int64_t index;
  std::int64_t entry;
};

// By index and then entry: repeats are neighbours, the first to name an index comes first.
inline void sort_uses(std::span<IndexUse> uses) {
  std::sort(uses.begin(), uses.end(), [](const IndexUse& a, const IndexUse& b) {
    return a.index != b.index ? a.index < b.index : a.entry < b.entry;
  });
}

// The repeat with the lowest entry among sorted uses, or null. The use before it names the same index.
inline const IndexUse* first_repeat(std::span<const IndexUse> uses) {
  const IndexUse* first = nullptr;
  for (std::size_t i = 1; i < uses.size(); ++i) {
    if (uses[i].index == uses[i - 1].index && (first == nullptr || uses[i].entry < first->entry))
      first = &uses[i];
  }
  return first;
}

}  // namespace kvferry::internal
