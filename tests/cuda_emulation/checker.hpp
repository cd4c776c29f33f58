// SPDX-License-Identifier: Apache-2.0
//
// Happens-before between the threads of a launch, word by word. Two accesses are in order when they are of
// the same thread, when a barrier of their block lies between them (phases), or when a chain of warp
// operations, mbarriers or releases and acquires does (vector clocks). Blocks have no order but through
// releases and acquires.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/cuda_emulation/finding.hpp"
#include "tests/cuda_emulation/regions.hpp"

namespace kvferry::emulation {

enum class Access : std::uint8_t { kPlain, kAtomic, kOnce };

// Who touched a word. Phases count the barriers of all launches, from 1.
struct Stamp {
  std::uint32_t phase = 0;
  std::uint32_t clock = 0;
  std::int32_t file = 0;  // see file_offset()
  std::uint16_t line = 0;
  std::uint16_t who = 0;  // by bits: 10 of the thread, 2 of the access, and one for each byte of the word

  static constexpr unsigned kThreadBits = 10, kAccessBits = 2;
  std::uint32_t thread() const { return who & ((1U << kThreadBits) - 1); }
  Access access() const { return static_cast<Access>(who >> kThreadBits & ((1U << kAccessBits) - 1)); }
  std::uint8_t bytes() const { return static_cast<std::uint8_t>(who >> (kThreadBits + kAccessBits)); }
};
static_assert(sizeof(Stamp) == 16);

// Four bytes of global memory, or one element of a shared array. One line of the cache: most of the time of
// an access goes to waiting for it.
struct alignas(64) Cell {
  Stamp writer;
  std::array<Stamp, 2> readers;    // two are enough to have one of another thread
  std::uint8_t block_bytes = 0;    // written by any thread of the last writer's block
  std::uint8_t earlier_bytes = 0;  // written by blocks before that one
  bool in_flight = false;          // an asynchronous copy is on its way here
  std::uint32_t launch = 0;        // of global memory: the one that all of this is of
};
static_assert(sizeof(Cell) == 64);

// Throws away what runs, with a finding (see Machine).
class Failure {
 public:
  virtual void fail(FindingKind kind, Location at, const std::string& text) = 0;

 protected:
  ~Failure() = default;
};

// Of one launch after the other: what it keeps of memory costs more to get than most launches take.
class Checker {
 public:
  explicit Checker(Failure& failure);
  ~Checker();
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  void start_launch(std::uint32_t threads, std::uint64_t seed);
  void end_launch();
  // Phases are going to end: time for another one, and for other cells of shared memory. Far before they do,
  // so that long tests come here.
  bool worn_out() const { return phase_ >> 16 != 0; }

  // On whose behalf the next accesses are.
  void act_as(std::uint32_t thread) { me_ = thread; }

  // Order.
  void start_block();
  void barrier();
  void join_lanes(std::uint32_t first, std::uint32_t mask);
  // What the thread knows, kept and added to somebody else's knowledge.
  using Clocks = std::vector<std::uint32_t>;
  void publish(Clocks& to);
  void join(const Clocks& from);
  void publish_own(Clocks& to);  // the thread's own accesses only
  void release(const void* word);
  void acquire(const void* word);

  // Shared memory.
  void read(Cell& cell, Location at);
  void write(Cell& cell, Location at);
  void update(Cell& cell, Location at);  // atomically
  void start_copy(Cell& cell, Location at);
  void end_copy(Cell& cell, Location at);  // the bytes are there, `in_flight` stays until they are waited for

  // Global memory.
  void read(const void* p, std::size_t bytes, std::size_t align, Access access, Location at);
  void write(const void* p, std::size_t bytes, std::size_t align, Access access, Location at);
  void update(const void* p, std::size_t bytes, Location at);

 private:
  // A block whose accesses are known: all before phase `last`, and in it those up to the clock of each
  // thread.
  struct Known {
    std::uint32_t first, last;
    Clocks clocks;
  };
  struct Release {
    Known own;
    std::vector<Known> others;
  };
  struct Shadow {
    Region region;
    Cell* cells = nullptr;
    std::size_t mapped_bytes = 0;  // 0: the cells are some of kept_
  };

  bool of_block(const Stamp& s) const { return s.phase >= block_phase_; }
  // The clock up to which this thread knows all that `other` did in this phase.
  std::uint32_t known_clock(std::uint32_t other) const {
    if (me_ / kLanes == other / kLanes)
      return std::max(whole_warp_[other], lanes_[std::size_t{me_} * kLanes + other % kLanes]);
    return wide_ ? rows_[std::size_t{me_} * threads_ + other] : 0;
  }
  bool ordered(const Stamp& s) const {
    if (!of_block(s)) return any_known_ && ordered_by_release(s);
    return s.phase < phase_ || s.thread() == me_ || known_clock(s.thread()) >= s.clock;
  }
  bool ordered_by_release(const Stamp& s) const;
  bool conflicts(const Stamp& s, std::uint8_t bytes, Access access) const {
    const bool atomics = access == Access::kAtomic && s.access() == Access::kAtomic;
    return (s.bytes() & bytes) != 0 && !atomics && !ordered(s);
  }
  Stamp stamp(Location at, Access access, std::uint32_t bytes = kWholeWord) const {
    const std::uint32_t kind = bytes << Stamp::kAccessBits | static_cast<std::uint32_t>(access);
    return {phase_, own_clock_[me_], file_offset(at.file), static_cast<std::uint16_t>(at.line),
            static_cast<std::uint16_t>(kind << Stamp::kThreadBits | me_)};
  }
  // The names of files are constants of one program, less than 2 GiB from each other.
  static constexpr char kUnknownFile[] = "?";
  static std::int32_t file_offset(const char* file) {
    return static_cast<std::int32_t>(reinterpret_cast<std::intptr_t>(file) -
                                     reinterpret_cast<std::intptr_t>(kUnknownFile));
  }
  static Location place(const Stamp& s) {
    return {reinterpret_cast<const char*>(reinterpret_cast<std::intptr_t>(kUnknownFile) + s.file), s.line};
  }
  void add_reader(Cell& cell, const Stamp& s);
  void set_writer(Cell& cell, const Stamp& s) const;
  void check_writer(const Cell& cell, std::uint8_t bytes, Access access, Location at, const char* verb);
  void check_readers(const Cell& cell, std::uint8_t bytes, Access access, Location at, const char* verb);
  void check_shared(const Cell& cell, Location at, const char* verb);
  [[noreturn, gnu::cold]] void fail_shared(const Cell& cell, Location at, const char* verb);
  Shadow& shadow(std::size_t& last, const void* p, std::size_t bytes, std::size_t align, Location at,
                 const char* verb);
  template <class F>
  void for_each_word(const Shadow& shadow, const void* p, std::size_t bytes, F f) const;
  [[noreturn, gnu::cold]] void fail(FindingKind kind, Location at, const std::string& text);
  [[noreturn, gnu::cold]] void race(const char* verb, const char* what, Location at, const Stamp& other);
  [[noreturn, gnu::cold]] void fail_non_coherent(const char* verb, const char* what, Location at,
                                                 const Stamp& other);
  [[noreturn, gnu::cold]] void fail_shadow(const void* p, std::size_t bytes, std::size_t align, Location at,
                                           const char* verb);
  void join_rows(std::uint32_t first, std::uint32_t mask);

  static constexpr std::uint32_t kLanes = internal::cuda::kWarp;
  static constexpr std::uint8_t kWholeWord = 0xf;
  static constexpr std::uintptr_t kWordBytes = 4;

  Failure& failure_;
  std::uint32_t threads_ = 0;
  std::uint32_t me_ = 0;
  std::uint32_t launch_ = 0;
  std::uint32_t phase_ = 0;
  std::uint32_t block_phase_ = 0;  // the first of this block
  bool wide_ = false;              // somebody knows more of this phase than the lanes of its warp
  bool any_known_ = false;
  std::vector<std::uint32_t> own_clock_;
  // What each knows of this phase. Clocks only rise, so that what is left of other phases says nothing.
  std::vector<std::uint32_t> whole_warp_;  // of each thread: what all lanes of its warp know
  std::vector<std::uint32_t> lanes_;       // threads x 32: of the lanes of its warp
  std::vector<std::uint32_t> rows_;        // threads x threads: of other warps; empty until somebody does
  std::vector<std::vector<Known>> known_;  // of other blocks, by thread
  std::unordered_map<const void*, Release> releases_;
  std::vector<Shadow> shadows_;
  std::size_t last_read_ = 0, last_written_ = 0;  // of shadows_
  Cell* kept_ = nullptr;
  std::uint64_t random_ = 0;
};

}  // namespace kvferry::emulation
