// SPDX-License-Identifier: Apache-2.0
#include "core/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace kvferry::internal {
namespace {

constexpr std::int64_t kNzUnit = 32;

std::int64_t pieces(const Nest& nest) {
  std::int64_t count = 1;
  for (int i = 0; i < nest.loop_count; ++i) count *= nest.loops[static_cast<std::size_t>(i)].count;
  return count;
}

MoveKind classify(const TokenMove& move) {
  if (move.nests.size() != 1) return MoveKind::kNested;
  const Nest& nest = move.nests.front();
  // Both sides: a slot stride that equals the token's size by coincidence, while the inner axes are permuted
  // or padded, must not pass for a dense run.
  if (move.src_token_step == nest.piece && move.dst_token_step == nest.piece) {
    return nest.loop_count == 0 ? MoveKind::kDense : MoveKind::kPlanes;
  }
  if (nest.loop_count == 0) return MoveKind::kRows;
  if (nest.loop_count == 1 && nest.piece == kNzUnit) {
    const Axis& unit = nest.loops[0];
    const bool gathers = move.src_token_step == kNzUnit && unit.dst_step == kNzUnit;
    const bool scatters = move.dst_token_step == kNzUnit && unit.src_step == kNzUnit;
    if (gathers || scatters) return MoveKind::kTranspose;
  }
  return MoveKind::kNested;
}

}  // namespace

const char* to_string(MoveKind kind) noexcept {
  switch (kind) {
    case MoveKind::kDense:
      return "dense";
    case MoveKind::kPlanes:
      return "planes";
    case MoveKind::kTranspose:
      return "transpose";
    case MoveKind::kRows:
      return "rows";
    case MoveKind::kNested:
      return "nested";
  }
  return "unknown";
}

Nest make_nest(std::span<const Axis> axes, std::int64_t element_bytes, std::int64_t src_base,
               std::int64_t dst_base) {
  std::array<Axis, Nest::kMaxLoops> loops{};
  int n = 0;
  // Largest destination step outermost: writes go forward, and permuted axes meet their neighbours for
  // merging.
  const auto outside = [](const Axis& a, const Axis& b) {
    return std::abs(a.dst_step) != std::abs(b.dst_step) ? std::abs(a.dst_step) > std::abs(b.dst_step)
                                                        : std::abs(a.src_step) > std::abs(b.src_step);
  };
  for (const Axis& axis : axes) {
    if (axis.count == 1) continue;
    const Axis bytes = {axis.count, axis.src_step * element_bytes, axis.dst_step * element_bytes};
    auto i = static_cast<std::size_t>(n++);
    for (; i > 0 && outside(bytes, loops[i - 1]); --i) loops[i] = loops[i - 1];
    loops[i] = bytes;
  }
  Nest nest;
  nest.src_base = src_base;
  nest.dst_base = dst_base;
  nest.piece = element_bytes;
  while (n > 0) {
    const Axis& inner = loops[static_cast<std::size_t>(n - 1)];
    if (inner.src_step != nest.piece || inner.dst_step != nest.piece) break;
    nest.piece *= inner.count;
    --n;
  }
  for (int i = 0; i < n; ++i) {
    const Axis& axis = loops[static_cast<std::size_t>(i)];
    if (nest.loop_count > 0) {
      Axis& outer = nest.loops[static_cast<std::size_t>(nest.loop_count - 1)];
      if (outer.src_step == axis.count * axis.src_step && outer.dst_step == axis.count * axis.dst_step) {
        outer = {outer.count * axis.count, axis.src_step, axis.dst_step};
        continue;
      }
    }
    nest.loops[static_cast<std::size_t>(nest.loop_count++)] = axis;
  }
  return nest;
}

TokenMove make_token_move(std::vector<Nest> nests, std::int64_t src_token_step, std::int64_t dst_token_step) {
  TokenMove move;
  move.nests = std::move(nests);
  move.src_token_step = src_token_step;
  move.dst_token_step = dst_token_step;
  for (const Nest& nest : move.nests) move.token_bytes += nest.piece * pieces(nest);
  move.kind = classify(move);
  return move;
}

std::string describe(const Nest& nest) {
  std::string text;
  for (int i = 0; i < nest.loop_count; ++i)
    text += fmt::format("{} x ", nest.loops[static_cast<std::size_t>(i)].count);
  return text + fmt::format("{} B", nest.piece);
}

std::string describe(const TokenMove& move) {
  std::string text = fmt::format("{}: ", to_string(move.kind));
  for (const Nest& nest : move.nests) text += (&nest == &move.nests.front() ? "" : " + ") + describe(nest);
  return text + " a token";
}

}  // namespace kvferry::internal
