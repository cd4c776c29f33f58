// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/checker.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

#include "harness/random.hpp"
#include "tests/cuda_emulation/sanitizers.hpp"

namespace kvferry::emulation {
namespace {

constexpr std::uintptr_t kWord = 4;
constexpr std::uint8_t kWhole = 0xf;

Location place(const Stamp& s) {
  return {s.file, s.line};
}

}  // namespace

Checker::Checker(Failure& failure, std::uint32_t threads, std::uint64_t seed)
    : failure_(failure),
      threads_(threads),
      own_clock_(threads, 1),
      clocks_(std::size_t{threads} * threads),
      known_(threads),
      random_(seed) {
  // Untouched cells cost nothing, so that buffers of gigabytes can be watched.
  for (const Region& region : registered_regions()) {
    if (region.begin == region.end) continue;
    Shadow shadow{region};
    shadow.bytes = ((region.end - 1) / kWord - region.begin / kWord + 1) * sizeof(Cell);
    void* const memory = mmap(nullptr, shadow.bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    shadow.cells = static_cast<Cell*>(memory);
    shadows_.push_back(shadow);
  }
}

Checker::~Checker() {
  for (const Shadow& shadow : shadows_) munmap(shadow.cells, shadow.bytes);
}

// ---- order

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
  for_each_lane([&](std::uint32_t t) { clock_of(t, t) = own_clock_[t]++; });
  const std::uint32_t begin = wide_ ? 0 : first, end = wide_ ? threads_ : std::min(first + 32, threads_);
  for (std::uint32_t u = begin; u < end; ++u) {
    std::uint32_t latest = 0;
    for_each_lane([&](std::uint32_t t) { latest = std::max(latest, clock_of(t, u)); });
    for_each_lane([&](std::uint32_t t) { clock_of(t, u) = latest; });
  }
  if (!any_known_) return;
  std::vector<Known> all;
  for_each_lane([&](std::uint32_t t) { all.insert(all.end(), known_[t].begin(), known_[t].end()); });
  for_each_lane([&](std::uint32_t t) { known_[t] = all; });
}

void Checker::publish(Clocks& to) {
  clock_of(me_, me_) = own_clock_[me_]++;
  to.resize(threads_);
  for (std::uint32_t u = 0; u < threads_; ++u) to[u] = std::max(to[u], clock_of(me_, u));
}

void Checker::publish_own(Clocks& to) {
  to.resize(threads_);
  to[me_] = own_clock_[me_]++;
}

void Checker::join(const Clocks& from) {
  wide_ = true;
  for (std::uint32_t u = 0; u < from.size(); ++u) clock_of(me_, u) = std::max(clock_of(me_, u), from[u]);
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

bool Checker::ordered(const Stamp& s) const {
  if (of_block(s)) {
    return s.thread == me_ || s.phase < phase_ || clocks_[std::size_t{me_} * threads_ + s.thread] >= s.clock;
  }
  return std::any_of(known_[me_].begin(), known_[me_].end(), [&](const Known& k) {
    return s.phase >= k.first && (s.phase < k.last || (s.phase == k.last && k.clocks[s.thread] >= s.clock));
  });
}

// ---- words

bool Checker::conflicts(const Stamp& s, std::uint8_t bytes, Access access) const {
  const bool atomics = access == Access::kAtomic && s.access == Access::kAtomic;
  return (s.bytes & bytes) != 0 && !atomics && !ordered(s);
}

Stamp Checker::stamp(Location at, Access access, std::uint8_t bytes) const {
  return {phase_, own_clock_[me_], at.line, static_cast<std::uint16_t>(me_), access, bytes, at.file};
}

void Checker::race(const std::string& what, Location at, const Stamp& other) {
  failure_.fail(FindingKind::kRace, at,
                what + (of_block(other) ? "" : " another block's") + " thread " +
                    std::to_string(other.thread) + " at " + to_string(place(other)) +
                    (of_block(other) ? ", with nothing that orders them" : ""));
}

void Checker::check_writer(const Cell& cell, std::uint8_t bytes, Access access, Location at,
                           const char* verb) {
  if (conflicts(cell.writer, bytes, access))
    race(std::string(verb) + " what was written by", at, cell.writer);
  // Bytes of other threads and blocks than the last writer; what is known of other blocks could order them.
  const unsigned others = of_block(cell.writer) ? cell.earlier_bytes : cell.earlier_bytes | cell.block_bytes;
  if ((others & bytes) != 0 && access != Access::kAtomic && known_[me_].empty())
    race(std::string(verb) + " what was written in another block, and after it by", at, cell.writer);
}

void Checker::check_readers(const Cell& cell, std::uint8_t bytes, Access access, Location at,
                            const char* verb) {
  for (const Stamp& reader : cell.readers) {
    if (conflicts(reader, bytes, access)) race(std::string(verb) + " what was read by", at, reader);
    if (reader.access == Access::kOnce && (reader.bytes & bytes) != 0) {
      failure_.fail(FindingKind::kNonCoherentRead, at,
                    std::string(verb) + " what was read without coherence in the same launch at " +
                        to_string(place(reader)));
    }
  }
}

void Checker::add_reader(Cell& cell, const Stamp& s) {
  for (Stamp& reader : cell.readers) {
    if (reader.bytes == 0 || (of_block(reader) && (reader.thread == s.thread || reader.phase < phase_))) {
      reader = s;
      return;
    }
  }
  random_ = harness::mix(random_);
  // The first stays when it is of another block, which little can order.
  cell.readers[of_block(cell.readers[0]) ? random_ & 1 : 1] = s;
}

void Checker::set_writer(Cell& cell, const Stamp& s) {
  if (!of_block(cell.writer)) {
    cell.earlier_bytes = static_cast<std::uint8_t>(cell.earlier_bytes | cell.block_bytes);
    cell.block_bytes = 0;
  }
  cell.block_bytes = static_cast<std::uint8_t>(cell.block_bytes | s.bytes);
  cell.writer = s;
}

// ---- shared memory

void Checker::read(Cell& cell, Location at) {
  if (!of_block(cell.writer))
    failure_.fail(FindingKind::kUninitialised, at, "reads shared memory that this block never wrote");
  if (cell.in_flight)
    failure_.fail(FindingKind::kAsyncCopy, at, "reads what an asynchronous copy is on its way to");
  check_writer(cell, kWhole, Access::kPlain, at, "reads");
  add_reader(cell, stamp(at, Access::kPlain, kWhole));
}

void Checker::write(Cell& cell, Location at) {
  if (!of_block(cell.writer)) cell = {};  // what earlier blocks did was with memory of their own
  if (cell.in_flight)
    failure_.fail(FindingKind::kAsyncCopy, at, "writes what an asynchronous copy is on its way to");
  check_writer(cell, kWhole, Access::kPlain, at, "overwrites");
  check_readers(cell, kWhole, Access::kPlain, at, "overwrites");
  cell.writer = stamp(at, Access::kPlain, kWhole);
}

void Checker::update(Cell& cell, Location at) {
  if (!of_block(cell.writer))
    failure_.fail(FindingKind::kUninitialised, at, "updates shared memory that this block never wrote");
  if (cell.in_flight)
    failure_.fail(FindingKind::kAsyncCopy, at, "updates what an asynchronous copy is on its way to");
  check_writer(cell, kWhole, Access::kAtomic, at, "updates");
  check_readers(cell, kWhole, Access::kAtomic, at, "updates");
  cell.writer = stamp(at, Access::kAtomic, kWhole);
}

void Checker::start_copy(Cell& cell, Location at) {
  write(cell, at);
  cell.in_flight = true;
}

void Checker::end_copy(Cell& cell, Location at) {
  cell.writer = stamp(at, Access::kPlain, kWhole);
}

// ---- global memory

Checker::Shadow& Checker::shadow(const void* p, std::size_t bytes, std::size_t align, Location at,
                                 const char* verb) {
  const auto begin = reinterpret_cast<std::uintptr_t>(p);
  if (begin % align != 0) {
    failure_.fail(FindingKind::kMisaligned, at,
                  std::string(verb) + " " + std::to_string(bytes) +
                      " bytes at an address that is not a multiple of " + std::to_string(align));
  }
  const auto holds = [&](const Shadow& s) {
    return begin >= s.region.begin && begin + bytes <= s.region.end;
  };
  if (last_shadow_ < shadows_.size() && holds(shadows_[last_shadow_])) return shadows_[last_shadow_];
  const auto after = std::upper_bound(shadows_.begin(), shadows_.end(), begin,
                                      [](std::uintptr_t a, const Shadow& s) { return a < s.region.begin; });
  if (after == shadows_.begin() || !holds(*(after - 1))) {
    failure_.fail(
        FindingKind::kOutOfBounds, at,
        std::string(verb) + " " + std::to_string(bytes) + " bytes outside every buffer of the device");
  }
  last_shadow_ = static_cast<std::size_t>(after - 1 - shadows_.begin());
  return shadows_[last_shadow_];
}

// Calls f(cell, bytes) with the bytes of each word as bits.
template <class F>
void Checker::for_each_word(const Shadow& shadow, const void* p, std::size_t bytes, F f) {
  const std::uintptr_t first = shadow.region.begin / kWord;
  std::uintptr_t at = reinterpret_cast<std::uintptr_t>(p);
  const std::uintptr_t end = at + bytes;
  while (at < end) {
    const std::uintptr_t part = std::min(kWord - at % kWord, end - at);
    f(shadow.cells[at / kWord - first], static_cast<std::uint8_t>(((1U << part) - 1) << at % kWord));
    at += part;
  }
}

void Checker::read(const void* p, std::size_t bytes, std::size_t align, Access access, Location at) {
  const Shadow& of = shadow(p, bytes, align, at, "reads");
  if (of.region.contested) return;
  for_each_word(of, p, bytes, [&](Cell& cell, std::uint8_t mask) {
    check_writer(cell, mask, access, at, "reads");
    if (access == Access::kOnce && (cell.writer.bytes & mask) != 0) {
      failure_.fail(
          FindingKind::kNonCoherentRead, at,
          "reads without coherence what was written in the same launch at " + to_string(place(cell.writer)));
    }
    add_reader(cell, stamp(at, access, mask));
  });
}

void Checker::write(const void* p, std::size_t bytes, std::size_t align, Access access, Location at) {
  const Shadow& of = shadow(p, bytes, align, at, "writes");
  if (of.region.contested) return;
  for_each_word(of, p, bytes, [&](Cell& cell, std::uint8_t mask) {
    check_writer(cell, mask, access, at, "overwrites");
    check_readers(cell, mask, access, at, "overwrites");
    set_writer(cell, stamp(at, access, mask));
  });
}

void Checker::update(const void* p, std::size_t bytes, Location at) {
  const Shadow& of = shadow(p, bytes, bytes, at, "updates");
  if (of.region.contested) return;
  for_each_word(of, p, bytes, [&](Cell& cell, std::uint8_t mask) {
    check_writer(cell, mask, Access::kAtomic, at, "updates");
    check_readers(cell, mask, Access::kAtomic, at, "updates");
    set_writer(cell, stamp(at, Access::kAtomic, mask));
  });
}

}  // namespace kvferry::emulation
