// SPDX-License-Identifier: Apache-2.0
//
// copy_blocks: blocks of paged caches onto other blocks of the same caches (copy-on-write forks), all layers
// in one call.
//
// Inputs. C caches of NB blocks each, n pairs of block ids.
//
//   caches (in/out)  C tensors [NB, ...], rank 1 to 8: they share dimension 0, the others are free. Any K/V
//                    dtype, any strides and offset, each its own.
//   mapping          [n, 2]  int32 or int64: source block, destination block
//   count            optional, [] or [1], int32 or int64: the first N = clamp(count, 0, n) pairs run
//
// Semantics:
//
//   for p in 0 .. N-1, (s, d) = mapping[p]:
//     if 0 <= s < NB and 0 <= d < NB:
//       for each cache: cache[d] = cache[s]
//
//   There is no order between pairs. A pair with a negative id is skipped under every policy: it is how
//   engines pad. s == d is a no-op. One source may feed many pairs. All other bytes of the caches stay.
//   Neighbours (s, d), (s+1, d+1), ... go as one piece where blocks are dense and back to back; every pair of
//   such a run is looked at.
//
// Bad entries. A pair is bad if an id is >= NB. Of the other pairs, no-ops left out, a pair is bad if an
// earlier one has its destination, or if its source is a destination: the bytes of its destination are then
// unspecified, every other block is right.
//   kDefault  a pair out of range is skipped.
//   kReport   the same; the record counts pairs: batch = p, column = 0, which = kBadSource | kBadDestination
//             as they apply, id = the bad id, the source's if both are. kBadDuplicate joins them where the
//             ids are in range but taken.
//   kReject   refuses, in this order: any pair out of range, any pair whose blocks are taken.
//
// On a CUDA device caches are in memory of the device or pinned.
//   mapping and count there too: the kernel reads them, and kReject is kUnimplemented.
//   mapping and count both in ordinary host memory (Device{kCpu}): run() reads them before it returns, so
//   that they may go then. All policies work, with the record in memory of the host.
//
// Empty operands. C = 0, n = 0, and blocks without bytes: success, mapping is not read. A cache without
// elements is skipped.
//
// Aliasing. Two elements of one cache at one address are refused. Caches must not overlap each other, nor
// mapping and count.
//
// Memory. Workspace: 16 bytes an entry of mapping and 64 more for kReport and kReject, which look for
// repeated destinations, else none; whatever C and the blocks are. On a CUDA device 32 bytes an entry of
// device memory, or 16 of host memory where run() reads the mapping. A run allocates nothing else.
//
// Stream and lifetime: context.hpp; so does the array of pointers in the buffers. The one-call form keeps one
// of its own: args.caches may go when it returns, the memory of the caches may not. Errors: kNull,
// kInvalidArgument (shapes, dtypes), kIndex; on any error nothing is written.
//
// Source: copy_blocks of vLLM. count and the policies are ours.
#pragma once

#include <optional>
#include <span>

#include "kvferry/context.hpp"
#include "kvferry/plan.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry {

struct CopyBlocksArgs {
  std::span<const TensorView> caches;
  TensorView mapping;
  std::optional<TensorView> count;
  IndexPolicy index_policy = IndexPolicy::kDefault;
};

struct CopyBlocksBuffers {
  void* const* caches = nullptr;  // C pointers, in the order of args.caches
  const void* mapping = nullptr;
  const void* count = nullptr;
  Workspace workspace;                  // >= plan.workspace_bytes()
  ErrorRecord* error_record = nullptr;  // kReport: optional
};
// `caches` has room for args.caches.size() pointers, and is what the result refers to.
KVFERRY_EXPORT CopyBlocksBuffers buffers(const CopyBlocksArgs& args, void** caches) noexcept;

KVFERRY_EXPORT Result<Plan> plan(const CopyBlocksArgs& args, const Context& context) noexcept;
KVFERRY_EXPORT Status run(const Plan& plan, const CopyBlocksBuffers& buffers,
                          const Context& context) noexcept;
KVFERRY_EXPORT Status copy_blocks(const CopyBlocksArgs& args, const Context& context,
                                  ErrorRecord* error_record = nullptr) noexcept;

}  // namespace kvferry
