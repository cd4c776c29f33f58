// SPDX-License-Identifier: Apache-2.0
#include "ops/paged_layout.hpp"

#include <algorithm>

#include "core/checked_math.hpp"
#include "core/index_view.hpp"

namespace kvferry::internal {
namespace {

// Collects nests with steps in elements of cache and rows, whichever of them is the source.
class NestBuilder {
 public:
  NestBuilder(std::int64_t element_bytes, Direction direction)
      : bytes_(element_bytes), direction_(direction) {}

  struct CacheRowAxis {
    std::int64_t count, cache_stride, row_stride;
  };

  void add(std::initializer_list<CacheRowAxis> axes, std::int64_t cache_offset = 0,
           std::int64_t row_offset = 0) {
    std::array<Axis, Nest::kMaxLoops> turned{};
    std::transform(axes.begin(), axes.end(), turned.begin(), [this](const CacheRowAxis& a) {
      return direction_ == Direction::kCacheToRows ? Axis{a.count, a.cache_stride, a.row_stride}
                                                   : Axis{a.count, a.row_stride, a.cache_stride};
    });
    const auto [src, dst] = direction_ == Direction::kCacheToRows ? std::pair(cache_offset, row_offset)
                                                                  : std::pair(row_offset, cache_offset);
    nests_.push_back(make_nest(std::span(turned).first(axes.size()), bytes_, src * bytes_, dst * bytes_));
  }

  std::vector<Nest> take() { return std::move(nests_); }

 private:
  std::int64_t bytes_;
  Direction direction_;
  std::vector<Nest> nests_;
};

// Stride in elements, 0 for an axis of length 1.
std::int64_t step(const TensorView& view, int axis) {
  return view.dim(axis) > 1 ? view.stride(axis) : 0;
}

// Heads of D elements whose rows do not join up, against units of e elements that do not divide D: each head
// is the rest of a unit, whole units, and the start of the next.
void add_misaligned_heads(NestBuilder& nests, const TensorView& cache, const TensorView& rows) {
  const std::int64_t e = cache.dim(3), heads = rows.dim(1), d = rows.dim(2);
  const std::int64_t unit = step(cache, 1), lane = step(cache, 3), head = step(rows, 1),
                     element = step(rows, 2);
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t at = 0; at < d;) {
      const std::int64_t flat = h * d + at, cache_offset = flat / e * unit + flat % e * lane;
      const std::int64_t row_offset = h * head + at * element;
      if (flat % e == 0 && d - at >= e) {
        const std::int64_t units = (d - at) / e;
        nests.add({{units, unit, e * element}, {e, lane, element}}, cache_offset, row_offset);
        at += units * e;
      } else {
        const std::int64_t part = std::min(e - flat % e, d - at);
        nests.add({{part, lane, element}}, cache_offset, row_offset);
        at += part;
      }
    }
  }
}

void add_nz4(NestBuilder& nests, const TensorView& cache, const TensorView& rows) {
  const std::int64_t units = cache.dim(1), e = cache.dim(3), unit = step(cache, 1), lane = step(cache, 3);
  const int last = rows.rank - 1;
  const std::int64_t element = step(rows, last), d = rows.dim(last);
  const std::int64_t heads = rows.rank == 3 ? rows.dim(1) : 1, head = rows.rank == 3 ? step(rows, 1) : 0;
  if (heads == 1 || d == 1 || head == d * element) {
    const std::int64_t flat = d == 1 ? head : element;
    nests.add({{units, unit, e * flat}, {e, lane, flat}});
  } else if (d % e == 0) {
    nests.add({{heads, d / e * unit, head}, {d / e, unit, e * element}, {e, lane, element}});
  } else {
    add_misaligned_heads(nests, cache, rows);
  }
}

}  // namespace

void check_inner_dims(Checker& check, PagedLayout layout, const char* cache_name, const TensorView& cache,
                      const char* rows_name, const TensorView& rows) {
  if (!check.ok()) return;
  switch (layout) {
    case PagedLayout::kNbshd:
    case PagedLayout::kNhsd: {
      const int head_axis = layout == PagedLayout::kNbshd ? 2 : 1;
      check.dim(rows_name, rows, 1, cache.dim(head_axis),
                fmt::format("{} dimension {}", cache_name, head_axis));
      check.dim(rows_name, rows, 2, cache.dim(3), fmt::format("{} dimension 3", cache_name));
      return;
    }
    case PagedLayout::kNz4: {
      check.dim(cache_name, cache, 3, 32 / size_of(cache.dtype), "32 bytes: FRACTAL_NZ");
      Checked row(1);
      for (int axis = 1; axis < rows.rank; ++axis) row = row * rows.dim(axis);
      const Checked cells = Checked(cache.dim(1)) * cache.dim(3);
      check.that(!row.overflow && !cells.overflow && row.value == cells.value,
                 "{}: {} elements a token, expected {} ({} dimension 1 * dimension 3)", rows_name, row.value,
                 cells.value, cache_name);
      return;
    }
    case PagedLayout::kNz5: {
      check.dim(cache_name, cache, 4, 32 / size_of(cache.dtype), "32 bytes: FRACTAL_NZ");
      check.dim(rows_name, rows, 1, cache.dim(1), fmt::format("{} dimension 1", cache_name));
      const Checked d = Checked(cache.dim(2)) * cache.dim(4);
      check.that(!d.overflow && rows.dim(2) == d.value,
                 "{}: dimension 2 is {}, expected {} ({} dimension 2 * dimension 4)", rows_name, rows.dim(2),
                 d.value, cache_name);
      return;
    }
  }
}

PagedSide make_paged_side(PagedLayout layout, const TensorView& cache, const TensorView& rows,
                          Direction direction) {
  const std::int64_t element_bytes = size_of(cache.dtype);
  NestBuilder nests(element_bytes, direction);
  switch (layout) {
    case PagedLayout::kNbshd:
    case PagedLayout::kNhsd: {
      const int head_axis = layout == PagedLayout::kNbshd ? 2 : 1;
      nests.add({{rows.dim(1), step(cache, head_axis), step(rows, 1)},
                 {rows.dim(2), step(cache, 3), step(rows, 2)}});
      break;
    }
    case PagedLayout::kNz4:
      add_nz4(nests, cache, rows);
      break;
    case PagedLayout::kNz5: {
      const std::int64_t e = cache.dim(4);
      nests.add({{cache.dim(1), step(cache, 1), step(rows, 1)},
                 {cache.dim(2), step(cache, 2), e * step(rows, 2)},
                 {e, step(cache, 4), step(rows, 2)}});
      break;
    }
  }
  PagedSide side;
  side.active = true;
  side.blocks = cache.dim(0);
  side.block_size = cache.dim(slot_axis(layout));
  side.cache_base = offset_bytes(cache);
  side.block_step = step_bytes(cache, 0);
  side.slot_step = step_bytes(cache, slot_axis(layout));
  side.row_base = offset_bytes(rows);
  side.row_step = step_bytes(rows, 0);
  side.move = direction == Direction::kCacheToRows
                  ? make_token_move(nests.take(), side.slot_step, side.row_step)
                  : make_token_move(nests.take(), side.row_step, side.slot_step);
  return side;
}

}  // namespace kvferry::internal
