// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/key_value.hpp"

#include <array>
#include <utility>

namespace kvferry::replay {
namespace {

constexpr std::array kBothParts{Part::kKey, Part::kValue};

}  // namespace

std::span<const Part> parts_of(const Shard& shard) {
  return std::span(kBothParts).first(shard.value_row_bytes > 0 ? 2 : 1);
}

Result<KeyValue> KeyValue::make(const Shard& shard, std::int64_t rows, std::int64_t touched_rows,
                                const Context& context) {
  KeyValue memory;
  for (const Part part : parts_of(shard)) {
    Result<HostBuffer> buffer = HostBuffer::make(rows * row_bytes_of(shard, part));
    if (!buffer.ok()) return buffer.status();
    buffer->touch(touched_rows * row_bytes_of(shard, part), context);
    (part == Part::kKey ? memory.key : memory.value) = std::move(buffer).value();
  }
  return memory;
}

}  // namespace kvferry::replay
