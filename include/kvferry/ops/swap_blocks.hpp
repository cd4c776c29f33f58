// SPDX-License-Identifier: Apache-2.0
//
// swap_blocks: blocks from one pool of caches to another (out to the host's pool, back in), all layers in one
// call.
//
// Inputs. C pairs of tensors, n pairs of block ids. NBs and NBd are the blocks of the two pools.
//
//   src              C tensors [NBs, ...], rank 1 to 8: they share dimension 0, the others are free
//   dst (in/out)     C tensors [NBd, ...]: dst[i] has the dtype and dimensions of src[i], but for NBd
//   mapping          [n, 2]  int32 or int64: block of src, block of dst
//   count            optional, [] or [1], int32 or int64: the first N = clamp(count, 0, n) pairs run
//
// Any K/V dtype, any strides and offset, each tensor its own: the two sides may differ in layout.
//
// Semantics:
//
//   for p in 0 .. N-1, (s, d) = mapping[p]:
//     if 0 <= s < NBs and 0 <= d < NBd:
//       for each i in 0 .. C-1: dst[i][d] = src[i][s]
//
//   There is no order between pairs. A pair with a negative id is skipped under every policy: it is how
//   engines pad. One source may feed many pairs. All other bytes of dst stay; src is not written (the name
//   is vLLM's: nothing is exchanged).
//   Neighbours (s, d), (s+1, d+1), ... go as one piece where blocks are dense and back to back on both sides;
//   every pair of such a run is looked at.
//
// Bad entries. A pair is bad if its source is >= NBs or its destination >= NBd. Of the other pairs, one is
// bad if an earlier one has its destination: the bytes of that block are then unspecified, every other is
// right.
//   kDefault  a pair out of range is skipped.
//   kReport   the same; the record counts pairs: batch = p, column = 0, which = kBadSource | kBadDestination
//             as they apply, id = the bad id, the source's if both are; which = kBadDestination |
//             kBadDuplicate for a destination that is taken.
//   kReject   refuses, in this order: any pair out of range, any destination that is taken.
//
// On a CUDA device src and dst are in memory of the device or pinned.
//   mapping and count there too: the kernel reads them, and kReject is kUnimplemented.
//   mapping and count both in ordinary host memory (Device{kCpu}): run() reads them before it returns, so
//   that they may go then. All policies work, with the record in memory of the host.
//   Between the device and pinned memory run() then chooses, by the runs of neighbours in what it has read: a
//   kernel over the link, batches for the DMA engines, or both through a buffer on the device
//   (ContextOptions::cuda_staging_bytes), which takes blocks together that are neighbours on the host only.
//   describe() says what each is estimated to take. docs/cuda.md.
//
// Empty operands. C = 0, n = 0, and blocks without bytes: success, mapping is not read. A pair of tensors
// without elements is skipped.
//
// Aliasing. Two elements of one dst tensor at one address are refused. dst tensors must not overlap each
// other, nor any input (within one pool: copy_blocks).
//
// Memory. Workspace: 16 bytes an entry of mapping and 64 more for kReport and kReject, which look for
// repeated destinations, else none; whatever C and the blocks are. On a CUDA device 32 bytes an entry of
// device memory, or 16 of host memory where run() reads the mapping. A run allocates nothing else.
//
// Stream and lifetime: context.hpp; so do the arrays of pointers in the buffers. The one-call form keeps its
// own: args.src and args.dst may go when it returns, the memory that they describe may not. Errors: kNull,
// kInvalidArgument (shapes, dtypes), kIndex; on any error nothing is written.
//
// Source: swap_blocks of vLLM. count and the policies are ours.
#pragma once

#include <optional>
#include <span>

#include "kvferry/context.hpp"
#include "kvferry/plan.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry {

struct SwapBlocksArgs {
  std::span<const TensorView> src;
  std::span<const TensorView> dst;
  TensorView mapping;
  std::optional<TensorView> count;
  IndexPolicy index_policy = IndexPolicy::kDefault;
};

struct SwapBlocksBuffers {
  const void* const* src = nullptr;  // C pointers, in the order of args.src
  void* const* dst = nullptr;
  const void* mapping = nullptr;
  const void* count = nullptr;
  Workspace workspace;                  // >= plan.workspace_bytes()
  ErrorRecord* error_record = nullptr;  // kReport: optional
};
// `src` and `dst` have room for a pointer for each tensor, and are what the result refers to.
KVFERRY_EXPORT SwapBlocksBuffers buffers(const SwapBlocksArgs& args, const void** src, void** dst) noexcept;

KVFERRY_EXPORT Result<Plan> plan(const SwapBlocksArgs& args, const Context& context) noexcept;
KVFERRY_EXPORT Status run(const Plan& plan, const SwapBlocksBuffers& buffers,
                          const Context& context) noexcept;
KVFERRY_EXPORT Status swap_blocks(const SwapBlocksArgs& args, const Context& context,
                                  ErrorRecord* error_record = nullptr) noexcept;

}  // namespace kvferry
