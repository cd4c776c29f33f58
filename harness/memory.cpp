// SPDX-License-Identifier: Apache-2.0
#include "harness/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

#include "harness/array.hpp"
#include "harness/case.hpp"
#include "harness/random.hpp"

namespace kvferry::harness {
namespace {

constexpr std::int64_t kPage = 4096;

using CanaryTable = std::array<std::byte, static_cast<std::size_t>(2 * Memory::kGuardBytes)>;

const CanaryTable& canary() {
  static const CanaryTable table = [] {
    CanaryTable bytes{};
    fill_random(bytes.data(), static_cast<std::int64_t>(bytes.size()), 0xca9a47);
    return bytes;
  }();
  return table;
}

std::int64_t round_up(std::int64_t bytes, std::int64_t to) {
  return (bytes + to - 1) / to * to;
}

std::byte* map(std::int64_t bytes, int protection) {
  void* address =
      mmap(nullptr, to_size(bytes), protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(address);
}

Arena* arena = nullptr;

void open_pages(std::byte* from, std::int64_t bytes) {
  if (bytes > 0 && mprotect(from, to_size(bytes), PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
}

}  // namespace

void set_arena(Arena* given) {
  arena = given;
}

std::byte* Memory::take(std::int64_t bytes) {
  heap_bytes_ = round_up(bytes, kPage);
  arena_ = arena;
  heap_ = arena_ != nullptr ? arena_->allocate(heap_bytes_)
                            : static_cast<std::byte*>(std::aligned_alloc(kPage, to_size(heap_bytes_)));
  if (heap_ == nullptr) throw std::bad_alloc();
  return heap_;
}

Memory::Memory(std::int64_t bytes, Placement placement, std::int64_t align, std::int64_t fold_bytes)
    : size_(bytes), placement_(placement) {
  const std::int64_t pages = round_up(bytes, kPage);
  if (arena != nullptr && (placement == Placement::kSparse || placement == Placement::kFolded))
    throw CaseError(kNotInArena);
  switch (placement) {
    case Placement::kGuarded: {
      data_ = take(kGuardBytes + align + bytes + kGuardBytes) + kGuardBytes + align;
      canary_begin_ = heap_;
      canary_end_ = data_ + bytes + kGuardBytes;
      break;
    }
    case Placement::kBeforeHole:
    case Placement::kAfterHole: {
      const bool before = placement == Placement::kBeforeHole;
      if (arena != nullptr) {
        data_ = take(kPage + pages + kPage) + kPage + (before ? pages - bytes : 0);
        canary_begin_ = heap_;
        canary_end_ = heap_ + heap_bytes_;
        break;
      }
      mapping_bytes_ = kPage + pages + kPage;
      mapping_ = map(mapping_bytes_, PROT_NONE);
      open_pages(mapping_ + kPage, pages);
      data_ = before ? mapping_ + kPage + pages - bytes : mapping_ + kPage;
      canary_begin_ = before ? mapping_ + kPage : data_;
      canary_end_ = mapping_ + kPage + pages;
      break;
    }
    case Placement::kSparse: {
      mapping_bytes_ = kPage + round_up(align + bytes, kPage) + kPage;
      mapping_ = map(mapping_bytes_, PROT_NONE);
      open_pages(mapping_ + kPage, mapping_bytes_ - 2 * kPage);
      // A huge page would make two megabytes of every touched byte.
      madvise(mapping_, to_size(mapping_bytes_), MADV_NOHUGEPAGE);
      data_ = mapping_ + kPage + align;
      break;
    }
    case Placement::kFolded: {
      fold_bytes_ = round_up(std::max<std::int64_t>(fold_bytes, 1), kPage);
      mapping_bytes_ = kPage + round_up(bytes, fold_bytes_) + kPage;
      mapping_ = map(mapping_bytes_, PROT_NONE);
      fold_file_ = memfd_create("kvferry_fold", 0);
      if (fold_file_ < 0 || ftruncate(fold_file_, fold_bytes_) != 0) throw std::bad_alloc();
      data_ = mapping_ + kPage;
      map_folds();
      break;
    }
  }
  if (canary_begin_ != nullptr) {
    const auto fill = [](std::byte* begin, std::byte* end) {
      if (begin < end) std::memcpy(begin, canary().data(), to_size(end - begin));
    };
    fill(canary_begin_, data_);
    fill(data_ + size_, canary_end_);
  }
}

void Memory::map_folds() {
  for (std::int64_t at = 0; at < mapping_bytes_ - 2 * kPage; at += fold_bytes_) {
    void* piece =
        mmap(data_ + at, to_size(fold_bytes_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fold_file_, 0);
    if (piece == MAP_FAILED) throw std::bad_alloc();
  }
}

Memory::~Memory() {
  if (mapping_ != nullptr) munmap(mapping_, to_size(mapping_bytes_));
  if (fold_file_ >= 0) close(fold_file_);
  if (heap_ == nullptr) return;
  if (arena_ != nullptr) {
    arena_->release(heap_, heap_bytes_);
  } else {
    std::free(heap_);
  }
}

void Memory::swap(Memory& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(placement_, other.placement_);
  std::swap(fold_bytes_, other.fold_bytes_);
  std::swap(fold_file_, other.fold_file_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(heap_, other.heap_);
  std::swap(heap_bytes_, other.heap_bytes_);
  std::swap(arena_, other.arena_);
  std::swap(canary_begin_, other.canary_begin_);
  std::swap(canary_end_, other.canary_end_);
}

std::optional<GuardDamage> Memory::damage() const {
  if (canary_begin_ == nullptr) return std::nullopt;
  const auto check = [this](const std::byte* begin, const std::byte* end) -> std::optional<GuardDamage> {
    if (begin >= end || std::memcmp(begin, canary().data(), to_size(end - begin)) == 0) return std::nullopt;
    std::size_t at = 0;
    while (begin[at] == canary()[at]) ++at;
    return GuardDamage{begin + at - data_, std::to_integer<int>(begin[at]),
                       std::to_integer<int>(canary()[at])};
  };
  if (auto found = check(canary_begin_, data_)) return found;
  return check(data_ + size_, canary_end_);
}

bool Memory::hole_contains(const void* address) const {
  if (mapping_ == nullptr) return false;
  const auto* byte = static_cast<const std::byte*>(address);
  const std::byte* end = mapping_ + mapping_bytes_;
  return (byte >= mapping_ && byte < mapping_ + kPage) || (byte >= end - kPage && byte < end);
}

std::vector<std::pair<std::int64_t, std::int64_t>> Memory::touched() const {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  std::byte* const first = mapping_ + kPage;
  const std::int64_t pages = (mapping_bytes_ - 2 * kPage) / kPage;
  const std::int64_t align = data_ - first;
  constexpr std::int64_t kStep = 1 << 18;
  // Most pages of sparse memory: eight are as quick as one.
  const auto eight_untouched = [](const unsigned char* flags) {
    std::uint64_t all = 0;
    std::memcpy(&all, flags, sizeof all);
    return all == 0;
  };
  std::vector<unsigned char> resident(to_size(std::min(kStep, std::max<std::int64_t>(pages, 1))));
  for (std::int64_t page = 0; page < pages; page += kStep) {
    const std::int64_t n = std::min(kStep, pages - page);
    if (mincore(first + page * kPage, to_size(n * kPage), resident.data()) != 0) throw std::bad_alloc();
    for (std::int64_t i = 0; i < n; ++i) {
      if (i % 8 == 0 && i + 8 <= n && eight_untouched(&resident[to_size(i)])) {
        i += 7;
        continue;
      }
      if ((resident[to_size(i)] & 1) == 0) continue;
      const std::int64_t begin = std::max<std::int64_t>((page + i) * kPage - align, 0);
      const std::int64_t end = std::min((page + i + 1) * kPage - align, size_);
      if (begin >= end) continue;
      if (!ranges.empty() && ranges.back().second == begin) {
        ranges.back().second = end;
      } else {
        ranges.emplace_back(begin, end);
      }
    }
  }
  return ranges;
}

void Memory::forget() {
  if (placement_ == Placement::kSparse) {
    madvise(mapping_ + kPage, to_size(mapping_bytes_ - 2 * kPage), MADV_DONTNEED);
  } else if (placement_ == Placement::kFolded) {
    map_folds();  // fresh mappings have no page table entries
  }
}

std::optional<std::int64_t> Memory::first_unused() const {
  // mincore() tells whether the file's page is cached, which it always is; only the page table knows who came
  // by.
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::optional<std::int64_t> unused;
  std::vector<std::uint64_t> entries(1 << 15);
  const auto first = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data_) / kPage);
  const std::int64_t pages = round_up(size_, kPage) / kPage;
  for (std::int64_t page = 0; page < pages && !unused;) {
    const std::int64_t n = std::min<std::int64_t>(static_cast<std::int64_t>(entries.size()), pages - page);
    const ssize_t got = pread(file, entries.data(), to_size(n * 8), (first + page) * 8);
    if (got < 8) break;
    for (std::int64_t i = 0; i < got / 8 && !unused; ++i) {
      if ((entries[to_size(i)] >> 63) == 0) unused = (page + i) * kPage;
    }
    page += got / 8;
  }
  close(file);
  return unused;
}

namespace {

std::optional<Difference> compare_range(const std::byte* seen, const std::byte* expected, std::int64_t begin,
                                        std::int64_t end, const std::vector<std::uint8_t>& ignore) {
  // Blocks first: nearly all of them are equal, and memcmp is many times faster than a loop.
  constexpr std::int64_t kBlock = 1 << 16;
  for (std::int64_t block = begin; block < end; block += kBlock) {
    const std::int64_t stop = std::min(block + kBlock, end);
    if (std::memcmp(seen + block, expected + block, to_size(stop - block)) == 0) continue;
    for (std::int64_t i = block; i < stop; ++i) {
      if (seen[i] == expected[i] || (!ignore.empty() && ignore[to_size(i)] != 0)) continue;
      return Difference{i, std::to_integer<int>(seen[i]), std::to_integer<int>(expected[i])};
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Difference> first_difference(const Memory& seen, const Memory& expected,
                                           const std::vector<std::uint8_t>& ignore) {
  if (seen.placement() == Placement::kFolded) {
    const std::int64_t piece = std::min(seen.fold_bytes(), seen.size());
    return compare_range(seen.data(), expected.data(), 0, piece, ignore);
  }
  if (seen.placement() != Placement::kSparse) {
    return compare_range(seen.data(), expected.data(), 0, seen.size(), ignore);
  }
  // Untouched pages of both hold zeros: compare where either was touched.
  auto ranges = seen.touched();
  const auto more = expected.touched();
  ranges.insert(ranges.end(), more.begin(), more.end());
  std::optional<Difference> lowest;
  for (const auto& [begin, end] : ranges) {
    const auto found = compare_range(seen.data(), expected.data(), begin, end, {});
    if (found && (!lowest || found->offset < lowest->offset)) lowest = found;
  }
  return lowest;
}

void copy_memory(Memory& to, const Memory& from) {
  if (from.placement() == Placement::kFolded) {
    to.forget();
    std::memcpy(to.data(), from.data(), to_size(std::min(from.fold_bytes(), from.size())));
    to.forget();
  } else if (from.placement() == Placement::kSparse) {
    to.forget();
    for (const auto& [begin, end] : from.touched()) {
      std::memcpy(to.data() + begin, from.data() + begin, to_size(end - begin));
    }
  } else if (from.size() > 0) {
    std::memcpy(to.data(), from.data(), to_size(from.size()));
  }
}

}  // namespace kvferry::harness
