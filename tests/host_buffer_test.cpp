// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvferry/memory.hpp"

namespace kvferry {
namespace {

constexpr std::int64_t kHuge = 2 << 20;

static_assert(!std::is_copy_constructible_v<HostBuffer> && !std::is_copy_assignable_v<HostBuffer>);

Context with_threads(int threads) {
  ContextOptions options;
  options.threads = threads;
  return Context(options);
}

HostBuffer made(std::int64_t bytes) {
  Result<HostBuffer> buffer = HostBuffer::make(bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status().message();
  return buffer.ok() ? std::move(buffer).value() : HostBuffer();
}

// Small pages of the buffer in memory, in [begin, end).
std::int64_t resident_pages(const HostBuffer& buffer, std::int64_t begin, std::int64_t end) {
  std::vector<unsigned char> pages(static_cast<std::size_t>((end - begin + 4095) / 4096));
  EXPECT_EQ(mincore(buffer.data() + begin, static_cast<std::size_t>(end - begin), pages.data()), 0);
  return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

bool mapped(const void* address) {
  unsigned char page = 0;
  return mincore(const_cast<void*>(address), 1, &page) == 0;
}

TEST(HostBuffer, SizesAndAlignment) {
  for (const std::int64_t bytes :
       {std::int64_t{1}, std::int64_t{4096}, kHuge - 1, kHuge, kHuge + 1, std::int64_t{1} << 30}) {
    const HostBuffer buffer = made(bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    ASSERT_NE(buffer.data(), nullptr) << bytes;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kHuge, 0U) << bytes;
    for (const std::int64_t at : {std::int64_t{0}, bytes / 2, bytes - 1})
      EXPECT_EQ(buffer.data()[at], std::byte{0});
    buffer.data()[bytes - 1] = std::byte{1};
  }
  EXPECT_EQ(made(0).data(), nullptr);
  EXPECT_EQ(made(0).bytes(), 0);
  made(0).touch(100, with_threads(1));
}

TEST(HostBuffer, RefusalsNameTheSize) {
  for (const std::int64_t bytes :
       {std::int64_t{1} << 50, std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::max() - kHuge,
        std::numeric_limits<std::int64_t>::max()}) {
    for (const Result<HostBuffer>& refused :
         {HostBuffer::make(bytes), HostBuffer::make(bytes, with_threads(2))}) {
      ASSERT_FALSE(refused.ok()) << bytes;
      EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
      EXPECT_NE(refused.status().message().find(std::to_string(bytes)), std::string::npos);
    }
  }
  for (const std::int64_t bytes : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    const Result<HostBuffer> refused = HostBuffer::make(bytes);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find(std::to_string(bytes)), std::string::npos);
  }
}

TEST(HostBuffer, TouchMakesPagesPresent) {
  for (const int threads : {1, 3}) {
    const Context context = with_threads(threads);
    constexpr std::int64_t kBytes = 16 * kHuge + 5000;
    const HostBuffer buffer = made(kBytes);
    EXPECT_EQ(resident_pages(buffer, 0, kBytes), 0);
    buffer.touch(3 * kHuge + 1, context);
    EXPECT_EQ(resident_pages(buffer, 0, 3 * kHuge + 1), 3 * kHuge / 4096 + 1);
    EXPECT_EQ(resident_pages(buffer, 4 * kHuge, kBytes), 0);
    buffer.touch(kBytes + 1, context);
    EXPECT_EQ(resident_pages(buffer, 0, kBytes), (kBytes + 4095) / 4096);
    EXPECT_TRUE(
        std::all_of(buffer.data(), buffer.data() + kBytes, [](std::byte b) { return b == std::byte{0}; }));
    const Result<HostBuffer> touched = HostBuffer::make(kBytes, context);
    ASSERT_TRUE(touched.ok());
    EXPECT_EQ(resident_pages(touched.value(), 0, kBytes), (kBytes + 4095) / 4096);
  }
}

TEST(HostBuffer, TouchKeepsTheContent) {
  const HostBuffer buffer = made(kHuge + 4096);
  std::memset(buffer.data(), 0xa5, static_cast<std::size_t>(buffer.bytes()));
  buffer.touch(buffer.bytes(), with_threads(2));
  EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + buffer.bytes(),
                          [](std::byte b) { return b == std::byte{0xa5}; }));
}

TEST(HostBuffer, MovesAndFrees) {
  HostBuffer first = made(3 * kHuge + 1);
  std::byte* const memory = first.data();
  HostBuffer second = std::move(first);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): what the header promises
  EXPECT_EQ(first.bytes(), 0);
  EXPECT_EQ(second.data(), memory);
  EXPECT_EQ(second.bytes(), 3 * kHuge + 1);
  HostBuffer third = made(4096);
  std::byte* const old = third.data();
  third = std::move(second);
  EXPECT_EQ(third.data(), memory);
  EXPECT_EQ(second.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_FALSE(mapped(old));
  HostBuffer& itself = third;
  third = std::move(itself);
  EXPECT_EQ(third.data(), memory);
  EXPECT_TRUE(mapped(memory + 3 * kHuge));
  third = HostBuffer();
  for (const std::int64_t at : {std::int64_t{0}, 3 * kHuge, 4 * kHuge - 4096})  // all of it
    EXPECT_FALSE(mapped(memory + at));
}

TEST(HostBuffer, KeepsNoMoreThanItsPages) {
  const auto mapped_pages = [] {
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages;
  };
  std::vector<HostBuffer> buffers(50);
  const std::int64_t before = mapped_pages();
  for (HostBuffer& buffer : buffers) buffer = made(4 * kHuge);
  EXPECT_EQ(mapped_pages() - before, std::int64_t{50} * 4 * kHuge / sysconf(_SC_PAGESIZE));
  buffers.clear();
  EXPECT_EQ(mapped_pages(), before);
}

TEST(HostBuffer, WorksWithoutHugePages) {
  const int disabled = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);
  ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  const Result<HostBuffer> buffer = HostBuffer::make(3 * kHuge, with_threads(2));
  ASSERT_EQ(prctl(PR_SET_THP_DISABLE, disabled, 0, 0, 0), 0);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(resident_pages(buffer.value(), 0, 3 * kHuge), 3 * kHuge / 4096);
  std::memset(buffer.value().data(), 1, static_cast<std::size_t>(buffer.value().bytes()));
}

}  // namespace
}  // namespace kvferry
