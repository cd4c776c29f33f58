// SPDX-License-Identifier: Apache-2.0
//
// Happens-before between the threads of a launch, word by word. Two accesses are in order when they are of
// the same thread, when a barrier of their block lies between them (phases), or when a chain of warp
// operations, mbarriers or releases and acquires does (vector clocks). Blocks have no order but through
// releases and acquires.
#pragma once

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

// Who touched a word. Phases count the barriers of the whole launch, from 1.
struct Stamp {
  std::uint32_t phase = 0;
  std::uint32_t clock = 0;
  std::uint32_t line = 0;
  std::uint16_t thread = 0;
  Access access = Access::kPlain;
  std::uint8_t bytes = 0;  // of the word, one bit each
  const char* file = nullptr;
};

// Four bytes of global memory, or one element of a shared array.
struct Cell {
  Stamp writer;
  std::array<Stamp, 2> readers;    // two are enough to have one of another thread
  std::uint8_t block_bytes = 0;    // written by any thread of the last writer's block
  std::uint8_t earlier_bytes = 0;  // written by blocks before that one
  bool in_flight = false;          // an asynchronous copy is on its way here
};

// Throws away what runs, with a finding (see Machine).
class Failure {
 public:
  virtual void fail(FindingKind kind, Location at, const std::string& text) = 0;

 protected:
  ~Failure() = default;
};

class Checker {
 public:
  Checker(Failure& failure, std::uint32_t threads, std::uint64_t seed);
  ~Checker();
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

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
    std::size_t bytes = 0;
  };

  bool of_block(const Stamp& s) const { return s.phase >= block_phase_; }
  bool ordered(const Stamp& s) const;
  bool conflicts(const Stamp& s, std::uint8_t bytes, Access access) const;
  Stamp stamp(Location at, Access access, std::uint8_t bytes) const;
  void add_reader(Cell& cell, const Stamp& s);
  void set_writer(Cell& cell, const Stamp& s);
  void check_writer(const Cell& cell, std::uint8_t bytes, Access access, Location at, const char* verb);
  void check_readers(const Cell& cell, std::uint8_t bytes, Access access, Location at, const char* verb);
  void race(const std::string& what, Location at, const Stamp& other);
  Shadow& shadow(const void* p, std::size_t bytes, std::size_t align, Location at, const char* verb);
  template <class F>
  void for_each_word(const Shadow& shadow, const void* p, std::size_t bytes, F f);
  std::uint32_t& clock_of(std::uint32_t thread, std::uint32_t other) {
    return clocks_[std::size_t{thread} * threads_ + other];
  }

  Failure& failure_;
  std::uint32_t threads_;
  std::uint32_t me_ = 0;
  std::uint32_t phase_ = 0;
  std::uint32_t block_phase_ = 0;  // the first of this block
  bool wide_ = false;              // somebody knows more of this phase than the lanes of its warp
  std::vector<std::uint32_t> own_clock_;
  std::vector<std::uint32_t> clocks_;      // threads x threads: what each knows of this phase
  std::vector<std::vector<Known>> known_;  // of other blocks, by thread
  bool any_known_ = false;
  std::unordered_map<const void*, Release> releases_;
  std::vector<Shadow> shadows_;
  std::size_t last_shadow_ = 0;
  std::uint64_t random_;
};

}  // namespace kvferry::emulation
