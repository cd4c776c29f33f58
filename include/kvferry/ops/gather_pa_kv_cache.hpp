// SPDX-License-Identifier: Apache-2.0
//
// gather_pa_kv_cache: the tokens of paged K and V caches to contiguous K and V.
//
// K and V are two independent gathers that share block_tables, seq_lens and seq_offset. Bytes move: no cast,
// no scale; NaN payloads and -0.0 survive.
//
// Inputs. B batches, W table columns, bs tokens per block, H heads, Dk / Dv head sizes, NBk / NBv blocks, N
// rows of the outputs, e = 32 / sizeof(element).
//
//                    CacheMode::kNorm         CacheMode::kPaNz
//   key_cache        [NBk, bs, H, Dk]         [NBk, H*Dk/e, bs, e]
//   value_cache      [NBv, bs, H, Dv]         [NBv, H*Dv/e, bs, e]
//   key   (in/out)   [N, H, Dk]               [N, H*Dk]
//   value (in/out)   [N, H, Dv]               [N, H*Dv]
//   block_tables     [B, W]     int32 or int64
//   seq_lens         [B], or [B+1] with is_seq_lens_cumsum; dtype of block_tables
//   seq_offset       [B], optional; dtype of block_tables
//
// K/V dtypes: float16, bfloat16, float32, (u)int8, (u)int16, (u)int32, hifloat8, float8_e5m2, float8_e4m3fn.
// The outputs have their cache's dtype; K and V may differ in dtype, H, D and number of blocks, not in bs and
// N. All tensors may have any strides and offset. All live on the context's device.
//
// Semantics, as if in unbounded integers:
//
//   run = 0
//   for i in 0 .. B-1:
//     if is_seq_lens_cumsum: beg, end = seq_lens[i], seq_lens[i+1]
//     else:                  beg, end = run, run + max(seq_lens[i], 0); run = end
//     n = min(end, N) - beg
//     if beg >= N or n <= 0: continue
//     shift = seq_offset ? trunc(seq_offset[i] / bs) : 0
//     for t in 0 .. n-1 with row = beg + t >= 0:
//       column = shift + t / bs, slot = t % bs
//       id = 0 <= column < W ? block_tables[i, column] : none
//       key[row]   = 0 <= id < NBk ? token (id, slot) of key_cache   : zero bytes
//       value[row] = 0 <= id < NBv ? token (id, slot) of value_cache : zero bytes
//
//   Rows that are not written keep their contents: N is what the caller allocated, never computed from
//   lengths. seq_offset counts tokens, but only whole blocks of it: it shifts the column, the slot always
//   starts at 0. A sequence of length 0 does not read the table. If decreasing sums make two batches claim
//   one row, that row's bytes are unspecified.
//
// Bad entries. A table entry is visited if the loop reaches it. It is bad for K (V) if its column is outside
// [0, W) or its id outside [0, NBk) ([0, NBv)).
//   kDefault  zero bytes, as above.
//   kReport   the same bytes; the record counts (entry, K | V) pairs, none of an empty pair; batch, column
//             (clamped to +-2^62) and id are those of the loop.
//   kReject   refuses, in this order: a negative length or first sum, decreasing sums, any bad visited entry.
//
// Empty operands. A pair is empty if its output has no elements: it is skipped (its ranks, dtypes, bs and N
// are still checked), the other is gathered. No blocks (NB = 0) with a non-empty output: every id is bad. B =
// 0 or W = 0 with N > 0 and a non-empty pair is refused, bs = 0 always.
//
// Aliasing. Two elements of one output at one address (stride 0, ...) are refused. Outputs must not overlap
// each other or an input: the caller's business.
//
// Memory. Workspace: 40 bytes a batch and 64 more, none if both outputs are empty, whatever the lengths. A
// run allocates nothing else; helper threads start with the first call that is split.
//
// Stream and lifetime: context.hpp. Errors: kNull, kInvalidArgument, kIndex (kReject only), kUnavailable
// (forced implementation or device), kOutOfMemory. On any error nothing is written.
//
// Source: aclnnGatherPaKvCache of CANN ops-transformer (Ascend 950 behaviour). Differences, each on purpose:
// an id is tested against its own cache's block count; B = 0 with rows to write is refused instead of
// ignored.
#pragma once

#include <optional>

#include "kvferry/context.hpp"
#include "kvferry/plan.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry {

struct GatherPaKvCacheArgs {
  TensorView key_cache;
  TensorView value_cache;
  TensorView block_tables;
  TensorView seq_lens;
  TensorView key;
  TensorView value;
  std::optional<TensorView> seq_offset;
  CacheMode cache_mode = CacheMode::kNorm;
  bool is_seq_lens_cumsum = true;  // CANN's default for the operator (its PyTorch binding defaults to false)
  IndexPolicy index_policy = IndexPolicy::kDefault;
};

// The pointers of one run: `data` of the views that the plan was made from, or of others of the same shape.
// Pointers of empty tensors may be null.
struct GatherPaKvCacheBuffers {
  const void* key_cache = nullptr;
  const void* value_cache = nullptr;
  const void* block_tables = nullptr;
  const void* seq_lens = nullptr;
  const void* seq_offset = nullptr;
  void* key = nullptr;
  void* value = nullptr;
  Workspace workspace;                  // >= plan.workspace_bytes()
  ErrorRecord* error_record = nullptr;  // kReport: optional
};
KVFERRY_EXPORT GatherPaKvCacheBuffers buffers(const GatherPaKvCacheArgs& args) noexcept;

// Checks everything but the values of index tensors. Of `data` only null is looked at.
KVFERRY_EXPORT Result<Plan> plan(const GatherPaKvCacheArgs& args, const Context& context) noexcept;
KVFERRY_EXPORT Status run(const Plan& plan, const GatherPaKvCacheBuffers& buffers,
                          const Context& context) noexcept;
// plan and run in one call; the workspace belongs to the context.
KVFERRY_EXPORT Status gather_pa_kv_cache(const GatherPaKvCacheArgs& args, const Context& context,
                                         ErrorRecord* error_record = nullptr) noexcept;

}  // namespace kvferry
