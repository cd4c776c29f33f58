// SPDX-License-Identifier: Apache-2.0
//
// One launch on one thread of the system: a fibre for each CUDA thread of a block, block after block, and a
// scheduler that decides who goes on. The context of a kernel (context.hpp) is the only user of what is
// public here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "harness/random.hpp"
#include "tests/cuda_emulation/checker.hpp"
#include "tests/cuda_emulation/fibre.hpp"
#include "tests/cuda_emulation/finding.hpp"

namespace kvferry::emulation {

class Machine;

// A kernel without its types.
struct Job {
  void (*run)(Machine& machine, std::uint32_t thread, void* shared, const void* params);
  std::shared_ptr<void> (*make_shared)();
  const void* params;
  std::uint32_t threads;
};

enum class WarpOperation : std::uint8_t { kSync, kShuffle, kBallot, kMatch };

struct Mbarrier;
struct AsyncCopy {
  internal::cuda::Vec16* to;
  Cell* cells;
  const internal::cuda::Vec16* from;
  std::uint32_t vectors;
  Location at;
  Mbarrier* mbarrier = nullptr;  // null: counted in groups
  std::uint32_t thread = 0, group = 0;
};

struct Mbarrier {
  std::uint32_t arrivals = 0, pending = 0, parity = 0;
  std::int64_t bytes = 0;  // announced and not yet arrived
  Cell cell;               // its initialisation, as that of a shared word
  Checker::Clocks clocks;
  std::vector<AsyncCopy> landed;
};

class Machine final : public Failure {
 public:
  // The one of this thread of the system.
  static Machine& here();
  // The same, while it runs something.
  static Machine& busy() { return *busy_; }

  Report launch(const Job& job, std::uint32_t blocks, const LaunchOptions& options);

  [[noreturn]] void fail(FindingKind kind, Location at, const std::string& text) override;

  // Called by the thread that runs.
  std::uint32_t block() const { return block_; }
  std::uint32_t blocks() const { return blocks_; }
  std::uint32_t threads() const { return job_.threads; }
  // The checks of an access; others may run before it. An atomic operation gives way: whoever waits for
  // somebody polls with one.
  void read(Cell& cell, Location at);
  void write(Cell& cell, Location at);
  void update(Cell& cell, Location at);
  void read(const void* p, std::size_t bytes, std::size_t align, Access access, Location at);
  void write(const void* p, std::size_t bytes, std::size_t align, Location at);
  void update(const void* p, std::size_t bytes, Location at);
  void acquire(const std::uint32_t* p, Location at);
  void release(const std::uint32_t* p, Location at);
  [[noreturn, gnu::cold]] void fail_index(std::int64_t i, std::uint32_t count, Location at);
  void call_host() {
    if (options_.host) options_.host();
  }
  void sync(Location at);
  // `value` of the lane `source`, or what the operation makes of all values.
  std::uint64_t warp(WarpOperation operation, std::uint32_t mask, std::uint64_t value, std::uint32_t source,
                     Location at);

  // Bytes move as late as they may: those of groups when they are waited for, bulk copies at random moments.
  void start_copy(AsyncCopy copy);
  void commit_copies() { ++threads_[running()].group; }
  void wait_for_copies(std::uint32_t pending);
  void init_mbarrier(Mbarrier& b, std::uint32_t arrivals, Location at);
  void arrive(Mbarrier& b, std::uint32_t bytes, Location at);
  void wait(Mbarrier& b, std::uint32_t parity, Location at);

 private:
  static constexpr std::uint32_t kLanes = internal::cuda::kWarp;
  struct Cancelled {};
  enum class State : std::uint8_t { kReady, kBarrier, kWarp, kMbarrier, kDone };
  struct Thread {
    const Mbarrier* mbarrier = nullptr;
    std::uint32_t parity = 0;
    std::uint32_t group = 0;  // of asynchronous copies
    void* tsan_key = nullptr;
  };
  // What the lanes of a warp ask for. Bits and arrays of lanes, side by side: most of the time of an
  // operation goes to waiting for memory.
  struct Warp {
    std::uint32_t waiting = 0;
    std::uint32_t gone = 0;  // have returned, or do not exist
    // All who wait ask for this.
    bool alike = false;
    WarpOperation operation = WarpOperation::kSync;
    std::uint32_t mask = 0;

    std::array<WarpOperation, kLanes> operations;
    std::array<std::uint32_t, kLanes> masks, sources;
    std::array<std::uint64_t, kLanes> values;
  };

  Machine() : fibres_(turn, this) {}
  static void turn(void* machine, std::uint32_t thread);
  std::uint32_t running() const { return fibres_.running(); }
  std::uint64_t random() { return random_ = harness::mix(random_); }

  void run_block();
  void run_threads();
  void release_barrier();
  [[noreturn]] void deadlock();
  std::uint32_t& ready(std::uint32_t i) {
    const std::uint32_t at = first_ready_ + i;
    return ready_[at < job_.threads ? at : at - job_.threads];
  }
  void make_ready(std::uint32_t thread) {
    states_[thread] = State::kReady;
    ready(ready_count_++) = thread;
  }
  void make_all_ready();
  std::uint32_t take_ready_thread();
  std::uint32_t take_ready();
  // Others run until somebody makes this thread ready and its turn comes.
  void suspend(State state, Location at) {
    const std::uint32_t me = running();
    states_[me] = state;
    places_[me] = at;
    const std::uint32_t next = take_ready();
    if (next == me) return;
    fibres_.pass(next);
    if (cancelled_) unwind();
  }
  [[noreturn, gnu::cold]] static void unwind();
  void give_way();
  void before_access(Location at, bool polls = false) {
    if (++accesses_ > options_.most_accesses) [[unlikely]]
      fail_endless(at);
    if (polls || (options_.preempt_per_1024 != 0 && random() % 1024 < options_.preempt_per_1024)) give_way();
  }
  [[noreturn, gnu::cold]] void fail_endless(Location at);
  void check_masks(std::uint32_t first, std::uint32_t lanes);
  bool try_warp(std::uint32_t thread);
  void exchange(Warp& warp, std::uint32_t first, WarpOperation operation, std::uint32_t mask);
  void complete(const AsyncCopy& copy);
  static void show(const AsyncCopy& copy);
  bool complete_a_bulk_copy();
  void finish_phase(Mbarrier& b);

  static constinit thread_local Machine* busy_;

  Fibres fibres_;
  std::vector<State> states_;     // of threads, as
  std::vector<Location> places_;  // where they wait, and
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::unique_ptr<Checker> checker_ = std::make_unique<Checker>(*this);
  Job job_{};
  LaunchOptions options_;
  Report report_;
  bool cancelled_ = false;
  std::uint32_t block_ = 0, blocks_ = 0;
  std::shared_ptr<void> shared_;
  // The shared memory of kernels, kept from launch to launch: as in blocks that follow each other, what
  // others left there was never written. By Job::make_shared.
  std::unordered_map<std::shared_ptr<void> (*)(), std::shared_ptr<void>> kept_shared_;
  std::uint32_t live_ = 0, at_barrier_ = 0;
  std::uint32_t subject_ = 0;         // who a finding of the scheduler is about
  std::vector<std::uint32_t> ready_;  // a ring: each thread is in it at most once
  std::uint32_t first_ready_ = 0, ready_count_ = 0;
  std::vector<AsyncCopy> copies_;
  std::uint64_t random_ = 0, accesses_ = 0;
  // What threads synchronise through, for ThreadSanitizer: objects of each block, so that blocks stay without
  // order.
  std::deque<std::uint64_t> tsan_keys_;
  void* tsan_barriers_[2] = {};  // in turns: who leaves one must not see who has reached the next
  std::vector<void*> tsan_lanes_;
  std::uint64_t tsan_start_ = 0, tsan_end_ = 0;
  unsigned barrier_turn_ = 0;
};

}  // namespace kvferry::emulation
