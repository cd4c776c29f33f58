// SPDX-License-Identifier: Apache-2.0
//
// Kernels with one defect each: every one must be found, by its kind and at its place.
#include <string>

#include "tests/cuda_emulation/emulation_testing.hpp"
#include "tests/cuda_emulation/stream.hpp"

namespace kvferry::emulation {
namespace {

using internal::cuda::DevicePtr;

constexpr std::uint32_t kBlock = 64;  // threads

// What all kernels here have: 64 threads, a little shared memory, and an array for each block.
struct Tiny {
  struct Params {
    DevicePtr<std::uint32_t> out;       // [blocks, 64]
    DevicePtr<const std::uint32_t> in;  // [64]
  };
  static constexpr std::uint32_t kThreads = kBlock;
  template <class X>
  struct Shared {
    internal::cuda::SharedArray<X, std::uint32_t, kBlock> words;
    internal::cuda::SharedArray<X, Vec16, kBlock> vectors;
    typename X::Mbarrier full;
  };
  template <class X>
  KVFERRY_KERNEL_FN static void put(X& x, const Params& p, std::uint32_t value) {
    x.store(p.out.get() + x.block() * kBlock + x.thread(), value);
  }
};

// The `in` of these launches.
std::vector<std::uint32_t> numbers() {
  std::vector<std::uint32_t> all(kBlock);
  for (std::uint32_t i = 0; i < kBlock; ++i) all[i] = i;
  return all;
}

// The first finding of `orders` launches.
template <class K>
std::optional<Finding> find(std::uint32_t blocks, const std::vector<LaunchOptions>& orders = all_orders()) {
  const Buffer<std::uint32_t> in(numbers()), out(std::size_t{blocks} * kBlock);
  for (const LaunchOptions& options : orders) {
    const Report report = launch<K>(blocks, {out.device(), in.device()}, options);
    if (report.finding) return report.finding;
  }
  return std::nullopt;
}

// Found with this kind, in this file, with `text` in the sentence. Seen already in the forward order unless
// only some orders show it.
enum class Seen { kInEveryOrder, kInSomeOrder };
template <class K>
void expect_found(FindingKind kind, const std::string& text, std::uint32_t blocks = 1,
                  Seen seen = Seen::kInEveryOrder) {
  const auto check = [&](const std::vector<LaunchOptions>& orders) {
    const auto finding = find<K>(blocks, orders);
    ASSERT_TRUE(finding) << orders.front();
    EXPECT_EQ(to_string(finding->kind), std::string(to_string(kind))) << finding->text;
    EXPECT_NE(finding->text.find("emulation_findings_test.cpp:"), std::string::npos) << finding->text;
    EXPECT_NE(finding->text.find(text), std::string::npos) << finding->text;
  };
  if (seen == Seen::kInSomeOrder) return check(all_orders());
  for (const LaunchOptions& options : all_orders()) check({options});
}

// ---- races

struct MissingBarrier : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    sh.words.set(x.thread(), 0);
    x.sync();
    sh.words.set(x.thread(), x.thread());
    put(x, p, sh.words[63 - x.thread()]);
  }
};
TEST(EmulationFinds, MissingBarrier) {
  expect_found<MissingBarrier>(FindingKind::kRace, "with nothing that orders them");
}

struct WarpInsteadOfBlock : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    sh.words.set(x.thread(), 0);
    x.sync();
    sh.words.set(x.thread(), x.thread());
    x.sync_warp();
    put(x, p, sh.words[x.thread() ^ 32U]);
  }
};
TEST(EmulationFinds, WarpBarrierBetweenWarps) {
  expect_found<WarpInsteadOfBlock>(FindingKind::kRace, "with nothing that orders them");
}

struct LockStep : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    sh.words.set(x.thread(), 0);
    x.sync_warp();
    sh.words.set(x.thread(), x.thread());
    put(x, p, sh.words[x.thread() ^ 1U]);
  }
};
TEST(EmulationFinds, WarpsThatRelyOnLockStep) {
  expect_found<LockStep>(FindingKind::kRace, "with nothing that orders them");
}

struct SharedCounter : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (x.thread() == 0) sh.words.set(0, 0);
    x.sync();
    sh.words.set(0, sh.words[0] + 1);
    x.sync();
    put(x, p, sh.words[0]);
  }
};
TEST(EmulationFinds, CounterInSharedMemory) {
  expect_found<SharedCounter>(FindingKind::kRace, "");
}

struct GlobalCounter : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    if (x.thread() == 0) x.store(p.out.get(), x.load(p.out.get()) + 1);
  }
};
TEST(EmulationFinds, CounterOfAllBlocks) {
  expect_found<GlobalCounter>(FindingKind::kRace, "another block's thread 0", 2);
}

struct CollidingBlocks : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    // The same value everywhere: no result would show it.
    x.store(p.out.get() + x.block() * (kBlock - 1) + x.thread(), 5U);
  }
};
TEST(EmulationFinds, BlocksThatCollideWithTheSameBytes) {
  expect_found<CollidingBlocks>(FindingKind::kRace, "another block's thread", 2);
}

// Bytes of one word that threads of two blocks write: only byte 63 is written twice.
struct CollidingBytes : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    auto* const bytes = reinterpret_cast<std::uint8_t*>(p.out.get());
    x.store(bytes + x.block() * (kBlock - 1) + x.thread(), std::uint8_t{1});
  }
};
TEST(EmulationFinds, BlocksThatCollideInOneByte) {
  expect_found<CollidingBytes>(FindingKind::kRace, "another block", 2);
}

struct EarlyAtomic : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (x.thread() == 0) sh.words.set(0, 0);
    x.sync();
    x.atomic_add(sh.words, 0, 1U);
    put(x, p, sh.words[0]);
  }
};
TEST(EmulationFinds, AtomicsReadBeforeTheBarrier) {
  expect_found<EarlyAtomic>(FindingKind::kRace, "");
}

struct AtomicAndPlain : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (x.thread() == 0) sh.words.set(0, 0);
    x.sync();
    if (x.thread() == 0) x.atomic_add(sh.words, 0, 1U);
    if (x.thread() == 40) put(x, p, sh.words[0]);
  }
};
TEST(EmulationFinds, PlainReadOfAnAtomicWord) {
  expect_found<AtomicAndPlain>(FindingKind::kRace, "with nothing that orders them");
}

// A flag without release and acquire orders nothing.
struct RelaxedFlag : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (x.thread() < 2) sh.words.set(x.thread(), 0);
    x.sync();
    if (x.thread() == 0) {
      sh.words.set(1, 42);
      x.atomic_add(sh.words, 0, 1U);
    }
    if (x.thread() == 40) {
      while (x.atomic_add(sh.words, 0, 0U) == 0) {
      }
      put(x, p, sh.words[1]);
    }
  }
};
TEST(EmulationFinds, DataBehindARelaxedFlag) {
  expect_found<RelaxedFlag>(FindingKind::kRace, "reads what was written by thread 0");
}

// The release comes before the data.
struct EarlyRelease : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    std::uint32_t* const flag = p.out.get() + 2 * kBlock;
    std::uint32_t* const data = flag + 1;
    if (x.thread() != 0 || x.block() == 2) return;
    if (x.block() == 0) {
      x.store_release(flag, 1);
      x.store(data, 7U);
    } else if (x.load_acquire(flag) == 1) {
      put(x, p, x.load(data));
    }
  }
};
TEST(EmulationFinds, DataBehindTheRelease) {
  // Forward alone: in other orders it is found where it is written, with no release in between.
  const auto finding = find<EarlyRelease>(3, {{.order = Order::kForward}});
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->kind, FindingKind::kRace);
  EXPECT_NE(finding->text.find("reads what was written by another block's thread 0"), std::string::npos)
      << finding->text;
}

// ---- addresses

struct OverRead : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    put(x, p, x.load_once(p.in.get() + x.thread() + 1));
  }
};
TEST(EmulationFinds, OverRead) {
  expect_found<OverRead>(FindingKind::kOutOfBounds, "reads 4 bytes outside every buffer of the device");
}

struct WrongPredicate : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    const std::uint32_t rows = 10;
    for (std::uint32_t i = x.thread(); i <= rows * 6 + 4; i += kBlock) x.store(p.out.get() + i, i);
  }
};
TEST(EmulationFinds, WrongPredicate) {
  expect_found<WrongPredicate>(FindingKind::kOutOfBounds,
                               "writes 4 bytes outside every buffer of the device");
}

struct SharedIndex : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params&) {
    sh.words.set(x.thread() + 1, 0);
  }
};
TEST(EmulationFinds, IndexOfASharedArray) {
  expect_found<SharedIndex>(FindingKind::kOutOfBounds, "index 64 of a shared array of 64");
}

struct Misaligned : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    const auto* const vectors = reinterpret_cast<const Vec16*>(p.in.get() + 1);
    if (x.thread() < 8) put(x, p, x.load_once(vectors + x.thread()).x);
  }
};
TEST(EmulationFinds, MisalignedVector) {
  expect_found<Misaligned>(FindingKind::kMisaligned, "not a multiple of 16");
}

// 6 GiB in 3 blocks: the third starts at 4 GiB, which 32 bits take for the first.
struct NarrowIndex {
  struct Params {
    DevicePtr<std::uint32_t> out;
  };
  static constexpr std::uint32_t kThreads = 32;
  template <class X>
  struct Shared {};
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    const std::uint32_t byte = (x.block() << 31) + x.thread() * 4;
    x.store(p.out.get() + byte / 4, 1U);
  }
};
TEST(EmulationFinds, IndexOf32BitsAbove4Gib) {
  const harness::Memory memory(std::int64_t{6} << 30, harness::Placement::kSparse);
  const RegisteredRange range(memory.data(), static_cast<std::size_t>(memory.size()));
  const auto out = DevicePtr<std::uint32_t>::at(reinterpret_cast<std::uint32_t*>(memory.data()));
  const Report report = launch<NarrowIndex>(3, {out});
  ASSERT_TRUE(report.finding);
  EXPECT_EQ(report.finding->kind, FindingKind::kRace) << report.finding->text;
}

struct HostMemory : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    std::uint32_t word = 5;
    put(x, p, x.load(&word));
  }
};
TEST(EmulationFinds, MemoryThatIsNotTheDevices) {
  expect_found<HostMemory>(FindingKind::kOutOfBounds, "outside every buffer of the device");
}

TEST(EmulationFinds, BufferFreedBeforeTheStreamRan) {
  const Buffer<std::uint32_t> out(kBlock);
  Stream stream;
  {
    const Buffer<std::uint32_t> in(kBlock + 1);
    stream.launch<OverRead>(1, {out.device(), in.device()});
  }
  const Report report = stream.synchronize();
  ASSERT_TRUE(report.finding);
  EXPECT_EQ(report.finding->kind, FindingKind::kOutOfBounds) << report.finding->text;
}

struct NeverWritten : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (x.block() == 0 || x.thread() != 5) sh.words.set(x.thread(), 0);
    x.sync();
    put(x, p, sh.words[63 - x.thread()]);
  }
};
TEST(EmulationFinds, SharedWordThatOnlyAnotherBlockWrote) {
  expect_found<NeverWritten>(FindingKind::kUninitialised, "never wrote", 2);
}

struct NonCoherent : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    put(x, p, x.thread());
    x.sync();
    x.load_once(p.out.get() + x.block() * kBlock + (x.thread() ^ 1U));
  }
};
TEST(EmulationFinds, NonCoherentReadOfWhatTheLaunchWrote) {
  expect_found<NonCoherent>(FindingKind::kNonCoherentRead, "reads without coherence");
}

struct WrittenAfterNonCoherent : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    const std::uint32_t v = x.load_once(p.out.get() + x.block() * kBlock + x.thread());
    put(x, p, v + 1);
  }
};
TEST(EmulationFinds, WritesWhatWasReadWithoutCoherence) {
  expect_found<WrittenAfterNonCoherent>(FindingKind::kNonCoherentRead,
                                        "overwrites what was read without coherence");
}

// ---- barriers and warps

struct HalfABlock : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    if (x.thread() < 32) x.sync();
    put(x, p, 1);
  }
};
TEST(EmulationFinds, BarrierOfHalfABlock) {
  expect_found<HalfABlock>(FindingKind::kDivergentBarrier, "has returned without this barrier");
}

struct TwoBarriers : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    if (x.thread() < 32) {  // NOLINT(bugprone-branch-clone)
      x.sync();
    } else {
      x.sync();
    }
    put(x, p, 1);
  }
};
TEST(EmulationFinds, DivergentBarrier) {
  expect_found<TwoBarriers>(FindingKind::kDivergentBarrier, "at another barrier");
}

struct FullMaskInABranch : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    if (x.lane() < 16) put(x, p, x.ballot(true));
  }
};
TEST(EmulationFinds, FullMaskInABranch) {
  expect_found<FullMaskInABranch>(FindingKind::kWarpMask, "which has returned");
}

struct MaskWithoutItsCallers : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    put(x, p, x.shfl(x.thread(), 3, 0xffff));
  }
};
TEST(EmulationFinds, MaskWithoutItsCallers) {
  expect_found<MaskWithoutItsCallers>(FindingKind::kWarpMask, "is not in the mask of its own operation");
}

struct SourceOutsideTheMask : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    if (x.lane() < 16) put(x, p, x.shfl(x.thread(), 20, 0xffff));
  }
};
TEST(EmulationFinds, ShuffleFromALaneOutsideTheMask) {
  expect_found<SourceOutsideTheMask>(FindingKind::kWarpMask, "reads lane 20, which is not in the mask");
}

struct BarrierAgainstWarp : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params&) {
    if (x.lane() == 7) {
      x.sync();
    } else {
      x.sync_warp();
    }
  }
};
TEST(EmulationFinds, Deadlock) {
  expect_found<BarrierAgainstWarp>(FindingKind::kDeadlock, "waits for its warp at");
}

struct NobodySetsTheFlag : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>&, const Params& p) {
    x.store_release(p.out.get(), 0);
    while (x.load_acquire(p.out.get()) == 0) {
    }
  }
};
TEST(EmulationFinds, LoopWithoutEnd) {
  const auto finding = find<NobodySetsTheFlag>(1, {{.most_accesses = 100000}});
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->kind, FindingKind::kDeadlock);
  EXPECT_NE(finding->text.find("still running after 100000 accesses"), std::string::npos) << finding->text;
}

// ---- asynchronous copies

struct NoWait : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    const auto* const vectors = reinterpret_cast<const Vec16*>(p.in.get());
    if (x.thread() >= 16) return;
    x.copy_async(sh.vectors, x.thread(), vectors + x.thread());
    x.copy_async_commit();
    x.template copy_async_wait<1>();  // all but the last: this one
    put(x, p, sh.vectors[x.thread()].x);
  }
};
TEST(EmulationFinds, AsyncCopyReadTooEarly) {
  expect_found<NoWait>(FindingKind::kAsyncCopy, "is on its way");
}

struct NoBarrierBehindWait : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    const auto* const vectors = reinterpret_cast<const Vec16*>(p.in.get());
    if (x.thread() < 16) x.copy_async(sh.vectors, x.thread(), vectors + x.thread());
    x.copy_async_commit();
    x.template copy_async_wait<0>();
    x.sync_warp();
    if (x.thread() >= 48) put(x, p, sh.vectors[x.thread() - 48].x);
  }
};
TEST(EmulationFinds, AsyncCopyOfAnotherThreadWithoutBarrier) {
  // Which of the three it is depends on who comes first.
  for (const LaunchOptions& options : all_orders()) EXPECT_TRUE(find<NoBarrierBehindWait>(1, {options}));
}

struct BulkBase : Tiny {
  static constexpr std::uint32_t kBytes = kBlock * 4;
  template <class X>
  KVFERRY_KERNEL_FN static void start(X& x, Shared<X>& sh, const Params& p, std::uint32_t announced) {
    x.mbar_arrive_expect(sh.full, announced);
    x.bulk_load(sh.vectors, 0, reinterpret_cast<const Vec16*>(p.in.get()), kBytes, sh.full);
  }
};

struct NoMbarrierWait : BulkBase {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (x.thread() == 0) {
      x.mbar_init(sh.full, 1);
      start(x, sh, p, kBytes);
    }
    x.sync();
    if (x.thread() < 16) put(x, p, sh.vectors[x.thread()].x);
  }
};
TEST(EmulationFinds, BulkCopyReadTooEarly) {
  // A race where the copy happened to be complete.
  for (const LaunchOptions& options : all_orders()) {
    const auto finding = find<NoMbarrierWait>(1, {options});
    ASSERT_TRUE(finding) << options;
    EXPECT_TRUE(finding->kind == FindingKind::kAsyncCopy || finding->kind == FindingKind::kRace)
        << finding->text;
  }
}

struct MbarrierSeenTooEarly : BulkBase {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (x.thread() == 0) {
      x.mbar_init(sh.full, 1);
      start(x, sh, p, kBytes);
    }
    x.mbar_wait(sh.full, 0);
  }
};
TEST(EmulationFinds, MbarrierBeforeItsInitialisationIsVisible) {
  for (const LaunchOptions& options : all_orders()) {
    const auto finding = find<MbarrierSeenTooEarly>(1, {options});
    ASSERT_TRUE(finding) << options;
    EXPECT_TRUE(finding->kind == FindingKind::kRace || finding->kind == FindingKind::kUninitialised)
        << finding->text;
  }
}

struct TooManyBytesAnnounced : BulkBase {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (x.thread() == 0) {
      x.mbar_init(sh.full, 1);
      start(x, sh, p, kBytes + 16);
    }
    x.sync();
    x.mbar_wait(sh.full, 0);
  }
};
TEST(EmulationFinds, MbarrierThatWaitsForBytesThatNobodySends) {
  expect_found<TooManyBytesAnnounced>(FindingKind::kDeadlock, "waits for an mbarrier at");
}

struct TooManyArrivals : BulkBase {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (x.thread() == 0) {
      x.mbar_init(sh.full, 1);
      start(x, sh, p, kBytes);
      x.mbar_arrive_expect(sh.full, 0);
    }
  }
};
TEST(EmulationFinds, MoreArrivalsThanTheMbarrierCounts) {
  expect_found<TooManyArrivals>(FindingKind::kMbarrier, "has all its arrivals", 1, Seen::kInSomeOrder);
}

struct OverwrittenTooEarly : BulkBase {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (x.thread() == 0) x.mbar_init(sh.full, 1);
    x.sync();
    for (std::uint32_t round = 0; round < 2; ++round) {
      if (x.thread() == 0) start(x, sh, p, kBytes);
      x.mbar_wait(sh.full, round);
      if (x.thread() < 16) put(x, p, sh.vectors[x.thread()].x);
    }
  }
};
TEST(EmulationFinds, BulkCopyOverWhatOthersStillRead) {
  for (const LaunchOptions& options : all_orders()) EXPECT_TRUE(find<OverwrittenTooEarly>(1, {options}));
}

struct Clean : Tiny {
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    sh.words.set(x.thread(), x.load_once(p.in.get() + x.thread()));
    x.sync();
    put(x, p, sh.words[63 - x.thread()]);
  }
};

// The next launch on the same machine starts afresh.
TEST(EmulationFinds, NothingOfAnEarlierLaunch) {
  EXPECT_TRUE(find<HalfABlock>(1));
  EXPECT_TRUE(find<MissingBarrier>(1));
  EXPECT_FALSE(find<Clean>(2));
}

}  // namespace
}  // namespace kvferry::emulation
