// SPDX-License-Identifier: Apache-2.0
//
// gather_dequant: quantised tokens of a paged cache to contiguous bfloat16. The only operator that converts.
//
// Inputs. B batches, W table columns, bs tokens per block, NB blocks, N rows of the output.
//
//   cache         [NB, bs, 656]  uint8 or int8: bytes, see below
//   out (in/out)  [N, 576]       bfloat16
//   block_tables  [B, W]         int32 or int64
//   seq_lens      [B], or [B+1] with is_seq_lens_cumsum; dtype of block_tables
//   seq_offset    [B], optional; dtype of block_tables
//
// A token's 656 bytes (the fp8 cache row of DeepSeek-V3.2), little-endian, without alignment:
//
//   [  0, 512)  512 x float8_e4m3fn
//   [512, 528)    4 x float32: the scales of values [0, 128), [128, 256), [256, 384), [384, 512)
//   [528, 656)   64 x bfloat16: rope
//
// The bytes of one token lie side by side: they are one record, so a last axis of cache with a stride other
// than 1 is wrong (kInvalidArgument), not merely missing here. All other axes, those of out too, may have any
// strides and offset. All tensors live on the context's device.
//
// Semantics. Which token goes to which row is the loop of gather_pa_kv_cache.hpp, with cache as its one
// cache; rows that it does not reach keep their contents. A token becomes
//
//   out[row, j]       = bfloat16(float32(value j) * scale[j / 128])   j < 512
//   out[row, 512 + j] = rope j, bit for bit                           j < 64: NaN payloads survive
//
//   The product is rounded to float32 and then to bfloat16, both to nearest, ties to even. Overflow gives
//   infinity. Subnormal values, scales and results are what they are, none is flushed to zero. Every NaN
//   result (NaN value, NaN scale, 0 * infinity) is 0x7fc0. So all backends give the same bits, whatever
//   rounding mode the calling thread is in.
//
// Bad entries. As for the gather: kDefault gives rows of zero bytes; kReport also counts entries, with which
// = kBadKey, and kBadColumn for a column outside the table; kReject refuses in the gather's order.
//
// Empty operands. N = 0: success, nothing is read. No blocks (NB = 0): every id is bad. B = 0 or W = 0 with N
// > 0 is refused, bs = 0 always.
//
// Aliasing. Two elements of out at one address are refused. out must not overlap an input.
//
// Memory. Workspace: 40 bytes a batch and 64 more, none if N = 0, whatever the lengths. A run
// allocates nothing else; helper threads start with the first call that is split.
//
// On a CUDA device kReject is kUnimplemented, and the record and the workspace (none for kDefault with at
// most 256 batches, else 40 bytes more) are device memory. A run only launches: it can be captured, and
// indices are read when the graph runs.
//
// Stream and lifetime: context.hpp. Errors as for the gather; on any error nothing is written.
//
// Source: FlashMLA's fp8 KV cache layout; vLLM's cp_gather_and_upconvert_fp8_kv_cache.
#pragma once

#include <optional>

#include "kvferry/context.hpp"
#include "kvferry/plan.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry {

struct GatherDequantArgs {
  TensorView cache;
  TensorView block_tables;
  TensorView seq_lens;
  TensorView out;
  std::optional<TensorView> seq_offset;
  bool is_seq_lens_cumsum = true;  // the gather's default
  IndexPolicy index_policy = IndexPolicy::kDefault;
};

struct GatherDequantBuffers {
  const void* cache = nullptr;
  const void* block_tables = nullptr;
  const void* seq_lens = nullptr;
  const void* seq_offset = nullptr;
  void* out = nullptr;
  Workspace workspace;                  // >= plan.workspace_bytes()
  ErrorRecord* error_record = nullptr;  // kReport: optional
};
KVFERRY_EXPORT GatherDequantBuffers buffers(const GatherDequantArgs& args) noexcept;

KVFERRY_EXPORT Result<Plan> plan(const GatherDequantArgs& args, const Context& context) noexcept;
KVFERRY_EXPORT Status run(const Plan& plan, const GatherDequantBuffers& buffers,
                          const Context& context) noexcept;
KVFERRY_EXPORT Status gather_dequant(const GatherDequantArgs& args, const Context& context,
                                     ErrorRecord* error_record = nullptr) noexcept;

}  // namespace kvferry
