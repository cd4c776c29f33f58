// SPDX-License-Identifier: Apache-2.0
//
// The functions of the sanitizers' run times; null in a build without that sanitizer.
#pragma once

#include <cstddef>

// The names are theirs.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** save, const void* bottom, std::size_t size);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* saved, const void** bottom, std::size_t* size);
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_set_fiber_name(void* fiber, const char* name);
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
[[gnu::weak]] void AnnotateIgnoreReadsBegin(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreReadsEnd(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreWritesBegin(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreWritesEnd(const char* file, int line);
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace kvferry::emulation {

inline bool thread_sanitizer() {
  return __tsan_acquire != nullptr;
}
inline void tsan_acquire(void* address) {
  if (thread_sanitizer()) __tsan_acquire(address);
}
inline void tsan_release(void* address) {
  if (thread_sanitizer()) __tsan_release(address);
}

// The book-keeping of the emulation, which fibres share: not compiled for ThreadSanitizer, but what it calls
// is watched all the same (allocation, memmove).
class Unwatched {
 public:
  Unwatched() {
    if (!thread_sanitizer()) return;
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unwatched() {
    if (!thread_sanitizer()) return;
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

}  // namespace kvferry::emulation
