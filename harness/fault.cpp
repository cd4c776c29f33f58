// SPDX-License-Identifier: Apache-2.0
#include "harness/fault.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>

namespace kvferry::harness {
namespace {

std::atomic<const Instance*> current_instance = nullptr;
std::atomic<const char*> current_repeat = nullptr;
struct sigaction old_segv;
struct sigaction old_bus;

// Async-signal-safe.
void say(const char* text) {
  const ssize_t ignored = write(STDERR_FILENO, text, std::strlen(text));
  static_cast<void>(ignored);
}

void on_fault(int signal, siginfo_t* info, void*) {
  if (const char* repeat = current_repeat.exchange(nullptr)) {
    say("kvferry: fault");
    if (const Instance* instance = current_instance.load()) {
      for (const Storage& storage : instance->storages) {
        if (!storage.live.hole_contains(info->si_addr)) continue;
        const bool before = static_cast<const std::byte*>(info->si_addr) < storage.live.data();
        say(before ? " in the guard page before " : " in the guard page behind ");
        say(storage.name.c_str());
      }
    }
    say("\n  repeat: ");
    say(repeat);
    say("\n");
  }
  // The faulting instruction runs again when this returns, now with the old handler.
  sigaction(signal, signal == SIGSEGV ? &old_segv : &old_bus, nullptr);
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &old_segv);
    sigaction(SIGBUS, &action, &old_bus);
  });
}

}  // namespace

FaultReport::FaultReport(const Instance& instance, const std::string& repeat) {
  install();
  current_instance = &instance;
  current_repeat = repeat.c_str();
}

FaultReport::~FaultReport() {
  current_repeat = nullptr;
  current_instance = nullptr;
}

}  // namespace kvferry::harness
