// SPDX-License-Identifier: Apache-2.0
//
// What every switch between fibres must do, for GoogleTest and for machines without it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cuda_emulation/fibre.hpp"

namespace kvferry::emulation {

// Fibres that keep integers and floating-point numbers in registers over switches, use their stacks, throw,
// and are used twice. Empty, or what went wrong.
inline std::string check_fibres() {
  constexpr std::uint32_t kFibres = 100, kRounds = 20;
  struct State {
    Fibres* fibres = nullptr;
    std::vector<std::uint64_t> sums;
    std::uint32_t caught = 0;
  } state;
  state.sums.resize(kFibres);
  Fibres fibres(
      [](void* closure, std::uint32_t me) {
        State& s = *static_cast<State*>(closure);
        std::uint64_t a = me, b = me + 1, c = me + 2, d = me + 3, e = me + 4, f = me + 5;
        double p = me, q = me + 0.5, r = me + 0.25, t = me + 0.125;
        volatile char stack[20000];
        stack[0] = static_cast<char>(me);
        stack[19999] = static_cast<char>(me);
        for (std::uint32_t i = 0; i < kRounds; ++i) {
          s.fibres->wait();
          a += 1, b += 2, c += 3, d += 4, e += 5, f += 6;
          p += 1, q += 2, r += 3, t += 4;
          try {
            if (i == me % kRounds) throw std::runtime_error("in a fibre");
          } catch (const std::runtime_error&) {
            ++s.caught;
          }
        }
        if (stack[0] == stack[19999])
          s.sums[me] += a + b + c + d + e + f + static_cast<std::uint64_t>((p + q + r + t) * 8);
      },
      &state);
  state.fibres = &fibres;
  for (std::uint32_t turn = 1; turn <= 2; ++turn) {
    for (std::uint32_t i = 0; i <= kRounds; ++i) {
      double mine = i;
      for (std::uint32_t f = 0; f < kFibres; ++f) {
        fibres.resume(f);
        mine += 0.5;
        if (fibres.running() != Fibres::kMost) return "the scheduler runs, and a fibre does";
      }
      if (mine != i + 0.5 * kFibres) return "a register of the scheduler changed";
    }
    for (std::uint32_t f = 0; f < kFibres; ++f) {
      const std::uint64_t once = 6 * f + 15 + kRounds * 21 + 8 * (4 * f + kRounds * 10) + 4 + 2 + 1;
      if (state.sums[f] != turn * once) return "fibre " + std::to_string(f) + " lost a register";
    }
  }
  return state.caught == 2 * kFibres ? "" : "an exception went missing";
}

}  // namespace kvferry::emulation
