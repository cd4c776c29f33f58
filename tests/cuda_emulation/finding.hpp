// SPDX-License-Identifier: Apache-2.0
//
// What a launch on the CPU can be asked for, and what it finds.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace kvferry::emulation {

// std::source_location, which clang 14 does not have.
struct Location {
  const char* file = nullptr;
  std::uint64_t line = 0;  // with no padding behind it, which a copy would take with it, the slow way

  static constexpr Location here(const char* file = __builtin_FILE(), std::uint64_t line = __builtin_LINE()) {
    return {file, line};
  }
};
std::string to_string(Location location);  // "paged_gather.hpp:71"

enum class FindingKind : std::uint8_t {
  kRace,              // two accesses without order, whatever the result
  kUninitialised,     // shared memory that the block never wrote
  kOutOfBounds,       // outside the shared array, or every buffer of the device
  kMisaligned,        // for the width of the access
  kDivergentBarrier,  // not all threads of a block at the same barrier
  kWarpMask,          // lanes that are not there, or not in the mask
  kDeadlock,
  kAsyncCopy,        // bytes that are still on their way
  kNonCoherentRead,  // load_once or a bulk copy of what the launch writes
  kMbarrier,
};
const char* to_string(FindingKind kind);

struct Finding {
  FindingKind kind;
  std::uint32_t block;
  std::uint32_t thread;
  std::string text;  // all of it, with both places
};

enum class Order : std::uint8_t { kForward, kReverse, kRandom };

struct LaunchOptions {
  Order order = Order::kForward;       // of blocks, and of the threads that could run
  std::uint64_t seed = 1;              // of all that is random; the same seed repeats a launch
  std::uint32_t preempt_per_1024 = 0;  // chance of a switch in front of an access
  std::uint64_t most_accesses = std::uint64_t{1} << 30;  // a kernel that spins for ever ends here
  std::function<void()> host = {};  // what the host does meanwhile: called at each load_system
};

// A launch ends at its first finding: behind it values mean nothing.
struct Report {
  std::optional<Finding> finding;
  std::uint64_t switches = 0;
};

}  // namespace kvferry::emulation
