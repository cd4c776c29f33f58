// SPDX-License-Identifier: Apache-2.0
//
// Strides to byte loops: what one token is for a byte mover. Here dtype, head size and layout (ND, NHSD,
// FRACTAL_NZ, any strides) turn into pieces and steps; kernels know nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvferry/tensor.hpp"

namespace kvferry::internal {

// One axis of a token: `count` elements, with its step in source and destination.
struct Axis {
  std::int64_t count;
  std::int64_t src_step;
  std::int64_t dst_step;
};

// A loop nest, outermost first, around pieces of `piece` contiguous bytes; bases and steps in bytes.
struct Nest {
  static constexpr int kMaxLoops = kMaxRank;
  std::int64_t src_base = 0;
  std::int64_t dst_base = 0;
  std::int64_t piece = 0;
  int loop_count = 0;
  std::array<Axis, kMaxLoops> loops{};
};

enum class MoveKind : std::uint8_t {
  kDense,      // a run of tokens is one contiguous piece
  kPlanes,     // loops outside, contiguous runs inside: loop over (heads, ...), then n tokens at once
  kTranspose,  // 32-byte units, [unit][token] to [token][unit] or back: FRACTAL_NZ
  kRows,       // one contiguous piece a token
  kNested,     // anything else
};
const char* to_string(MoveKind kind) noexcept;

// One token, and the step from one token to the next within a run (slots of one block, rows of the output).
struct TokenMove {
  MoveKind kind = MoveKind::kDense;
  std::int64_t token_bytes = 0;
  std::int64_t src_token_step = 0;
  std::int64_t dst_token_step = 0;
  std::vector<Nest> nests;  // almost always one
};

// Axes in elements, any order; merges what is contiguous on both sides. Axes of length 1 are ignored: their
// strides are arbitrary. REQUIRES counts >= 1 and at most Nest::kMaxLoops axes.
Nest make_nest(std::span<const Axis> axes, std::int64_t element_bytes, std::int64_t src_base = 0,
               std::int64_t dst_base = 0);

// Steps in bytes.
TokenMove make_token_move(std::vector<Nest> nests, std::int64_t src_token_step, std::int64_t dst_token_step);

std::string describe(const Nest& nest);  // "8 x 32 B"
// "transpose: 8 x 32 B a token".
std::string describe(const TokenMove& move);

}  // namespace kvferry::internal
