// SPDX-License-Identifier: Apache-2.0
//
// What orders accesses, and the memory that the checks need.
#include "tests/cuda_emulation/checker.hpp"

#include <sys/mman.h>

#include <bit>
#include <new>

#include "tests/cuda_emulation/sanitizers.hpp"

namespace kvferry::emulation {
namespace {

// Of global memory, kept from launch to launch: enough for the buffers of most.
constexpr std::size_t kKeptCells = std::size_t{1} << 22;

// Untouched cells cost nothing, so that buffers of gigabytes can be watched.
Cell* map_cells(std::size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<Cell*>(memory);
}

}  // namespace

Checker::Checker(Failure& failure) : failure_(failure), kept_(map_cells(kKeptCells * sizeof(Cell))) {
  // Cells that lie side by side, each at a line of its own, are many pages. A system without huge ones
  // refuses.
  madvise(kept_, kKeptCells * sizeof(Cell), MADV_HUGEPAGE);
}

Checker::~Checker() {
  end_launch();
  munmap(kept_, kKeptCells * sizeof(Cell));
}

void Checker::start_launch(std::uint32_t threads, std::uint64_t seed) {
  ++launch_;
  threads_ = threads;
  own_clock_.assign(threads, 1);
  whole_warp_.assign(threads, 0);
  lanes_.assign(std::size_t{threads} * kLanes, 0);
  rows_.clear();
  known_.assign(threads, {});
  any_known_ = false;
  releases_.clear();
  last_read_ = last_written_ = 0;
  random_ = seed;
  std::size_t kept = 0;
  for (const Region& region : registered_regions()) {
    if (region.begin == region.end) continue;
    Shadow shadow{region};
    const std::size_t cells = (region.end - 1) / kWordBytes - region.begin / kWordBytes + 1;
    if (cells <= kKeptCells - kept) {
      shadow.cells = kept_ + kept;
      kept += cells;
    } else {
      shadow.mapped_bytes = cells * sizeof(Cell);
      shadow.cells = map_cells(shadow.mapped_bytes);
    }
    shadows_.push_back(shadow);
  }
}

void Checker::end_launch() {
  for (const Shadow& shadow : shadows_) {
    if (shadow.mapped_bytes != 0) munmap(shadow.cells, shadow.mapped_bytes);
  }
  shadows_.clear();
}

void Checker::start_block() {
  block_phase_ = ++phase_;
  wide_ = false;
  if (any_known_) {
    for (auto& of_thread : known_) of_thread.clear();
  }
  any_known_ = false;
}

void Checker::barrier() {
  ++phase_;
  wide_ = false;
  if (!any_known_) return;
  std::vector<Known> all;
  for (const auto& of_thread : known_) all.insert(all.end(), of_thread.begin(), of_thread.end());
  for (auto& of_thread : known_) of_thread = all;
}

void Checker::join_lanes(std::uint32_t first, std::uint32_t mask) {
  const auto for_each_lane = [&](auto f) {
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1)
      f(first + static_cast<std::uint32_t>(std::countr_zero(rest)));
  };
  if (mask == internal::cuda::kAllLanes) {
    for (std::uint32_t t = first; t < first + kLanes; ++t) whole_warp_[t] = own_clock_[t]++;
  } else {
    std::array<std::uint32_t, kLanes> latest{};
    for_each_lane([&](std::uint32_t t) {
      const std::uint32_t* const lanes = &lanes_[std::size_t{t} * kLanes];
      for (std::uint32_t u = 0; u < kLanes; ++u) latest[u] = std::max(latest[u], lanes[u]);
    });
    for_each_lane([&](std::uint32_t t) { latest[t - first] = own_clock_[t]++; });
    for_each_lane(
        [&](std::uint32_t t) { std::copy(latest.begin(), latest.end(), &lanes_[std::size_t{t} * kLanes]); });
  }
  if (wide_) join_rows(first, mask);
  if (!any_known_) return;
  std::vector<Known> all;
  for_each_lane([&](std::uint32_t t) { all.insert(all.end(), known_[t].begin(), known_[t].end()); });
  for_each_lane([&](std::uint32_t t) { known_[t] = all; });
}

// Of other warps.
void Checker::join_rows(std::uint32_t first, std::uint32_t mask) {
  Clocks latest(threads_);
  const auto for_each_row = [&](auto f) {
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1)
      f(&rows_[std::size_t{first + static_cast<std::uint32_t>(std::countr_zero(rest))} * threads_]);
  };
  for_each_row([&](const std::uint32_t* row) {
    for (std::uint32_t u = 0; u < threads_; ++u) latest[u] = std::max(latest[u], row[u]);
  });
  for_each_row([&](std::uint32_t* row) { std::copy(latest.begin(), latest.end(), row); });
}

void Checker::publish(Clocks& to) {
  lanes_[std::size_t{me_} * kLanes + me_ % kLanes] = own_clock_[me_]++;
  to.resize(threads_);
  for (std::uint32_t u = 0; u < threads_; ++u) to[u] = std::max(to[u], known_clock(u));
}

void Checker::publish_own(Clocks& to) {
  to.resize(threads_);
  to[me_] = own_clock_[me_]++;
}

void Checker::join(const Clocks& from) {
  wide_ = true;
  rows_.resize(std::size_t{threads_} * threads_);
  for (std::uint32_t u = 0; u < from.size(); ++u) {
    std::uint32_t& clock = me_ / kLanes == u / kLanes ? lanes_[std::size_t{me_} * kLanes + u % kLanes]
                                                      : rows_[std::size_t{me_} * threads_ + u];
    clock = std::max(clock, from[u]);
  }
}

void Checker::release(const void* word) {
  const Unwatched unwatched;
  Release& r = releases_[word];
  r = {{block_phase_, phase_, {}}, known_[me_]};
  publish(r.own.clocks);
}

void Checker::acquire(const void* word) {
  const Unwatched unwatched;
  const auto found = releases_.find(word);
  if (found == releases_.end()) return;
  const Release& r = found->second;
  if (r.own.first != block_phase_) {
    known_[me_].push_back(r.own);
    any_known_ = true;
  } else if (r.own.last == phase_) {
    join(r.own.clocks);
  }
  if (r.others.empty()) return;
  known_[me_].insert(known_[me_].end(), r.others.begin(), r.others.end());
  any_known_ = true;
}

bool Checker::ordered_by_release(const Stamp& s) const {
  return std::any_of(known_[me_].begin(), known_[me_].end(), [&](const Known& k) {
    return s.phase >= k.first && (s.phase < k.last || (s.phase == k.last && k.clocks[s.thread()] >= s.clock));
  });
}

}  // namespace kvferry::emulation
