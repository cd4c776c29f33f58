// SPDX-License-Identifier: Apache-2.0
//
// Every threshold of the CPU backend, with the measurement behind it (method: docs/performance.md).
#pragma once

#include <cstdint>

namespace kvferry::internal::cpu {

struct Tuning {
  // A parallel region costs 0.8 us with spinning helpers and 17-90 us when they sleep: two threads pay from
  // 64-128 KiB hot and from 2-4 MiB asleep. Between the two, because callers come in bursts of layers.
  std::int64_t parallel_bytes = 256 << 10;
  // Claims of 0.5-1 MiB keep the shared counter cold and the last claim short.
  std::int64_t claim_bytes = 1 << 20;
  std::int64_t min_claim_bytes = 64 << 10;
  int claims_per_thread = 4;
  // More never balance better, and a table of huge pairs that are all skipped must not cost a claim a MiB.
  std::int64_t max_claims = 1 << 16;

  // Top-k ids whose planning is shared out: 100 us of work at 8 ns an id, beside 17-90 us to wake a helper.
  std::int64_t parallel_ids = 16 << 10;

  // Non-temporal stores: a CPU that reads the result right after makes regular stores win up to 16 MB; with
  // the `streaming` hint they pay from 256 KiB. Constants on purpose: a VM reports absurd cache sizes.
  std::int64_t nontemporal_bytes = 32 << 20;
  std::int64_t nontemporal_streaming_bytes = 256 << 10;

  // Pieces below this go through the row loop (fixed-size inlined copies), from here on through lanes.
  std::int64_t lane_bytes = 512;
  // 8 lanes win from 512 B to 4 KiB, 4 lanes of 4 KiB chunks up to 128 KiB, one stream above.
  std::int64_t wide_lane_bytes = 4 << 10;
  std::int64_t stream_bytes = 128 << 10;
};

inline constexpr Tuning kTuning;

}  // namespace kvferry::internal::cpu
