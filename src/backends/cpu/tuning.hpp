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

  // Rows at a fixed step below this go through a loop of fixed-size copies; alone, from 64 B on, they are
  // pieces.
  std::int64_t small_row_bytes = 512;
  std::int64_t least_piece_bytes = 64;

  // Pairs of equal size below this, or with regular stores below small_row_bytes, go through such a loop too:
  // random 128 B of 32 MB 1.98x memcpy and as pieces with non-temporal stores 1.52x, 192 B 2.28 and 1.80, 256
  // B 1.38 and 1.47; with regular stores, warm, 256 B 0.42 and 0.58 us for 64 of them.
  std::int64_t small_pair_bytes = 256;
  // That loop asks for the lines of both sides some pairs ahead, of pairs of 64 B and more always: 1,024 of
  // 64 B cold 6.9 us and not asked for 16.7, warm 2.3 and 2.2; 128 B cold 8.0 and 30. Of smaller ones in
  // calls on more than the L2 of a core: warm it costs what the copies cost (64 of 8 B 0.13 us and 0.06).
  std::int64_t least_fetch_bytes = 64;
  std::int64_t cold_bytes = 1 << 20;
  // 1,024 of 64 B cold, 16, 32 and 64 pairs ahead: 9.2, 6.9, 6.5 us; 128 B into other
  // places 12.1, 10.7, 11.4.
  std::int64_t pairs_ahead = 32;
  // Pieces from random places, fetched into L2 this far ahead. GB/s of one thread, against memcpy per piece,
  // 8 lanes of 256 B and 4 KiB ahead: 128 B 12.7 (5.9, -, 8.1), 1 KiB 11.2 (5.1, 8.2, 9.7), 4 KiB 14.4
  // (8.8, 14.0, 14.1), 32 KiB 17.1 (14.1, 14.6, 17.0). Into L1 the same is 8 to 15.
  std::int64_t far_bytes = 16 << 10;
  // Long pieces, and from 4 KiB on those that follow on: into L1, close by. 256 KiB random 22.0 against 17.2
  // with the above and 16.2 of memcpy; 16 KiB in order 20.3 against 16.2.
  std::int64_t near_bytes = 2 << 10;
  std::int64_t large_piece_bytes = 64 << 10;
  std::int64_t near_piece_bytes = 4 << 10;
  // FRACTAL_NZ: columns of units that are read at a time, and rows of them, so that 4 columns of 4 KiB fit
  // into L1. Streaming stores want two whole lines of a row together: gather b128 / scatter b16 / scatter
  // b128, % of the copy limit, 61 / 63 / 80 with 2 columns, 83 / 84 / 97 with 4, 77 / 76 / 91 with 8. Regular
  // ones (32 MiB, GB/s) 11.4 / 6.4 / 10.8 with 2 and 6.9 / 7.3 / 9.4 with 4.
  std::int64_t transpose_columns = 2;
  std::int64_t transpose_columns_streaming = 4;
  std::int64_t transpose_rows = 128;
  // Beyond the group itself. 2 / 4 / 6 / 10 KiB: scatter b16 76 / 77 / 81 / 86, gather b128 77 / 79 / 81
  // / 83.
  std::int64_t transpose_near_bytes = 10 << 10;
  // With regular stores libc copies pieces of this size and more: memcpy's time over that of the stream, and
  // over that of libc with the next piece's beginning fetched: 8 KiB random 1.33 and 1.11, 16 KiB 1.08 and
  // 1.01, 64 KiB 0.81 and 1.00, 256 KiB 0.86 and 1.00. Into random places 4 KiB 0.88 and 1.02, 16 KiB 0.93
  // and 1.04.
  std::int64_t libc_piece_bytes = 16 << 10;
  std::int64_t libc_scattered_bytes = 4 << 10;
};

inline constexpr Tuning kTuning;

}  // namespace kvferry::internal::cpu
