// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "tests/cuda_emulation/fibre_switch.hpp"

// Ends with a jump: a return that goes elsewhere than the processor expects costs three times as much.
asm(R"(
.text
.p2align 4
.globl kvferry_switch_fibre
.hidden kvferry_switch_fibre
.type kvferry_switch_fibre, @function
kvferry_switch_fibre:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size kvferry_switch_fibre, . - kvferry_switch_fibre
)");

void* kvferry_make_fibre(void* top, void (*entry)()) {
  const auto end = reinterpret_cast<std::uintptr_t>(top) / 16 * 16;
  auto* const stack = reinterpret_cast<std::uintptr_t*>(end) - 8;
  // Six registers, the way in, and no way back.
  for (int i = 0; i < 8; ++i) stack[i] = 0;
  stack[6] = reinterpret_cast<std::uintptr_t>(entry);
  return stack;
}
