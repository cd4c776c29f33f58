// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda_implementation.hpp"

#include <fmt/format.h>

#include <limits>

#include "core/checked_math.hpp"

namespace kvferry::internal {
namespace {

constexpr std::int64_t kMostTaskBytes = std::numeric_limits<std::int32_t>::max();

}  // namespace

std::string cuda_cannot_move(const TokenMove& move) {
  if (move.token_bytes > kMostTaskBytes)
    return fmt::format("{} bytes a token, expected at most {}", move.token_bytes, kMostTaskBytes);
  for (const Nest& nest : move.nests) {
    if (nest.loop_count > static_cast<int>(cuda::DeviceNest::kLoops))
      return fmt::format("{} loops around a piece, expected at most {}", nest.loop_count,
                         cuda::DeviceNest::kLoops);
  }
  return {};
}

cuda::DeviceNest cuda_nest(const TokenMove& move, const Nest& nest) {
  cuda::DeviceNest to{};
  to.src_token_step = move.src_token_step;
  to.dst_token_step = move.dst_token_step;
  to.piece = static_cast<std::uint32_t>(nest.piece);
  to.joined = move.kind == MoveKind::kDense || move.kind == MoveKind::kPlanes;
  to.loop_count = static_cast<std::uint32_t>(nest.loop_count);
  for (std::size_t l = 0; l < to.loop_count; ++l) {
    const Axis& loop = nest.loops[l];
    to.loops[l] = {static_cast<std::uint32_t>(loop.count), loop.src_step, loop.dst_step};
  }
  return to;
}

CudaSplit cuda_split(std::int64_t bytes, std::int64_t most) {
  constexpr std::int64_t kLine = 128;
  const std::int64_t parts = (bytes - 1) / most + 1;
  if (parts == 1) return {1, static_cast<std::uint32_t>(bytes)};
  const std::int64_t part = ((bytes - 1) / parts / kLine + 1) * kLine;
  return {(bytes - 1) / part + 1, static_cast<std::uint32_t>(part)};
}

std::uint32_t cuda_ranks(std::int64_t bytes, std::uint32_t most) {
  constexpr std::int64_t kRankBytes = 32;
  std::uint32_t ranks = 1;
  while (ranks < most && ranks * kRankBytes < bytes) ranks *= 2;
  return ranks;
}

std::uint32_t cuda_shift_of(std::int64_t task_bytes, std::int64_t token_bytes, std::int64_t most) {
  std::uint32_t shift = 0;
  while ((std::int64_t{1} << shift) < most && (token_bytes << (shift + 1)) <= task_bytes) ++shift;
  return shift;
}

}  // namespace kvferry::internal
