// SPDX-License-Identifier: Apache-2.0
//
// The threads' part of the gather and the scatter.
#pragma once

#include <algorithm>

#include "backends/cpu/move.hpp"
#include "backends/cpu/parallel_for.hpp"
#include "ops/paged_layout.hpp"

namespace kvferry::internal {

// Splits `tokens` into claims of equal bytes; each calls move(begin, end, side, mover) for the keys, then for
// the values (docs/decisions/0002).
template <class Move>
void move_paged(ContextState& context, const cpu::CopyKernels& kernels, const PagedSide& key,
                const PagedSide& value, std::int64_t tokens, Move move) {
  const cpu::Split split = cpu::split(tokens, key.move.token_bytes + value.move.token_bytes, context.threads);
  const bool nontemporal = cpu::use_nontemporal(split.bytes, context.options.streaming);
  cpu::parallel_for(context, split.claims, [&](std::int64_t claim) {
    const std::int64_t begin = claim * split.units_per_claim;
    const std::int64_t end = std::min(begin + split.units_per_claim, tokens);
    for (const PagedSide* side : {&key, &value}) {
      if (!side->active) continue;
      cpu::Mover mover(side->move, kernels, nontemporal);
      move(begin, end, *side, mover);
    }
  });
}

}  // namespace kvferry::internal
