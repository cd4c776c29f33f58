// SPDX-License-Identifier: Apache-2.0
//
// gather_selection_kv_cache: the top-k blocks of a long paged cache into a small selection cache, re-using
// what the previous decode step left there.
//
// Sparse attention picks up to K blocks of bs tokens per query row out of a full cache that usually lives in
// slower memory. After the call the row's selection cache holds exactly those blocks, compactly, and
// attention runs over it with positions 0, 1, 2, ... Blocks that the previous step already fetched stay or
// move inside the selection cache; only the others are read from the full cache.
//
// Inputs. B batches (sequences), S query rows a batch (1 + draft tokens), H = 1, K = top-k, bs =
// selection_topk_ block_size, sblk / fblk = tokens of a page of the selection / full cache; rows r = b*S + s,
// R = B*S of them.
//
//   selection_k_rope         [S_BLOCK_NUM, sblk, RD]   in/out; optional together with full_k_rope
//   selection_kv_cache       [S_BLOCK_NUM, sblk, KD]   in/out
//   selection_kv_block_table [>= R, S_MAX]  int32      which pages a row's selection cache has; the caller
//   fills it selection_kv_block_status  BSND [B, S, H, K+1] or TND [B*S, H, K+1]  int32, in/out: the state
//   selection_topk_indices     BSND [B, S, H, K]   or TND [B*S, H, K]    int32: block numbers of the sequence
//   full_k_rope              [F_BLOCK_NUM, fblk, RD]
//   full_kv_cache            [F_BLOCK_NUM, fblk, KD]   any memory that the device can read, a mapped file too
//   full_kv_block_table      [B, F_MAX]  int32
//   full_kv_actual_seq       [B]  int32: tokens of each sequence, those of this step included
//   full_q_actual_seq        [B]  int32: query tokens of this step; see q_len_mode
//   selection_kv_actual_seq  [rows of selection_kv_block_table]  int32, out: valid tokens of each row
//
// The four caches share one K/V dtype (as for the gather). Any strides and offsets. Quantised rows ("C8", 656
// bytes of int8 with their scales) are kv rows without rope. GQA models put K into kv_cache and V into
// k_rope.
//
// State. status[row, p], p < K: the id in slot p, -1 for none; slot p is tokens [p*bs, (p+1)*bs) of the row,
// in page selection_kv_block_table[row, p*bs / sblk]. status[row, K]: valid tokens of the row. A row is cold
// (nothing is re-used) when status[row, K] <= 0: that alone resets it. Ids in slots >= ceil(status[row, K] /
// bs) are ignored.
//
// Semantics, in unbounded integers, for row r = (b, s):
//
//   q       = q_len[b] by q_len_mode, kv = full_kv_actual_seq[b]
//   visible = s < q ? kv - (q - 1 - s) : kv
//   if visible <= 0: selection_kv_actual_seq[r] = 0, nothing else of the row is read or written
//   num_ids = ceil(visible / bs), tail = visible - (num_ids - 1) * bs
//   tokens(i) = i == num_ids - 1 ? tail : bs
//   selected = top-k entries from the left; the first negative one ends the list; ids >= num_ids are skipped,
//              repeated ids count once; n of them are left
//
//   Afterwards:
//   1. selection_kv_actual_seq[r] = status[r, K] = the sum of tokens(i) over the selected ids
//   2. status[r, 0..n) is a permutation of them, status[r, n..K) = -1
//   3. the first tokens(i) tokens of the slot that holds id i equal tokens [i*bs, i*bs + tokens(i)) of the
//      sequence in the full cache, as it is now
//   4. a partial block (tail < bs) is in slot n-1: the valid tokens are the row's first actual_seq ones
//   5. no byte at or behind the row's token actual_seq is written, nor any of another row
//   6. the set and the bytes depend on this call's inputs alone; the state before decides cost and slot order
//
//   Slot order. With len = status[r, K] before the call, slot p is trusted if len > 0, p < min(K,
//   ceil(len/bs)), it is not an old partial block (len % bs != 0 and p == len / bs), and its page is in
//   range. A selected id is resident in the lowest trusted slot that holds it, unless (i+1)*bs > kv - max(q,
//   0): those tokens may have been drafts. The others are misses.
//     a. a partial block gets slot n-1
//     b. a resident whose slot is < n, and not given away in (a), keeps it
//     c. all others, in the order of their first occurrence in top-k, get the slots < n that are left,
//     ascending
//   Residents move inside the selection cache; misses are read from the full cache, each id of a batch once,
//   however many of its rows want it.
//
//   selection_kv_actual_seq of rows >= R is 0.
//
// REQUIRES for re-use: bytes at positions < kv - q have not changed since they were cached, and the row still
// belongs to the same sequence; else reset the row. A row that was skipped or inactive while a position that
// it holds was rewritten must be reset before it runs again.
//
// Options.
//   q_len_mode     kCounts: full_q_actual_seq holds query tokens; kPrefixSum: their running sums, without a
//   leading
//                  0; kAllRows: S everywhere, full_q_actual_seq is not read and may be absent. Negative
//                  counts as 0.
//   status_row     [R] int32: row r uses status row and selection table row status_row[r] (a request's place
//   in
//                  a pool of states); -1 skips the row (output 0). status may then have any number of rows
//                  (BSND: dimension 0 times dimension 1), the table at least as many; the output stays one
//                  entry a table row, of which r is row r's.
//   counters       [R, 3] int32, out: hits, misses, moved of each row. hits + misses = n, moved <= hits; what
//                  was decided, whether or not an entry turns out bad
//   fetch_counts   [B] int32, out: distinct misses of each batch
//
// Bad entries. A full table entry that a miss needs: its column i*bs / fblk >= F_MAX, or its value outside
// [0, F_BLOCK_NUM). A selection table entry of a slot < n outside [0, S_BLOCK_NUM). A status_row outside [-1,
// rows of status), or one that a lower r has.
//   kDefault  full table: the slot gets tokens(i) zero tokens. Selection table: the slot is not written. In
//   both
//             cases n and the lengths stay, and status[r, p] = -1, so that the slot is never trusted.
//             status_row: the row is skipped.
//   kReport   the same; the record counts slots and rows: batch = r, column = slot, id = the selected id,
//   which =
//             kBadColumn or kBadSource (full table) | kBadDestination. For status_row: column = 0, id = its
//             value, which = kBadDestination, or kBadDuplicate for a repeated one.
//   kReject   refuses, in this order: q > S, any bad status_row, any bad slot (lowest row, then lowest slot).
//   Table entries of ids that are not selected are never read.
//
// One plan, many layers. schedule() makes the decisions and writes status, lengths and counters; it leaves
// the list of copies in the workspace. copy() carries the list out on the caches of one layer, any number of
// times, for layers that share tables and top-k. run() is both. A workspace holds the schedule of its last
// schedule() or run() until the next.
//
// Limits. H = 1. K >= 1, bs >= 1, K * bs <= INT32_MAX; sblk and fblk are multiples of bs and at most
// INT32_MAX; S_MAX >= ceil(K*bs / sblk), S_BLOCK_NUM >= R * S_MAX; TND: R % B == 0.
//
// Aliasing. Two elements of one output at one address are refused. Pages of different rows must differ,
// outputs and inputs must not overlap.
//
// Memory. Workspace: 24 bytes for each of R * (K + 1) blocks, 8 a batch, and for each planning thread (at
// most B of them) 52 to 84 bytes for each of K ids, with S > 1 another 72 to 104
// for each of S * K, and 4 a page of a row; status_row takes 4 bytes a row and a bit for each row of status.
// Nothing of it grows with the length of the full cache. A run allocates nothing else.
//
// On a CUDA device kReject is kUnimplemented, and any operand may lie in pinned host memory, as the full
// caches usually do. The host does not see whose schedule a workspace holds: copy() without one of this plan
// does nothing there, and returns ok. R and S * K are at most 2^30. Workspace, of the device: 32 bytes for
// each of R * (K + 1) blocks and 4 a row; K > 2048 takes 40 to 64 bytes more for each of B * K ids, S > 1 16
// to 32 for each of R * K, R > 256 8 a row, kReport 48 a batch, status_row 4 a row, and 16 to 32 more if R >
// 1024.
//
// Stream and lifetime: context.hpp. Errors as for the gather; on any error nothing is written.
//
// Source: gather_selection_kv_cache of CANN ops-transformer (custom operator npu_gather_selection_kv_cache),
// whose published implementations disagree. Differences, each on purpose: drafts are fetched again, repeated
// ids are folded, the limits on K, S, bs and row sizes are lifted; status_row, counters, policies,
// q_len_mode, and schedule / copy are ours.
#pragma once

#include <cstdint>
#include <optional>

#include "kvferry/context.hpp"
#include "kvferry/plan.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry {

enum class QLenMode : std::uint8_t { kCounts, kPrefixSum, kAllRows };

struct GatherSelectionKvCacheArgs {
  std::optional<TensorView> selection_k_rope;  // absent: nullopt, or without elements
  TensorView selection_kv_cache;
  TensorView selection_kv_block_table;
  TensorView selection_kv_block_status;
  TensorView selection_topk_indices;
  std::optional<TensorView> full_k_rope;
  TensorView full_kv_cache;
  TensorView full_kv_block_table;
  TensorView full_kv_actual_seq;
  std::optional<TensorView> full_q_actual_seq;
  TensorView selection_kv_actual_seq;
  std::optional<TensorView> status_row;
  std::optional<TensorView> counters;
  std::optional<TensorView> fetch_counts;
  std::int64_t selection_topk_block_size = 64;  // CANN's default; models with per-token selection pass 1
  QLenMode q_len_mode = QLenMode::kCounts;
  IndexPolicy index_policy = IndexPolicy::kDefault;
};

struct GatherSelectionKvCacheBuffers {
  void* selection_k_rope = nullptr;
  void* selection_kv_cache = nullptr;
  const void* selection_kv_block_table = nullptr;
  void* selection_kv_block_status = nullptr;
  const void* selection_topk_indices = nullptr;
  const void* full_k_rope = nullptr;
  const void* full_kv_cache = nullptr;
  const void* full_kv_block_table = nullptr;
  const void* full_kv_actual_seq = nullptr;
  const void* full_q_actual_seq = nullptr;
  void* selection_kv_actual_seq = nullptr;
  const void* status_row = nullptr;
  void* counters = nullptr;
  void* fetch_counts = nullptr;
  Workspace workspace;                  // >= plan.workspace_bytes()
  ErrorRecord* error_record = nullptr;  // kReport: optional
};
KVFERRY_EXPORT GatherSelectionKvCacheBuffers buffers(const GatherSelectionKvCacheArgs& args) noexcept;

KVFERRY_EXPORT Result<Plan> plan(const GatherSelectionKvCacheArgs& args, const Context& context) noexcept;
// schedule() and copy() in one call.
KVFERRY_EXPORT Status run(const Plan& plan, const GatherSelectionKvCacheBuffers& buffers,
                          const Context& context) noexcept;
// Does not look at the four caches.
KVFERRY_EXPORT Status schedule(const Plan& plan, const GatherSelectionKvCacheBuffers& buffers,
                               const Context& context) noexcept;
// Looks at the four caches and the workspace only. A workspace without a schedule of this plan (none was
// made, or the last one was refused) is kInvalidArgument.
KVFERRY_EXPORT Status copy(const Plan& plan, const GatherSelectionKvCacheBuffers& buffers,
                           const Context& context) noexcept;
KVFERRY_EXPORT Status gather_selection_kv_cache(const GatherSelectionKvCacheArgs& args,
                                                const Context& context,
                                                ErrorRecord* error_record = nullptr) noexcept;

}  // namespace kvferry
