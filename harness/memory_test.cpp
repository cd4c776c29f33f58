// SPDX-License-Identifier: Apache-2.0
#include "harness/memory.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "harness/instance.hpp"
#include "harness/random.hpp"

namespace kvferry::harness {
namespace {

std::uintptr_t address(const std::byte* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

TEST(Memory, GuardBytesNoticeEveryNeighbour) {
  for (const std::int64_t align : {0, 1, 63}) {
    for (const std::int64_t bytes : {0, 1, 100, 5000}) {
      Memory memory(bytes, Placement::kGuarded, align);
      EXPECT_EQ(address(memory.data()) % 64, static_cast<std::uintptr_t>(align));
      std::memset(memory.data(), 0xff, static_cast<std::size_t>(bytes));
      EXPECT_FALSE(memory.damage());
      for (const std::int64_t at :
           {std::int64_t{-1}, -Memory::kGuardBytes, bytes, bytes + Memory::kGuardBytes - 1}) {
        memory.data()[at] ^= std::byte{1};
        const auto damage = memory.damage();
        ASSERT_TRUE(damage) << at;
        EXPECT_EQ(damage->offset, at);
        EXPECT_EQ(damage->seen, damage->expected ^ 1);
        memory.data()[at] ^= std::byte{1};
      }
      EXPECT_FALSE(memory.damage());
    }
  }
}

TEST(Memory, HolesFaultAndTheOtherSideIsWatched) {
  for (const std::int64_t bytes : {1, 100, 4096, 5000}) {
    Memory before(bytes, Placement::kBeforeHole);
    EXPECT_EQ(address(before.data() + bytes) % 4096, 0U);
    EXPECT_TRUE(before.hole_contains(before.data() + bytes));
    EXPECT_FALSE(before.hole_contains(before.data() + bytes - 1));
    EXPECT_DEATH(static_cast<volatile std::byte*>(before.data())[bytes] = std::byte{}, "");
    Memory after(bytes, Placement::kAfterHole);
    EXPECT_EQ(address(after.data()) % 4096, 0U);
    EXPECT_TRUE(after.hole_contains(after.data() - 1));
    EXPECT_DEATH(static_cast<volatile std::byte*>(after.data())[-1] = std::byte{}, "");
    if (bytes % 4096 == 0) continue;
    before.data()[-1] ^= std::byte{1};
    EXPECT_EQ(before.damage().value().offset, -1);
    after.data()[bytes] ^= std::byte{1};
    EXPECT_EQ(after.damage().value().offset, bytes);
  }
}

TEST(Memory, SparseCostsOnlyWhatIsTouched) {
  constexpr std::int64_t kBytes = std::int64_t{300} << 30;
  Memory memory(kBytes, Placement::kSparse);
  EXPECT_TRUE(memory.touched().empty());
  memory.data()[kBytes - 1] = std::byte{7};
  memory.data()[std::int64_t{5} << 32] = std::byte{8};
  const auto touched = memory.touched();
  ASSERT_EQ(touched.size(), 2U);
  EXPECT_LE(touched[0].second - touched[0].first, 4096);
  EXPECT_EQ(touched[1].second, kBytes);

  Memory twin(kBytes, Placement::kSparse);
  copy_memory(twin, memory);
  EXPECT_FALSE(first_difference(memory, twin));
  twin.data()[std::int64_t{9} << 32] = std::byte{3};  // touched in one of the two only
  EXPECT_EQ(first_difference(memory, twin).value().offset, std::int64_t{9} << 32);
  EXPECT_EQ(first_difference(twin, memory).value().seen, 3);
  twin.data()[std::int64_t{9} << 32] = std::byte{0};
  EXPECT_FALSE(first_difference(memory, twin));
  twin.forget();
  EXPECT_TRUE(twin.touched().empty());
  EXPECT_EQ(first_difference(memory, twin).value().seen, 8);
}

TEST(Memory, FoldedMemoryKnowsUnusedPages) {
  constexpr std::int64_t kPage = 4096;
  Memory memory(40 * kPage, Placement::kFolded, 0, 8 * kPage);
  memory.data()[3] = std::byte{9};
  EXPECT_EQ(memory.data()[8 * kPage + 3], std::byte{9});
  EXPECT_EQ(memory.data()[39 * kPage - 7 * kPage + 3], std::byte{9});
  memory.forget();
  if (!memory.first_unused()) GTEST_SKIP() << "this kernel does not show its page table";
  for (std::int64_t page = 0; page < 40; ++page) {
    EXPECT_EQ(memory.first_unused(), page * kPage);
    memory.data()[page * kPage + 17] = std::byte{1};
  }
  EXPECT_FALSE(memory.first_unused());
  EXPECT_EQ(memory.data()[3], std::byte{9});
}

TEST(Memory, DifferencesAndBytesThatMayDiffer) {
  Memory a(200'000, Placement::kGuarded);
  Memory b(200'000, Placement::kGuarded, 5);
  fill_random(a.data(), a.size(), 1);
  copy_memory(b, a);
  EXPECT_FALSE(first_difference(a, b));
  for (const std::int64_t at : {0, 65535, 65536, 131'071, 199'999}) {
    a.data()[at] ^= std::byte{0x80};
    const auto found = first_difference(a, b);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->offset, at);
    EXPECT_EQ(found->seen, found->expected ^ 0x80);
    std::vector<std::uint8_t> ignore(200'000);
    ignore[static_cast<std::size_t>(at)] = 1;
    EXPECT_FALSE(first_difference(a, b, ignore));
    a.data()[at] ^= std::byte{0x80};
  }
}

// An arena of the heap that counts.
class CountingArena final : public Arena {
 public:
  CountingArena() { set_arena(this); }
  ~CountingArena() override { set_arena(nullptr); }
  std::byte* allocate(std::int64_t bytes) override {
    if (bytes > most) return nullptr;
    held += bytes;
    return static_cast<std::byte*>(std::aligned_alloc(4096, static_cast<std::size_t>(bytes)));
  }
  void release(std::byte* data, std::int64_t bytes) override {
    held -= bytes;
    std::free(data);
  }
  std::int64_t held = 0, most = 1 << 20;
};

TEST(Memory, InAnArenaCanariesTakeThePlaceOfHoles) {
  CountingArena arena;
  for (const Placement placement : {Placement::kGuarded, Placement::kBeforeHole, Placement::kAfterHole}) {
    for (const std::int64_t bytes : {0, 1, 100, 4096, 5000}) {
      Memory memory(bytes, placement, placement == Placement::kGuarded ? 7 : 0);
      EXPECT_GE(arena.held, bytes + 2 * Memory::kGuardBytes);
      // At the same addresses as beside a hole.
      const std::byte* edge = placement == Placement::kBeforeHole ? memory.data() + bytes : memory.data();
      EXPECT_EQ(address(edge) % 4096, placement == Placement::kGuarded ? 7U : 0U);
      std::memset(memory.data(), 0xff, static_cast<std::size_t>(bytes));
      EXPECT_FALSE(memory.damage());
      for (const std::int64_t at :
           {std::int64_t{-1}, -Memory::kGuardBytes, bytes, bytes + Memory::kGuardBytes - 1}) {
        memory.data()[at] ^= std::byte{1};
        ASSERT_TRUE(memory.damage()) << at;
        EXPECT_EQ(memory.damage()->offset, at);
        memory.data()[at] ^= std::byte{1};
      }
      const Memory moved = std::move(memory);
      EXPECT_FALSE(moved.damage());
    }
  }
  EXPECT_EQ(arena.held, 0);
  EXPECT_THROW(Memory(2 << 20, Placement::kGuarded), std::bad_alloc);
  EXPECT_THROW(Memory(100, Placement::kSparse), CaseError);
  EXPECT_THROW(Memory(100, Placement::kFolded), CaseError);
  // What was made before or outside of an arena goes back to where it came from.
  Memory inside(100, Placement::kGuarded);
  set_arena(nullptr);
  {
    Memory outside(100, Placement::kGuarded);
    std::swap(inside, outside);
  }
  EXPECT_EQ(arena.held, 0);
}

TEST(Random, BytesNoticeShifts) {
  std::vector<std::byte> bytes(5000);
  fill_random(bytes.data(), 5000, 3);
  for (std::int64_t distance : {1, 2, 8, 16, 32, 64, 512, 4096}) {
    int equal = 0;
    for (std::int64_t i = 0; i + distance < 5000; ++i) {
      equal += bytes[static_cast<std::size_t>(i)] == bytes[static_cast<std::size_t>(i + distance)] ? 1 : 0;
    }
    EXPECT_LT(equal, 60) << distance;  // one in 256 is chance
  }
}

TEST(Instance, PoisonsTouchedPagesOfSparseOutputs) {
  const Case what("x");
  Instance instance(what);
  const std::size_t tensor =
      instance.add_tensor("out", true, DType::kUInt8, std::vector<std::int64_t>{std::int64_t{1} << 33}, "");
  instance.seal();
  const auto oracle = [&] {
    instance.expected_array(tensor).data[(std::int64_t{1} << 32) + 5] = std::byte{1};
  };
  oracle();
  EXPECT_TRUE(instance.poison_touched());
  oracle();
  const Storage& storage = instance.storages[0];
  EXPECT_EQ(first_difference(storage.live, storage.expected).value().offset, (std::int64_t{1} << 32) + 5);
  EXPECT_NE(storage.live.data()[(std::int64_t{1} << 32) + 6], std::byte{0});
  instance.reset();
  EXPECT_FALSE(first_difference(storage.live, storage.initial));
}

}  // namespace
}  // namespace kvferry::harness
