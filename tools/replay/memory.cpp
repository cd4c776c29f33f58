// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/memory.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backends/cpu/parallel_for.hpp"
#include "harness/waiting.hpp"
#include "kvferry/memory.hpp"
#include "tools/replay/numbers.hpp"

namespace kvferry::replay {
namespace {

std::int64_t kilobytes(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    std::int64_t value = 0;
    if (word == key && file >> value) return value * 1024;
  }
  return -1;
}

#if defined(__x86_64__)
// Both 64-byte aligned, a multiple of 256 bytes. A sanitizer would only measure itself.
__attribute__((target("avx2"), no_sanitize("address", "thread"))) void stream_copy(std::byte* dst,
                                                                                   const std::byte* src,
                                                                                   std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += 256) {
    for (std::int64_t k = i; k < i + 256; k += 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + k),
                          _mm256_load_si256(reinterpret_cast<const __m256i*>(src + k)));
    }
  }
  _mm_sfence();
}
bool can_stream() {
  return __builtin_cpu_supports("avx2") != 0;
}
#else
void stream_copy(std::byte*, const std::byte*, std::int64_t) {}
bool can_stream() {
  return false;
}
#endif

}  // namespace

std::int64_t peak_memory() {
  return kilobytes("/proc/self/status", "VmHWM:");
}
std::int64_t available_memory() {
  return kilobytes("/proc/meminfo", "MemAvailable:");
}

const char* copy_limit_method() {
  return can_stream() ? "AVX2 non-temporal" : "memcpy";
}

Result<double> measure_copy_limit(const Context& context) {
  constexpr std::int64_t kBytes = 256 << 20;
  constexpr std::int64_t kPiece = 4 << 20;
  constexpr std::size_t kSamples = 9, kMostTries = 27;
  const Result<HostBuffer> src = HostBuffer::make(kBytes, context);
  if (!src.ok()) return src.status();
  const Result<HostBuffer> dst = HostBuffer::make(kBytes, context);
  if (!dst.ok()) return dst.status();
  const bool stream = can_stream();
  // A sample counts if no thread waited for a processor. On a machine that is never quiet all of them do.
  std::vector<double> quiet, all;
  while (quiet.size() < kSamples && all.size() < kMostTries) {
    const std::int64_t waited = harness::nanoseconds_waited();
    const auto start = std::chrono::steady_clock::now();
    internal::cpu::parallel_for(context.state(), kBytes / kPiece, [&](std::int64_t piece) {
      std::byte* to = dst.value().data() + piece * kPiece;
      const std::byte* from = src.value().data() + piece * kPiece;
      stream ? stream_copy(to, from, kPiece) : static_cast<void>(std::memcpy(to, from, usize(kPiece)));
    });
    all.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (static_cast<double>(harness::nanoseconds_waited() - waited) < 0.02e9 * all.back())
      quiet.push_back(all.back());
  }
  std::vector<double>& samples = quiet.size() >= kSamples / 2 ? quiet : all;
  const auto median = samples.begin() + std::ssize(samples) / 2;
  std::nth_element(samples.begin(), median, samples.end());
  return static_cast<double>(kBytes) / *median / 1e9;
}

}  // namespace kvferry::replay
