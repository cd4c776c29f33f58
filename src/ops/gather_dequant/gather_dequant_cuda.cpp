// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/dequant.hpp"
#include "ops/gather_dequant/gather_dequant_plan.hpp"
#include "ops/paged_cuda.hpp"

namespace kvferry::internal {
namespace {

using PlanT = GatherDequantPlan;
using Buffers = GatherDequantBuffers;
using Row = cpu::DequantRow;
using Kernel = cuda::PagedDequant;

static_assert(Kernel::kValues == Row::kValues && Kernel::kGroup == Row::kGroup &&
              Kernel::kScalesAt == Row::kScalesAt && Kernel::kRopeAt == Row::kRopeAt &&
              Kernel::kRopeBytes == Row::kRopeBytes);

std::string why_not(const PlanT& /*plan*/) {
  return {};
}

Status run(const PlanT& plan, const Buffers& given, cuda::Queue& queue) {
  if (plan.nothing_to_do()) return {};
  Buffers buffers = given;
  DevicePointers device(queue, plan.op);
  buffers.cache = device.of(given.cache, plan.pinned.cache, "cache");
  buffers.block_tables = device.of(given.block_tables, plan.pinned.block_tables, "block_tables");
  buffers.seq_lens = device.of(given.seq_lens, plan.pinned.seq_lens, "seq_lens");
  buffers.seq_offset = device.of(given.seq_offset, plan.pinned.seq_offset, "seq_offset");
  buffers.out = device.of(given.out, plan.pinned.out, "out");
  if (!device.status().ok()) return device.status();
  const std::uint32_t shift = cuda_task_shift(queue.tuning(), Row::kOutBytes, plan.reads.block_size);
  const auto loop = cuda_paged_loop(plan.reads, {buffers.block_tables, buffers.seq_lens, buffers.seq_offset},
                                    shift, plan.op, buffers.workspace, buffers.error_record, queue);
  if (!loop.ok()) return loop.status();
  Kernel::Params params{};
  params.loop = loop.value();
  if (plan.blocks > 0) {
    params.cache = cuda::DevicePtr<const std::uint8_t>::at(static_cast<const std::uint8_t*>(buffers.cache) +
                                                           plan.cache_base);
  }
  params.out = cuda::DevicePtr<std::uint8_t>::at(static_cast<std::uint8_t*>(buffers.out) + plan.out_base);
  params.blocks = plan.blocks;
  params.block_step = plan.block_step;
  params.slot_step = plan.slot_step;
  params.row_step = plan.row_step;
  params.element_step = plan.element_step;
  return queue.launch<Kernel>(plan.op, params, cuda_most_tasks(plan.reads, shift), plan.pinned.cache);
}

}  // namespace

std::span<const GatherDequantPlan::ImplType> gather_dequant_cuda() {
  return cuda_implementation<PlanT, Buffers, why_not, run>();
}

}  // namespace kvferry::internal
