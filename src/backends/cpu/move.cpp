// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/move.hpp"

#include <cstring>

#include "backends/cpu/tuning.hpp"

namespace kvferry::internal::cpu {
namespace {

// Calls body(src, dst) for every index of the nest's loops [first, loop_count) but the innermost `skip` ones.
template <class Body>
void for_each_outer(const Nest& nest, int skip, const std::byte* src, std::byte* dst, Body body,
                    int first = 0) {
  if (first >= nest.loop_count - skip) return body(src, dst);
  const Axis& axis = nest.loops[static_cast<std::size_t>(first)];
  for (std::int64_t i = 0; i < axis.count; ++i) {
    for_each_outer(nest, skip, src + i * axis.src_step, dst + i * axis.dst_step, body, first + 1);
  }
}

}  // namespace

bool use_nontemporal(std::int64_t bytes, bool streaming) noexcept {
  return bytes >= (streaming ? kTuning.nontemporal_streaming_bytes : kTuning.nontemporal_bytes);
}

void Mover::pieces(const Axis& axis, const std::byte* src, std::byte* dst, std::int64_t bytes) noexcept {
  const bool alone = axis.count == 1 && bytes >= kTuning.least_piece_bytes;
  if (bytes < kTuning.small_row_bytes && !alone) {
    kernels_.rows(dst, axis.dst_step, src, axis.src_step, axis.count, bytes);
    return;
  }
  for (std::int64_t i = 0; i < axis.count; ++i)
    queue_.push(src + i * axis.src_step, dst + i * axis.dst_step, bytes);
}

void Mover::copy_nest(const Nest& nest, const std::byte* src, std::byte* dst, std::int64_t tokens) noexcept {
  const Axis token{tokens, move_.src_token_step, move_.dst_token_step};
  if (nest.loop_count == 0) return pieces(token, src, dst, nest.piece);
  const Axis& inner = nest.loops[static_cast<std::size_t>(nest.loop_count - 1)];
  for (std::int64_t t = 0; t < tokens; ++t) {
    for_each_outer(nest, 1, src + t * token.src_step, dst + t * token.dst_step,
                   [&](const std::byte* s, std::byte* d) { pieces(inner, s, d, nest.piece); });
  }
}

void Mover::transpose_waiting(const std::byte* next) noexcept {
  const auto [src, dst, tokens] = waiting_;
  waiting_ = {};
  if (tokens == 0) return;
  const Nest& nest = move_.nests.front();
  const Axis& unit = nest.loops[0];
  const bool gathers = unit.dst_step == nest.piece;
  gathers ? kernels_.transpose(dst, move_.dst_token_step, src, unit.src_step, tokens, unit.count,
                               nontemporal_, next)
          : kernels_.transpose(dst, unit.dst_step, src, move_.src_token_step, unit.count, tokens,
                               nontemporal_, next);
}

void Mover::copy(const std::byte* src, std::byte* dst, std::int64_t tokens) noexcept {
  const Nest& nest = move_.nests.front();
  switch (move_.kind) {
    case MoveKind::kDense: {
      const std::int64_t bytes = tokens * nest.piece;
      return pieces({1, 0, 0}, src + nest.src_base, dst + nest.dst_base, bytes);
    }
    case MoveKind::kPlanes:
      return for_each_outer(
          nest, 1, src + nest.src_base, dst + nest.dst_base, [&](const std::byte* s, std::byte* d) {
            pieces(nest.loops[static_cast<std::size_t>(nest.loop_count - 1)], s, d, tokens * nest.piece);
          });
    case MoveKind::kTranspose:
      transpose_waiting(src + nest.src_base);
      waiting_ = {src + nest.src_base, dst + nest.dst_base, tokens};
      return;
    case MoveKind::kRows:
    case MoveKind::kNested:
      for (const Nest& each : move_.nests) copy_nest(each, src + each.src_base, dst + each.dst_base, tokens);
  }
}

void Mover::zero(std::byte* dst, std::int64_t tokens) const noexcept {
  const bool runs = move_.kind == MoveKind::kDense || move_.kind == MoveKind::kPlanes;
  const std::int64_t rows = runs ? 1 : tokens;
  for (const Nest& nest : move_.nests) {
    const std::int64_t bytes = runs ? tokens * nest.piece : nest.piece;
    for (std::int64_t t = 0; t < rows; ++t) {
      std::byte* row = dst + nest.dst_base + t * move_.dst_token_step;
      // The source side of the nest is not there; stepping along the destination twice keeps the pointers
      // valid.
      Nest out = nest;
      for (int i = 0; i < out.loop_count; ++i) {
        Axis& axis = out.loops[static_cast<std::size_t>(i)];
        axis.src_step = axis.dst_step;
      }
      for_each_outer(out, 0, row, row, [&](const std::byte*, std::byte* d) {
        std::memset(d, 0, static_cast<std::size_t>(bytes));
      });
    }
  }
}

}  // namespace kvferry::internal::cpu
