// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <string>

#include "backends/cpu/parallel_for.hpp"
#include "core/checked_math.hpp"
#include "kvferry/memory.hpp"

namespace kvferry {
namespace {

constexpr std::int64_t kHugePage = 2 << 20;
constexpr std::int64_t kSmallestPage = 4096;

std::size_t whole_pages(std::int64_t bytes) noexcept {
  return static_cast<std::size_t>(internal::ceil_div(bytes, kHugePage) * kHugePage);
}

Status refuse(StatusCode code, std::int64_t bytes, const char* reason) noexcept {
  try {
    return {code, fmt::format("HostBuffer: bytes is {}, {}", bytes, reason)};
  } catch (const std::bad_alloc&) {
    return {code, std::string()};
  }
}

}  // namespace

Result<HostBuffer> HostBuffer::make(std::int64_t bytes) noexcept {
  HostBuffer buffer;
  if (bytes < 0) return refuse(StatusCode::kInvalidArgument, bytes, "expected >= 0");
  if (bytes == 0) return buffer;
  if (bytes > internal::kInt64Max - 2 * kHugePage)
    return refuse(StatusCode::kOutOfMemory, bytes, "more than can be addressed");
  // One huge page more, to cut an aligned part out.
  const std::size_t wanted = whole_pages(bytes);
  const std::size_t mapped = wanted + kHugePage;
  void* const map = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return refuse(StatusCode::kOutOfMemory, bytes, "which the system cannot map");
  auto* const begin = static_cast<std::byte*>(map);
  const std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(map)) % kHugePage;
  if (head != 0) munmap(begin, head);
  munmap(begin + head + wanted, mapped - head - wanted);
  buffer.data_ = begin + head;
  buffer.bytes_ = bytes;
  // A refusal only costs speed.
  static_cast<void>(madvise(buffer.data_, wanted, MADV_HUGEPAGE));
  return buffer;
}

Result<HostBuffer> HostBuffer::make(std::int64_t bytes, const Context& context) noexcept {
  Result<HostBuffer> buffer = make(bytes);
  if (buffer.ok()) buffer->touch(bytes, context);
  return buffer;
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) munmap(data_, whole_pages(bytes_));
}

void HostBuffer::touch(std::int64_t bytes, const Context& context) const noexcept {
  const std::int64_t end = std::min(bytes, bytes_);
  internal::cpu::parallel_for(context.state(), internal::ceil_div(end, kHugePage), [&](std::int64_t page) {
    const std::int64_t stop = std::min(end, (page + 1) * kHugePage);
    // A write that changes nothing, even if another thread writes there meanwhile.
    for (std::int64_t at = page * kHugePage; at < stop; at += kSmallestPage)
      __atomic_fetch_or(reinterpret_cast<unsigned char*>(data_ + at), 0, __ATOMIC_RELAXED);
  });
}

}  // namespace kvferry
