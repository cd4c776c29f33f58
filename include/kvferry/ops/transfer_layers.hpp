// SPDX-License-Identifier: Apache-2.0
//
// transfer_layers: blocks of many layers between per-layer paged pools and one contiguous chunk: what offload
// and disaggregation layers ship.
//
// Bytes move: no cast, no scale.
//
// Inputs. L layers, n entries of block_ids, NB blocks of bs tokens in a pool, H heads, D head size, P = 2 (K,
// then V) or 1 (no value pools).
//
//   key_caches    L pools [NB, bs, H, D]
//   value_caches  L pools of the same shape, or none (MLA)
//   chunk         ChunkLayout::kLayerFirst [L, n, P, bs, H, D], ChunkLayout::kPageFirst [n, L, P, bs, H, D]
//   block_ids     [n]  int32 or int64
//
// K/V dtypes as for the gather; all pools and the chunk share one. Each may have its own strides and offset:
// vLLM's [2, NB, ...] and [NB, 2, ...] are two slices, heads-first storage [NB, H, bs, D] is a view with
// permuted strides. All live on the context's device.
//
// Semantics:
//
//   for i in 0 .. n-1, l in 0 .. L-1, p in 0 .. P-1, id = block_ids[i]:
//     pool  = p == 0 ? key_caches[l] : value_caches[l]
//     place = kLayerFirst ? chunk[l, i, p] : chunk[i, l, p]
//     kPoolsToChunk: place = 0 <= id < NB ? pool[id] : zero bytes
//     kChunkToPools: if 0 <= id < NB: pool[id] = place
//
//   kPoolsToChunk defines the whole chunk. kChunkToPools leaves every block alone that no entry names.
//
// Bad entries. Records have batch = i, column = 0, id, and count an entry once, whatever L and P.
//   kPoolsToChunk: a negative id and an id >= NB are bad. kDefault writes zero bytes; kReport also records,
//   with which = kBadSource; kReject refuses. Repeated ids are fine.
//   kChunkToPools: a negative id is skipped under every policy, it is padding. An id >= NB is bad: kDefault
//   skips it; kReport also records, with which = kBadDestination; kReject refuses. An id that an earlier
//   entry already named is bad too: the bytes of its blocks are unspecified, all others are right; kReport
//   records it with which = kBadDuplicate; kReject refuses and names both entries. kReject looks for ids out
//   of range first.
//
// On a CUDA device every tensor is in memory of the device or pinned, and kReject is kUnimplemented.
//
// Empty operands. A chunk without elements (L = 0, n = 0, H = 0 or D = 0): success, nothing is read. With L =
// 0, P may be 1 or 2. No blocks (NB = 0) with a chunk that has elements: every id is out of range. bs = 0 is
// refused.
//
// Aliasing. Two elements of a written tensor at one address are refused. What is written must not overlap
// anything else; pools may lie inside one another's strides.
//
// Memory. Workspace: 16 bytes an entry of block_ids and 64 more for kChunkToPools with kReport or kReject,
// which look for repeated ids, else none; whatever L is. On a CUDA device 32 bytes an entry. A run
// allocates nothing else.
//
// Stream and lifetime: context.hpp. The arrays of pointers that TransferLayersBuffers names are read when
// the work runs: they live as long as the buffers (on a CUDA device: until run() returns). The one-call
// form keeps a copy of its own.
//
// Errors as for the gather; on any error nothing is written.
//
// Source: the layer-wise and page-wise block layouts of vLLM's connectors, SGLang's HiCache
// (transfer_kv_all_layer) and LMCache (multi_layer_kv_transfer).
#pragma once

#include <span>

#include "kvferry/context.hpp"
#include "kvferry/plan.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry {

enum class ChunkLayout : std::uint8_t { kLayerFirst, kPageFirst };
enum class TransferDirection : std::uint8_t { kPoolsToChunk, kChunkToPools };

// The spans are looked at by plan(), buffers() and transfer_layers() only.
struct TransferLayersArgs {
  std::span<const TensorView> key_caches;
  std::span<const TensorView> value_caches;
  TensorView chunk;
  TensorView block_ids;
  ChunkLayout chunk_layout = ChunkLayout::kLayerFirst;
  TransferDirection direction = TransferDirection::kPoolsToChunk;
  IndexPolicy index_policy = IndexPolicy::kDefault;
};

struct TransferLayersBuffers {
  void* const* key_caches = nullptr;    // L pointers; those of the side that is read are never written to
  void* const* value_caches = nullptr;  // L pointers, null without value pools
  void* chunk = nullptr;
  const void* block_ids = nullptr;
  Workspace workspace;                  // >= plan.workspace_bytes()
  ErrorRecord* error_record = nullptr;  // kReport: optional
};
// Fills `pointers` with the data of the key pools and then of the value pools. REQUIRES room for all of them.
KVFERRY_EXPORT TransferLayersBuffers buffers(const TransferLayersArgs& args,
                                             std::span<void*> pointers) noexcept;

KVFERRY_EXPORT Result<Plan> plan(const TransferLayersArgs& args, const Context& context) noexcept;
KVFERRY_EXPORT Status run(const Plan& plan, const TransferLayersBuffers& buffers,
                          const Context& context) noexcept;
KVFERRY_EXPORT Status transfer_layers(const TransferLayersArgs& args, const Context& context,
                                      ErrorRecord* error_record = nullptr) noexcept;

}  // namespace kvferry
