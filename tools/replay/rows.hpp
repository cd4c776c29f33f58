// SPDX-License-Identifier: Apache-2.0
//
// Rows of KV in memory whose contents are known: written and checked by all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvferry/context.hpp"
#include "tools/replay/content.hpp"

namespace kvferry::replay {

// Rows of one owner at consecutive addresses and positions.
struct RowSpan {
  std::byte* at;
  std::int64_t hash_id;  // of the full prompt block that they lie in, or -1: of the request alone
  std::int32_t request;  // whose rows they are or, for blocks, who made them move
  std::int32_t layer;
  std::int64_t first;  // position
  std::int64_t rows;
  Part part;

  std::uint64_t stream() const {
    return stream_of(hash_id >= 0 ? block_identity(hash_id) : request_identity(request), layer, part);
  }
};

// A row that is not what it must be.
struct BadRow {
  std::int64_t hash_id = -1;
  std::int32_t request = 0;
  std::int32_t layer = 0;
  Part part = Part::kKey;
  std::int64_t position = 0;
  std::int64_t byte = 0;  // the first one that differs
  std::uint8_t expected = 0;
  std::uint8_t seen = 0;
};

class RowChecker {
 public:
  RowChecker(const Context& context, std::int64_t key_row_bytes, std::int64_t value_row_bytes)
      : context_(context), row_bytes_{key_row_bytes, value_row_bytes} {}

  std::int64_t row_bytes(Part part) const { return row_bytes_[part == Part::kKey ? 0 : 1]; }

  void fill(std::span<const RowSpan> spans) const;

  struct Outcome {
    std::int64_t bytes = 0;
    std::int64_t bad_rows = 0;
    std::optional<BadRow> first;  // by layer, position, part
  };
  Outcome check(std::span<const RowSpan> spans) const;

 private:
  template <class Body>
  std::int64_t for_each(std::span<const RowSpan> spans, Body body) const;

  const Context& context_;
  std::int64_t row_bytes_[2];
};

}  // namespace kvferry::replay
