// SPDX-License-Identifier: Apache-2.0
//
// KeyValue: memory for rows of K and of V: a layer's pool, or the contiguous side of an operator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvferry/context.hpp"
#include "kvferry/memory.hpp"
#include "kvferry/status.hpp"
#include "tools/replay/content.hpp"
#include "tools/replay/models.hpp"

namespace kvferry::replay {

// What a shard has: K and V, or one latent row that counts as K.
std::span<const Part> parts_of(const Shard& shard);
inline std::int64_t row_bytes_of(const Shard& shard, Part part) {
  return part == Part::kKey ? shard.key_row_bytes : shard.value_row_bytes;
}

struct KeyValue {
  HostBuffer key;
  HostBuffer value;  // empty without V

  // Touches the first rows.
  static Result<KeyValue> make(const Shard& shard, std::int64_t rows, std::int64_t touched_rows,
                               const Context& context);
  std::byte* data(Part part) const { return part == Part::kKey ? key.data() : value.data(); }
};

}  // namespace kvferry::replay
