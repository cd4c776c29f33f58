// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "tests/cuda_emulation/fibre_switch.hpp"

// Ends with a branch, as on x86-64: a return would miss the processor's prediction.
asm(R"(
.text
.p2align 4
.globl kvferry_switch_fibre
.hidden kvferry_switch_fibre
.type kvferry_switch_fibre, %function
kvferry_switch_fibre:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  br x30
.size kvferry_switch_fibre, . - kvferry_switch_fibre
)");

void* kvferry_make_fibre(void* top, void (*entry)()) {
  const auto end = reinterpret_cast<std::uintptr_t>(top) / 16 * 16;
  auto* const stack = reinterpret_cast<std::uintptr_t*>(end) - 20;
  for (int i = 0; i < 20; ++i) stack[i] = 0;
  stack[11] = reinterpret_cast<std::uintptr_t>(entry);  // x30
  return stack;
}
