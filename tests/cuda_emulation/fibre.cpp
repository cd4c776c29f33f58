// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/fibre.hpp"

#include <sys/mman.h>

#include <new>
#include <string>

#include "tests/cuda_emulation/fibre_switch.hpp"
#include "tests/cuda_emulation/sanitizers.hpp"

namespace kvferry::emulation {
namespace {

constexpr std::size_t kStack = 256 * 1024;
constexpr std::size_t kGuard = 64 * 1024;  // a multiple of every page size
// Tops at the same offset would share the sets of the first-level cache.
constexpr std::size_t kSpread = 448, kSpreads = 128;

constexpr unsigned kNoOrder = 1;  // ThreadSanitizer: a switch orders nothing

thread_local Fibres* starting = nullptr;

std::byte* map_stacks(std::byte* at, std::uint32_t count, int flags) {
  void* const memory = mmap(at, count * kStack, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

}  // namespace

Fibres::Fibres(Function turn, void* closure) : turn_(turn), closure_(closure), fibres_(kMost) {
  stacks_ = map_stacks(nullptr, kMost, 0);
}

Fibres::~Fibres() {
  for (const Fibre& f : fibres_) {
    if (f.identity != nullptr) __tsan_destroy_fiber(f.identity);
  }
  munmap(stacks_, kMost * kStack);
}

std::byte* Fibres::stack(std::uint32_t fibre) const {
  return stacks_ + fibre * kStack;
}

void Fibres::prepare(std::uint32_t fibre) {
  if (mprotect(stack(fibre), kGuard, PROT_NONE) != 0) throw std::bad_alloc();
  std::byte* const top = stack(fibre) + kStack - fibre % kSpreads * kSpread;
  fibres_[fibre].stack_pointer = kvferry_make_fibre(top, start);
  if (thread_sanitizer() && fibres_[fibre].identity == nullptr)
    fibres_[fibre].identity = __tsan_create_fiber(0);
}

void Fibres::start() {
  Fibres& self = *starting;
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(nullptr, &self.scheduler_stack_, &self.scheduler_stack_bytes_);
  }
  for (;;) {
    self.turn_(self.closure_, self.running_);
    self.wait();
  }
}

void Fibres::resume(std::uint32_t fibre) {
  Fibre& to = fibres_[fibre];
  if (to.stack_pointer == nullptr) prepare(fibre);
  starting = this;
  running_ = fibre;
  if (thread_sanitizer()) {
    scheduler_.identity = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to.identity, kNoOrder);
  }
  if (__sanitizer_start_switch_fiber != nullptr)
    __sanitizer_start_switch_fiber(&scheduler_.fake_stack, stack(fibre), kStack);
  kvferry_switch_fibre(&scheduler_.stack_pointer, to.stack_pointer);
  if (__sanitizer_finish_switch_fiber != nullptr)
    __sanitizer_finish_switch_fiber(scheduler_.fake_stack, nullptr, nullptr);
  running_ = kMost;
}

void Fibres::wait() {
  Fibre& from = fibres_[running_];
  if (thread_sanitizer()) __tsan_switch_to_fiber(scheduler_.identity, kNoOrder);
  if (__sanitizer_start_switch_fiber != nullptr)
    __sanitizer_start_switch_fiber(&from.fake_stack, scheduler_stack_, scheduler_stack_bytes_);
  kvferry_switch_fibre(&from.stack_pointer, scheduler_.stack_pointer);
  if (__sanitizer_finish_switch_fiber != nullptr)
    __sanitizer_finish_switch_fiber(from.fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
}

void Fibres::rename(std::uint32_t count, const char* name) {
  if (!thread_sanitizer()) return;
  map_stacks(stacks_, count, MAP_FIXED);  // new stacks too: what the old identities left there is not shared
  for (std::uint32_t i = 0; i < count; ++i) {
    fibres_[i].stack_pointer = nullptr;
    void*& identity = fibres_[i].identity;
    if (identity != nullptr) __tsan_destroy_fiber(identity);
    identity = __tsan_create_fiber(0);
    __tsan_set_fiber_name(identity, (std::string(name) + " thread " + std::to_string(i)).c_str());
  }
}

}  // namespace kvferry::emulation
