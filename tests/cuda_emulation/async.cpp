// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous copies to shared memory, and the mbarriers that announce them.
#include <cstddef>
#include <utility>

#include "tests/cuda_emulation/machine.hpp"
#include "tests/cuda_emulation/sanitizers.hpp"

namespace kvferry::emulation {
namespace {

constexpr std::size_t kVector = sizeof(internal::cuda::Vec16);

}  // namespace

void Machine::start_copy(AsyncCopy copy) {
  const Unwatched unwatched;
  before_access(copy.at);
  Checker& check = *checker_;
  copy.thread = running();
  copy.group = threads_[copy.thread].group;
  if (copy.mbarrier != nullptr) check.read(copy.mbarrier->cell, copy.at);
  const Access access = copy.mbarrier != nullptr ? Access::kOnce : Access::kPlain;
  for (std::uint32_t i = 0; i < copy.vectors; ++i) {
    check.read(copy.from + i, kVector, kVector, access, copy.at);
    check.start_copy(copy.cells[i], copy.at);
  }
  copies_.push_back(copy);
}

void Machine::complete(const AsyncCopy& copy) {
  for (std::uint32_t i = 0; i < copy.vectors; ++i) {
    copy.to[i] = copy.from[i];
    checker_->end_copy(copy.cells[i], copy.at);
  }
}

void Machine::show(const AsyncCopy& copy) {
  for (std::uint32_t i = 0; i < copy.vectors; ++i) copy.cells[i].in_flight = false;
}

void Machine::wait_for_copies(std::uint32_t pending) {
  const Unwatched unwatched;
  const std::uint32_t t = running();
  for (std::size_t i = 0; i < copies_.size();) {
    const AsyncCopy copy = copies_[i];
    if (copy.mbarrier == nullptr && copy.thread == t && copy.group + pending < threads_[t].group) {
      complete(copy);
      show(copy);
      copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

// One of those on their way, if there is one.
bool Machine::complete_a_bulk_copy() {
  std::vector<std::size_t> bulk;
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i].mbarrier != nullptr) bulk.push_back(i);
  }
  if (bulk.empty()) return false;
  const std::size_t i = bulk[random() % bulk.size()];
  const AsyncCopy copy = copies_[i];
  copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(i));
  checker_->act_as(copy.thread);
  complete(copy);
  Mbarrier& b = *copy.mbarrier;
  checker_->publish_own(b.clocks);
  b.landed.push_back(copy);  // complete, and on its way until somebody waits for it
  b.bytes -= static_cast<std::int64_t>(copy.vectors * kVector);
  finish_phase(b);
  return true;
}

void Machine::finish_phase(Mbarrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  b.parity ^= 1;
  b.pending = b.arrivals;
  for (std::uint32_t t = 0; t < job_.threads; ++t) {
    const Thread& thread = threads_[t];
    if (states_[t] == State::kMbarrier && thread.mbarrier == &b && thread.parity != b.parity) make_ready(t);
  }
}

void Machine::init_mbarrier(Mbarrier& b, std::uint32_t arrivals, Location at) {
  write(b.cell, at);
  const Cell cell = b.cell;
  b = {};
  b.cell = cell;
  b.arrivals = b.pending = arrivals;
}

void Machine::arrive(Mbarrier& b, std::uint32_t bytes, Location at) {
  const Unwatched unwatched;
  read(b.cell, at);  // its initialisation must be visible to whoever uses it
  if (b.pending == 0) fail(FindingKind::kMbarrier, at, "arrives at an mbarrier that has all its arrivals");
  checker_->publish(b.clocks);
  b.bytes += bytes;
  --b.pending;
  finish_phase(b);
}

void Machine::wait(Mbarrier& b, std::uint32_t parity, Location at) {
  const Unwatched unwatched;
  read(b.cell, at);
  if (b.parity == parity) {
    Thread& me = threads_[running()];
    me.mbarrier = &b;
    me.parity = parity;
    suspend(State::kMbarrier, at);
  }
  for (const AsyncCopy& copy : std::exchange(b.landed, {})) show(copy);
  checker_->join(b.clocks);
}

}  // namespace kvferry::emulation
