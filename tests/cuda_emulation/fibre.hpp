// SPDX-License-Identifier: Apache-2.0
//
// Stackful fibres that take turns with one scheduler on one thread of the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/cuda_emulation/fibre_switch.hpp"
#include "tests/cuda_emulation/sanitizers.hpp"

namespace kvferry::emulation {

class Fibres {
 public:
  using Function = void (*)(void* closure, std::uint32_t fibre);
  static constexpr std::uint32_t kMost = 1024;

  // A fibre calls `turn`, again and again, and ends each of its calls with a switch back.
  Fibres(Function turn, void* closure);
  ~Fibres();
  Fibres(const Fibres&) = delete;
  Fibres& operator=(const Fibres&) = delete;

  // From the scheduler: until a fibre waits or its turn is done. Which one: others may have passed on.
  std::uint32_t resume(std::uint32_t fibre);
  // From a fibre: back to the scheduler, until resumed.
  void wait() { pass(kMost); }
  // From a fibre: straight to another one, or to the scheduler (kMost), until somebody comes back. It stands
  // here as each call on the way is more of a stack to wait for.
  void pass(std::uint32_t to);
  // Somebody passes to this fibre soon: what it needs first comes into the cache meanwhile.
  void expect(std::uint32_t fibre) const {
    const auto* const top = static_cast<const char*>(stack_pointers_[fibre]);
    for (std::ptrdiff_t line = 0; line < 4; ++line) __builtin_prefetch(top + 64 * line, 1);
  }
  // The fibre that runs; kMost: the scheduler.
  std::uint32_t running() const { return running_; }
  // Gives fibres 0 .. count-1 new identities for ThreadSanitizer, "<name> thread <i>": it takes what one
  // identity does for ordered. REQUIRES that they are between turns.
  void rename(std::uint32_t count, const char* name);

 private:
  static constexpr unsigned kNoOrder = 1;  // ThreadSanitizer: a switch orders nothing

  // For the sanitizers.
  struct Fibre {
    void* fake_stack = nullptr;  // AddressSanitizer's
    const void* stack = nullptr;
    std::size_t stack_bytes = 0;
    void* identity = nullptr;  // ThreadSanitizer's
  };
  static void start();
  void prepare(std::uint32_t fibre);
  std::byte* stack(std::uint32_t fibre) const;
  // On its own stack again; AddressSanitizer tells the stack of whoever ran before.
  void arrive(void* fake_stack) {
    Fibre& before = fibres_[previous_];
    __sanitizer_finish_switch_fiber(fake_stack, &before.stack, &before.stack_bytes);
  }

  std::uint32_t running_ = kMost;
  Function turn_;
  void* closure_;
  std::byte* stacks_ = nullptr;
  // The last is the scheduler.
  std::vector<void*> stack_pointers_;  // null: not prepared
  std::vector<Fibre> fibres_;
  std::uint32_t previous_ = kMost;
};

inline void Fibres::pass(std::uint32_t to) {
  const std::uint32_t from = running_;
  if (stack_pointers_[to] == nullptr) [[unlikely]]
    prepare(to);
  previous_ = from;
  running_ = to;
  if (thread_sanitizer()) __tsan_switch_to_fiber(fibres_[to].identity, kNoOrder);
  if (__sanitizer_start_switch_fiber != nullptr)
    __sanitizer_start_switch_fiber(&fibres_[from].fake_stack, fibres_[to].stack, fibres_[to].stack_bytes);
  kvferry_switch_fibre(&stack_pointers_[from], stack_pointers_[to]);
  if (__sanitizer_finish_switch_fiber != nullptr) arrive(fibres_[from].fake_stack);
}

}  // namespace kvferry::emulation
