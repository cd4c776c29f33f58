// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/cuda_implementation.hpp"
#include "ops/transfer_layers/transfer_layers_plan.hpp"

namespace kvferry::internal {
namespace {

using PlanT = TransferLayersPlan;
using Buffers = TransferLayersBuffers;

std::string why_not(const PlanT& plan) {
  for (const TokenMove& move : plan.moves) {
    const std::string reason = cuda_cannot_move(move);
    if (!reason.empty()) return fmt::format("slot: {}", reason);
  }
  return {};
}

Status report(const PlanT& plan, const Buffers& buffers, const cuda::LayerIds& ids, cuda::Queue& queue) {
  cuda::LayerReport::Params params{};
  params.ids = ids;
  if (plan.looks_for_repeats()) {
    params.uses = cuda::FirstUse::at(
        cuda::DevicePtr<cuda::FirstUse::Place>::at(aligned<cuda::FirstUse::Place>(buffers.workspace)),
        plan.entries);
  }
  params.record = cuda::DevicePtr<cuda::Record>::at(reinterpret_cast<cuda::Record*>(buffers.error_record));
  params.op = static_cast<std::uint32_t>(plan.op);
  return queue.launch<cuda::LayerReport>(plan.op, params, 1);
}

// The pools that `move` describes, as many at once as the parameters hold.
class Launches {
 public:
  Launches(const PlanT& plan, const Buffers& buffers, cuda::Queue& queue)
      : plan_(plan), buffers_(buffers), queue_(queue), device_(queue, plan.op) {}

  Status run() {
    const void* const ids = device_.of(buffers_.block_ids, plan_.pinned_ids, "block_ids");
    auto* const chunk = device_.of(static_cast<std::uint8_t*>(buffers_.chunk), plan_.pinned_chunk, "chunk");
    if (!device_.status().ok()) return device_.status();
    params_.ids = {cuda_indices(plan_.block_ids, ids), plan_.entries, plan_.blocks, plan_.to_chunk};
    params_.chunk = cuda::DevicePtr<std::uint8_t>::at(chunk + plan_.chunk_base);
    params_.entry_step = plan_.entry_step;
    params_.block_size = plan_.block_size;
    if (plan_.policy == IndexPolicy::kReport && buffers_.error_record != nullptr) {
      if (Status status = report(plan_, buffers_, params_.ids, queue_); !status.ok()) return status;
    }
    for (std::size_t m = 0; m < plan_.moves.size(); ++m) {
      if (Status status = move(m); !status.ok()) return status;
    }
    return {};
  }

 private:
  Status move(std::size_t m) {
    const TokenMove& move = plan_.moves[m];
    params_.part_shift = cuda_task_shift(queue_.tuning(), move.token_bytes, plan_.block_size);
    params_.parts = ((plan_.block_size - 1) >> params_.part_shift) + 1;
    params_.nest = cuda_nest(move, move.nests.front());
    for (std::size_t i = 0; i < plan_.pools.size(); ++i) {
      if (plan_.pools[i].move != m) continue;
      add(i);
      if (!device_.status().ok()) return device_.status();
      if (params_.pool_count < cuda::LayerTransfer::kMostPools) continue;
      if (Status status = launch(); !status.ok()) return status;
    }
    return launch();
  }

  void add(std::size_t i) {
    const PlanT::Pool& pool = plan_.pools[i];
    const std::int64_t layer = static_cast<std::int64_t>(i) / plan_.parts,
                       part = static_cast<std::int64_t>(i) % plan_.parts;
    void* data = (part == 0 ? buffers_.key_caches : buffers_.value_caches)[layer];
    data = device_.of(data, pool.pinned, part == 0 ? "key_caches" : "value_caches");
    from_host_ = from_host_ || pool.pinned;
    // Without blocks there is no memory either.
    params_.pools[params_.pool_count++] = {
        cuda::DevicePtr<std::uint8_t>::at(plan_.blocks > 0 ? static_cast<std::uint8_t*>(data) + pool.base
                                                           : nullptr),
        pool.block_step, layer * plan_.layer_step + part * plan_.part_step};
  }

  Status launch() {
    if (params_.pool_count == 0) return {};
    const std::int64_t units = cuda_units<cuda::LayerTransfer>(
        plan_.entries, params_.pool_count * params_.parts, cuda::LayerTransfer::kThreads);
    Status status =
        queue_.launch<cuda::LayerTransfer>(plan_.op, params_, units, from_host_ || plan_.pinned_chunk);
    params_.pool_count = 0;
    from_host_ = false;
    return status;
  }

  const PlanT& plan_;
  const Buffers& buffers_;
  cuda::Queue& queue_;
  DevicePointers device_;
  cuda::LayerTransfer::Params params_{};
  bool from_host_ = false;  // some pool of the next launch is host memory
};

Status run(const PlanT& plan, const Buffers& buffers, cuda::Queue& queue) {
  if (plan.nothing_to_do()) return {};
  return Launches(plan, buffers, queue).run();
}

}  // namespace

std::span<const TransferLayersPlan::ImplType> transfer_layers_cuda() {
  return cuda_implementation<PlanT, Buffers, why_not, run>();
}

}  // namespace kvferry::internal
