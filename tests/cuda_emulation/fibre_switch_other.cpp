// SPDX-License-Identifier: Apache-2.0
//
// Any architecture of a system with ucontext: 280 times slower, for each switch saves the signal mask.
#include <ucontext.h>

#include <cstddef>
#include <cstdlib>
#include <new>

#include "tests/cuda_emulation/fibre_switch.hpp"

void kvferry_switch_fibre(void** from, void* to) {
  ucontext_t here;
  *from = &here;  // alive until somebody continues it
  if (swapcontext(&here, static_cast<ucontext_t*>(to)) != 0) std::abort();
}

void* kvferry_make_fibre(void* top, void (*entry)()) {
  constexpr std::size_t kRoom = 96 * 1024;
  auto* const end = static_cast<std::byte*>(top) - (sizeof(ucontext_t) + 63) / 64 * 64;
  auto* const start = new (end) ucontext_t;
  if (getcontext(start) != 0) std::abort();
  start->uc_stack.ss_sp = end - kRoom;
  start->uc_stack.ss_size = kRoom;
  start->uc_link = nullptr;
  makecontext(start, entry, 0);
  return start;
}
