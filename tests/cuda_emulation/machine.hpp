// SPDX-License-Identifier: Apache-2.0
//
// One launch on one thread of the system: a fibre for each CUDA thread of a block, block after block, and a
// scheduler that decides who goes on. The context of a kernel (context.hpp) is the only user of what is
// public here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

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

  Report launch(const Job& job, std::uint32_t blocks, const LaunchOptions& options);

  [[noreturn]] void fail(FindingKind kind, Location at, const std::string& text) override;

  // Called by the thread that runs.
  std::uint32_t block() const { return block_; }
  std::uint32_t blocks() const { return blocks_; }
  std::uint32_t threads() const { return job_.threads; }
  // The checks, on behalf of the thread that runs; others may have run before. `polls`: it may wait for
  // somebody.
  Checker& before_access(Location at, bool polls = false);
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
  struct Cancelled {};
  enum class State : std::uint8_t { kReady, kBarrier, kWarp, kMbarrier, kDone };
  struct Thread {
    State state = State::kDone;
    WarpOperation operation = WarpOperation::kSync;
    std::uint32_t mask = 0, source = 0;
    std::uint64_t value = 0;
    Location at;
    const Mbarrier* mbarrier = nullptr;
    std::uint32_t parity = 0;
    std::uint32_t group = 0;  // of asynchronous copies
    void* tsan_key = nullptr;
  };

  Machine() : fibres_(turn, this) {}
  static void turn(void* machine, std::uint32_t thread);
  std::uint32_t running() const { return fibres_.running(); }
  std::uint64_t random();

  void run_block();
  void run_threads();
  void release_barrier();
  [[noreturn]] void deadlock();
  std::uint32_t& ready(std::uint32_t i) { return ready_[(first_ready_ + i) % ready_.size()]; }
  void make_ready(std::uint32_t thread);
  void make_all_ready();
  void suspend(State state, Location at);
  void give_way();
  void check_mask(std::uint32_t thread);
  bool try_warp(std::uint32_t thread);
  std::uint64_t warp_value(std::uint32_t thread);
  void complete(const AsyncCopy& copy);
  static void show(const AsyncCopy& copy);
  bool complete_a_bulk_copy();
  void finish_phase(Mbarrier& b);

  Fibres fibres_;
  std::vector<Thread> threads_;
  std::unique_ptr<Checker> checker_;
  Job job_{};
  LaunchOptions options_;
  Report report_;
  bool cancelled_ = false;
  std::uint32_t block_ = 0, blocks_ = 0;
  std::shared_ptr<void> shared_;
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
