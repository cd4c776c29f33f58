// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/impl.hpp"
#include "core/index_view.hpp"
#include "core/layout.hpp"
#include "kvferry/ops/transfer_layers.hpp"

namespace kvferry::internal {

struct TransferLayersPlan final : PlanBody {
  using ImplType = Impl<TransferLayersPlan, TransferLayersBuffers>;

  // One of the L * P pools, in bytes.
  struct Pool {
    std::int64_t base = 0;
    std::int64_t block_step = 0;
    std::size_t move = 0;  // of `moves`
    bool pinned = false;
  };

  TransferLayersPlan() : PlanBody(Operator::kTransferLayers) {}
  std::string describe_problem() const override;
  Status check(const TransferLayersBuffers& buffers) const;

  // A unit of work is one slot of one pool, in the order of the chunk.
  std::int64_t units() const { return layers * entries * parts * block_size; }
  bool nothing_to_do() const { return moves.empty(); }
  bool looks_for_repeats() const { return !to_chunk && policy != IndexPolicy::kDefault; }

  const ImplType* impl = nullptr;
  std::vector<TokenMove> moves;  // a slot between pool and chunk; one for each way in which pools are strided
  std::vector<Pool> pools;       // [l * parts + p]
  std::int64_t layers = 0;
  std::int64_t entries = 0;
  std::int64_t parts = 0;
  std::int64_t blocks = 0;
  std::int64_t block_size = 0;
  // The chunk, in bytes.
  std::int64_t chunk_base = 0;
  std::int64_t layer_step = 0;
  std::int64_t entry_step = 0;
  std::int64_t part_step = 0;
  IndexView block_ids;
  bool page_first = false;
  bool to_chunk = true;
  IndexPolicy policy = IndexPolicy::kDefault;
  // On a CUDA device: in pinned host memory.
  bool pinned_chunk = false;
  bool pinned_ids = false;
};

// Implementations in order of preference.
std::span<const TransferLayersPlan::ImplType> transfer_layers_cpu();
std::span<const TransferLayersPlan::ImplType> transfer_layers_cuda();

}  // namespace kvferry::internal
