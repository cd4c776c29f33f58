// SPDX-License-Identifier: Apache-2.0
//
// What happens at every access: whoever runs may have to give way, and the words are checked. All of it
// stands together, and what ends a launch apart, so that the compiler makes one short function of each kind
// of access.
#include <cstdlib>

#include "tests/cuda_emulation/machine.hpp"

namespace kvferry::emulation {

// ---- findings

void Checker::fail(FindingKind kind, Location at, const std::string& text) {
  failure_.fail(kind, at, text);
  std::abort();  // it throws: a virtual function cannot say so to GCC
}

void Checker::race(const char* verb, const char* what, Location at, const Stamp& other) {
  fail(FindingKind::kRace, at,
       std::string(verb) + what + (of_block(other) ? "" : " another block's") + " thread " +
           std::to_string(other.thread()) + " at " + to_string(place(other)) +
           (of_block(other) ? ", with nothing that orders them" : ""));
}

void Checker::fail_non_coherent(const char* verb, const char* what, Location at, const Stamp& other) {
  fail(FindingKind::kNonCoherentRead, at,
       std::string(verb) + what + " in the same launch at " + to_string(place(other)));
}

void Checker::fail_shared(const Cell& cell, Location at, const char* verb) {
  if (!of_block(cell.writer)) {
    fail(FindingKind::kUninitialised, at, std::string(verb) + " shared memory that this block never wrote");
  }
  fail(FindingKind::kAsyncCopy, at, std::string(verb) + " what an asynchronous copy is on its way to");
}

void Checker::fail_shadow(const void* p, std::size_t bytes, std::size_t align, Location at,
                          const char* verb) {
  const std::string what = std::string(verb) + " " + std::to_string(bytes) + " bytes ";
  if (reinterpret_cast<std::uintptr_t>(p) % align != 0) {
    fail(FindingKind::kMisaligned, at,
         what + "at an address that is not a multiple of " + std::to_string(align));
  }
  fail(FindingKind::kOutOfBounds, at, what + "outside every buffer of the device");
}

// ---- words

[[gnu::always_inline]] inline void Checker::check_writer(const Cell& cell, std::uint8_t bytes, Access access,
                                                         Location at, const char* verb) {
  if (conflicts(cell.writer, bytes, access)) race(verb, " what was written by", at, cell.writer);
  // Bytes of other threads and blocks than the last writer; what is known of other blocks could order them.
  const unsigned others = of_block(cell.writer) ? cell.earlier_bytes : cell.earlier_bytes | cell.block_bytes;
  if ((others & bytes) != 0 && access != Access::kAtomic && known_[me_].empty())
    race(verb, " what was written in another block, and after it by", at, cell.writer);
}

[[gnu::always_inline]] inline void Checker::check_readers(const Cell& cell, std::uint8_t bytes, Access access,
                                                          Location at, const char* verb) {
  for (const Stamp& reader : cell.readers) {
    if (conflicts(reader, bytes, access)) race(verb, " what was read by", at, reader);
    if (reader.access() == Access::kOnce && (reader.bytes() & bytes) != 0)
      fail_non_coherent(verb, " what was read without coherence", at, reader);
  }
}

inline void Checker::add_reader(Cell& cell, const Stamp& s) {
  for (Stamp& reader : cell.readers) {
    if (reader.bytes() == 0 ||
        (of_block(reader) && (reader.thread() == s.thread() || reader.phase < phase_))) {
      reader = s;
      return;
    }
  }
  random_ = harness::mix(random_);
  // The first stays when it is of another block, which little can order.
  cell.readers[of_block(cell.readers[0]) ? random_ & 1 : 1] = s;
}

inline void Checker::set_writer(Cell& cell, const Stamp& s) const {
  if (!of_block(cell.writer)) {
    cell.earlier_bytes = static_cast<std::uint8_t>(cell.earlier_bytes | cell.block_bytes);
    cell.block_bytes = 0;
  }
  cell.block_bytes = static_cast<std::uint8_t>(cell.block_bytes | s.bytes());
  cell.writer = s;
}

// ---- shared memory

[[gnu::always_inline]] inline void Checker::check_shared(const Cell& cell, Location at, const char* verb) {
  if (!of_block(cell.writer) || cell.in_flight) [[unlikely]]
    fail_shared(cell, at, verb);
}

void Checker::read(Cell& cell, Location at) {
  check_shared(cell, at, "reads");
  check_writer(cell, kWholeWord, Access::kPlain, at, "reads");
  add_reader(cell, stamp(at, Access::kPlain));
}

void Checker::write(Cell& cell, Location at) {
  if (!of_block(cell.writer)) {
    cell = {};  // what earlier blocks did was with memory of their own
  } else {
    check_shared(cell, at, "writes");
    check_writer(cell, kWholeWord, Access::kPlain, at, "overwrites");
    check_readers(cell, kWholeWord, Access::kPlain, at, "overwrites");
  }
  cell.writer = stamp(at, Access::kPlain);
}

void Checker::update(Cell& cell, Location at) {
  check_shared(cell, at, "updates");
  check_writer(cell, kWholeWord, Access::kAtomic, at, "updates");
  check_readers(cell, kWholeWord, Access::kAtomic, at, "updates");
  cell.writer = stamp(at, Access::kAtomic);
}

void Checker::start_copy(Cell& cell, Location at) {
  write(cell, at);
  cell.in_flight = true;
}

void Checker::end_copy(Cell& cell, Location at) {
  cell.writer = stamp(at, Access::kPlain);
}

// ---- global memory

inline Checker::Shadow& Checker::shadow(std::size_t& last, const void* p, std::size_t bytes,
                                        std::size_t align, Location at, const char* verb) {
  const auto begin = reinterpret_cast<std::uintptr_t>(p);
  const auto holds = [&](const Shadow& s) {
    return begin >= s.region.begin && begin + bytes <= s.region.end;
  };
  if ((begin & (align - 1)) != 0) fail_shadow(p, bytes, align, at, verb);
  if (last < shadows_.size() && holds(shadows_[last])) return shadows_[last];
  const auto after = std::upper_bound(shadows_.begin(), shadows_.end(), begin,
                                      [](std::uintptr_t a, const Shadow& s) { return a < s.region.begin; });
  if (after == shadows_.begin() || !holds(*(after - 1))) fail_shadow(p, bytes, align, at, verb);
  last = static_cast<std::size_t>(after - 1 - shadows_.begin());
  return shadows_[last];
}

// Calls f(cell, bytes) with the bytes of each word as bits.
template <class F>
[[gnu::always_inline]] inline void Checker::for_each_word(const Shadow& shadow, const void* p,
                                                          std::size_t bytes, F f) const {
  std::uintptr_t at = reinterpret_cast<std::uintptr_t>(p);
  const std::uintptr_t end = at + bytes;
  Cell* cell = shadow.cells + (at / kWordBytes - shadow.region.begin / kWordBytes);
  while (at < end) {
    const std::uintptr_t part = std::min(kWordBytes - at % kWordBytes, end - at);
    if (cell->launch != launch_) {
      *cell = {};
      cell->launch = launch_;
    }
    f(*cell++, static_cast<std::uint8_t>(((1U << part) - 1) << at % kWordBytes));
    at += part;
  }
}

void Checker::read(const void* p, std::size_t bytes, std::size_t align, Access access, Location at) {
  const Shadow& of = shadow(last_read_, p, bytes, align, at, "reads");
  if (of.region.contested) return;
  for_each_word(of, p, bytes, [&](Cell& cell, std::uint8_t mask) {
    check_writer(cell, mask, access, at, "reads");
    if (access == Access::kOnce && (cell.writer.bytes() & mask) != 0)
      fail_non_coherent("reads", " without coherence what was written", at, cell.writer);
    add_reader(cell, stamp(at, access, mask));
  });
}

void Checker::write(const void* p, std::size_t bytes, std::size_t align, Access access, Location at) {
  const Shadow& of = shadow(last_written_, p, bytes, align, at, "writes");
  if (of.region.contested) return;
  for_each_word(of, p, bytes, [&](Cell& cell, std::uint8_t mask) {
    check_writer(cell, mask, access, at, "overwrites");
    check_readers(cell, mask, access, at, "overwrites");
    set_writer(cell, stamp(at, access, mask));
  });
}

void Checker::update(const void* p, std::size_t bytes, Location at) {
  const Shadow& of = shadow(last_written_, p, bytes, bytes, at, "updates");
  if (of.region.contested) return;
  for_each_word(of, p, bytes, [&](Cell& cell, std::uint8_t mask) {
    check_writer(cell, mask, Access::kAtomic, at, "updates");
    check_readers(cell, mask, Access::kAtomic, at, "updates");
    set_writer(cell, stamp(at, Access::kAtomic, mask));
  });
}

// ---- of the thread that runs

void Machine::unwind() {
  throw Cancelled();
}

void Machine::fail_endless(Location at) {
  fail(FindingKind::kDeadlock, at,
       "is still running after " + std::to_string(options_.most_accesses) + " accesses of the launch");
}

void Machine::fail_index(std::int64_t i, std::uint32_t count, Location at) {
  fail(FindingKind::kOutOfBounds, at,
       "uses index " + std::to_string(i) + " of a shared array of " + std::to_string(count));
}

void Machine::read(Cell& cell, Location at) {
  before_access(at);
  checker_->read(cell, at);
}

void Machine::write(Cell& cell, Location at) {
  before_access(at);
  checker_->write(cell, at);
}

void Machine::update(Cell& cell, Location at) {
  before_access(at, true);
  checker_->update(cell, at);
}

void Machine::read(const void* p, std::size_t bytes, std::size_t align, Access access, Location at) {
  before_access(at);
  checker_->read(p, bytes, align, access, at);
}

void Machine::write(const void* p, std::size_t bytes, std::size_t align, Location at) {
  before_access(at);
  checker_->write(p, bytes, align, Access::kPlain, at);
}

void Machine::update(const void* p, std::size_t bytes, Location at) {
  before_access(at, true);
  checker_->update(p, bytes, at);
}

void Machine::acquire(const std::uint32_t* p, Location at) {
  before_access(at, true);
  checker_->read(p, sizeof *p, alignof(std::uint32_t), Access::kAtomic, at);
  checker_->acquire(p);
}

void Machine::release(const std::uint32_t* p, Location at) {
  before_access(at);
  checker_->write(p, sizeof *p, alignof(std::uint32_t), Access::kAtomic, at);
  checker_->release(p);
}

}  // namespace kvferry::emulation
