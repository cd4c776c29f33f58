// SPDX-License-Identifier: Apache-2.0
//
// The rows of the table: a problem each, and what it should reach on an H200.
#pragma once

#include <span>

namespace kvferry::bench::gpu {

constexpr double kPeakBytesPerSecond = 4.8e12;  // reads and writes of an H200's memory, nominal

struct Target {
  enum class Kind {
    kNone,
    kShareOfPeer,   // the peer's time / ours, at least
    kShareOfPeak,   // bytes read and written / time, at least so much of the nominal
    kShareOfLink,   // bytes / time, at least so much of a large copy from the host
    kMostUs,        // microseconds of the GPU from the launch on, at most
    kTimesPeer,     // ours / the peer's time, at most
    kTimesBest,     // ours / the best of the others, at most
    kPerByte,       // ours / the peer's time per byte, at most
    kMostBlocks,    // blocks of a launch, and so multiprocessors, at most
    kScheduleLink,  // ours / (the schedule's time + missed bytes / link), at most
    kScheduleUs,    // microseconds of the schedule, at most
  };
  Kind kind = Kind::kNone;
  double value = 0;
  const char* peer = "";
  bool or_next = false;  // met too if the next one is
};

struct Row {
  const char* name;
  const char* problem;
  Target targets[3] = {};
};

std::span<const Row> rows();

}  // namespace kvferry::bench::gpu
