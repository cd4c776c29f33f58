// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/fibre.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <string>

namespace kvferry::emulation {
namespace {

constexpr std::size_t kStack = 256 * 1024;
constexpr std::size_t kGuard = 64 * 1024;  // a multiple of every page size
// Tops at the same offset would share the sets of the first-level cache, and with an even number of pages
// between the stacks those of the address translation.
constexpr std::size_t kSpread = 448, kSpreads = 128;
std::size_t stack_step() {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return kStack + page;
}

thread_local Fibres* starting = nullptr;

std::byte* map_stacks(std::byte* at, std::uint32_t count, int flags) {
  void* const memory = mmap(at, count * stack_step(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

}  // namespace

Fibres::Fibres(Function turn, void* closure)
    : turn_(turn), closure_(closure), stack_pointers_(kMost + 1), fibres_(kMost + 1) {
  stacks_ = map_stacks(nullptr, kMost, 0);
}

Fibres::~Fibres() {
  for (std::uint32_t i = 0; i < kMost; ++i) {
    if (fibres_[i].identity != nullptr) __tsan_destroy_fiber(fibres_[i].identity);
  }
  munmap(stacks_, kMost * stack_step());
}

std::byte* Fibres::stack(std::uint32_t fibre) const {
  return stacks_ + fibre * stack_step();
}

void Fibres::prepare(std::uint32_t fibre) {
  if (mprotect(stack(fibre), kGuard, PROT_NONE) != 0) throw std::bad_alloc();
  std::byte* const top = stack(fibre) + kStack - fibre % kSpreads * kSpread;
  stack_pointers_[fibre] = kvferry_make_fibre(top, start);
  fibres_[fibre].stack = stack(fibre);
  fibres_[fibre].stack_bytes = kStack;
  if (thread_sanitizer() && fibres_[fibre].identity == nullptr)
    fibres_[fibre].identity = __tsan_create_fiber(0);
}

void Fibres::start() {
  Fibres& self = *starting;
  if (__sanitizer_finish_switch_fiber != nullptr) self.arrive(nullptr);
  for (;;) {
    self.turn_(self.closure_, self.running_);
    self.wait();
  }
}

std::uint32_t Fibres::resume(std::uint32_t fibre) {
  starting = this;
  if (thread_sanitizer()) fibres_[kMost].identity = __tsan_get_current_fiber();
  pass(fibre);
  return previous_;
}

void Fibres::rename(std::uint32_t count, const char* name) {
  if (!thread_sanitizer()) return;
  map_stacks(stacks_, count, MAP_FIXED);  // new stacks too: what the old identities left there is not shared
  for (std::uint32_t i = 0; i < count; ++i) {
    stack_pointers_[i] = nullptr;
    void*& identity = fibres_[i].identity;
    if (identity != nullptr) __tsan_destroy_fiber(identity);
    identity = __tsan_create_fiber(0);
    __tsan_set_fiber_name(identity, (std::string(name) + " thread " + std::to_string(i)).c_str());
  }
}

}  // namespace kvferry::emulation
