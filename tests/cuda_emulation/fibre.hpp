// SPDX-License-Identifier: Apache-2.0
//
// Stackful fibres that take turns with one scheduler on one thread of the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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

  // From the scheduler: until the fibre waits or its turn is done.
  void resume(std::uint32_t fibre);
  // From a fibre: back to the scheduler, until resumed.
  void wait();
  // The fibre that runs; kMost: the scheduler.
  std::uint32_t running() const { return running_; }
  // Gives fibres 0 .. count-1 new identities for ThreadSanitizer, "<name> thread <i>": it takes what one
  // identity does for ordered. REQUIRES that they are between turns.
  void rename(std::uint32_t count, const char* name);

 private:
  struct Fibre {
    void* stack_pointer = nullptr;
    void* fake_stack = nullptr;  // AddressSanitizer's
    void* identity = nullptr;    // ThreadSanitizer's
  };
  static void start();
  void prepare(std::uint32_t fibre);
  std::byte* stack(std::uint32_t fibre) const;

  Function turn_;
  void* closure_;
  std::byte* stacks_ = nullptr;
  std::vector<Fibre> fibres_;
  Fibre scheduler_;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
  std::uint32_t running_ = kMost;
};

}  // namespace kvferry::emulation
