// SPDX-License-Identifier: Apache-2.0
//
// Memory for tests: every byte around it is watched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::harness {

enum class Placement {
  kGuarded,     // canary bytes on both sides; starts `align` bytes after a multiple of 64
  kBeforeHole,  // the last byte is followed by an unmapped page; canary bytes in front
  kAfterHole,   // the first byte follows an unmapped page; canary bytes behind
  kSparse,      // any size: only touched pages cost memory; zero; unmapped pages on both sides
  kFolded,      // any size: one piece of `fold_bytes` appears over and over; unmapped pages on both sides
};

// Where Memory comes from in place of the heap and of mappings of its own: memory that a device reaches too.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  virtual ~Arena() = default;
  // At a multiple of 4096, or null when nothing is left. `bytes` is such a multiple.
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void release(std::byte* data, std::int64_t bytes) = 0;
};
// For what is made from now on; null: none. It must outlive what was made from it. In an arena canary bytes
// take the place of unmapped pages, and kSparse and kFolded, which need mappings, throw CaseError with this
// text. Not for several threads.
void set_arena(Arena* given);
inline constexpr const char* kNotInArena = "sparse and folded memory cannot be made in an arena";

struct GuardDamage {
  std::int64_t offset = 0;  // from the first byte of the memory: negative, or at least its size
  int seen = 0;
  int expected = 0;
};

// Move-only. Throws std::bad_alloc when the system refuses.
class Memory {
 public:
  static constexpr std::int64_t kGuardBytes = 4096;

  Memory() = default;
  Memory(std::int64_t bytes, Placement placement, std::int64_t align = 0, std::int64_t fold_bytes = 0);
  ~Memory();
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    Memory moved(std::move(other));
    swap(moved);
    return *this;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }
  Placement placement() const { return placement_; }
  std::int64_t fold_bytes() const { return fold_bytes_; }

  // The first guard byte that changed. Holes need no check: touching them is a fault.
  std::optional<GuardDamage> damage() const;
  bool hole_contains(const void* address) const;

  // kSparse: [begin, end) of the pages that were touched, clipped to the memory, in order.
  std::vector<std::pair<std::int64_t, std::int64_t>> touched() const;
  // kSparse: back to zero and untouched. kFolded: every page untouched (the shared piece keeps its bytes).
  void forget();
  // kFolded: the first byte of a page through which nothing went since forget(); nullopt when all were used
  // or the kernel does not say.
  std::optional<std::int64_t> first_unused() const;

 private:
  void swap(Memory& other) noexcept;
  void map_folds();
  std::byte* take(std::int64_t bytes);  // into heap_, at a multiple of a page

  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
  Placement placement_ = Placement::kGuarded;
  std::int64_t fold_bytes_ = 0;
  int fold_file_ = -1;
  std::byte* mapping_ = nullptr;  // null: heap_ is used
  std::int64_t mapping_bytes_ = 0;
  std::byte* heap_ = nullptr;
  std::int64_t heap_bytes_ = 0;
  Arena* arena_ = nullptr;  // what heap_ is from; null: the heap
  std::byte* canary_begin_ =
      nullptr;  // [canary_begin_, data_) and [data_ + size_, canary_end_) hold the pattern
  std::byte* canary_end_ = nullptr;
};

struct Difference {
  std::int64_t offset = 0;
  int seen = 0;
  int expected = 0;
};
// Same size and placement. Bytes with a non-zero entry in `ignore` (empty, or one entry a byte) may differ.
std::optional<Difference> first_difference(const Memory& seen, const Memory& expected,
                                           const std::vector<std::uint8_t>& ignore = {});
// Same size and placement; a sparse target becomes as untouched as its source.
void copy_memory(Memory& to, const Memory& from);

}  // namespace kvferry::harness
