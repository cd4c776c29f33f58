// SPDX-License-Identifier: Apache-2.0
//
// A paged cache against contiguous rows: the layout part of the gather and the scatter.
#pragma once

#include <cstdint>
#include <vector>

#include "core/checks.hpp"
#include "core/layout.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry::internal {

enum class PagedLayout : std::uint8_t {
  kNbshd,  // cache [NB, bs, H, D]
  kNhsd,   // cache [NB, H, bs, D]
  kNz4,    // cache [NB, H*D/e, bs, e]
  kNz5,    // cache [NB, H, D/e, bs, e]
};

constexpr int slot_axis(PagedLayout layout) {
  return layout == PagedLayout::kNbshd ? 1 : layout == PagedLayout::kNz5 ? 3 : 2;
}
constexpr int cache_rank(PagedLayout layout) {
  return layout == PagedLayout::kNz5 ? 5 : 4;
}

// One of K and V, in bytes.
struct PagedSide {
  bool active = false;  // false: absent or empty, nothing else is set
  std::int64_t blocks = 0;
  std::int64_t block_size = 0;
  std::int64_t cache_base = 0;
  std::int64_t block_step = 0;
  std::int64_t slot_step = 0;
  std::int64_t row_base = 0;
  std::int64_t row_step = 0;
  TokenMove move;  // from cache to rows (gather) or from rows to cache (scatter)
};

// The inner dims of `rows` ([N, H, D], or [N, H*D] with kNz4) fit those of `cache`; NZ units are 32 bytes.
void check_inner_dims(Checker& check, PagedLayout layout, const char* cache_name, const TensorView& cache,
                      const char* rows_name, const TensorView& rows);

enum class Direction : std::uint8_t { kCacheToRows, kRowsToCache };

// REQUIRES check_inner_dims passed and `rows` not empty.
PagedSide make_paged_side(PagedLayout layout, const TensorView& cache, const TensorView& rows,
                          Direction direction);

}  // namespace kvferry::internal
