// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>

#include "core/checked_math.hpp"
#include "ops/cuda_implementation.hpp"
#include "ops/group_memcpy/group_memcpy_plan.hpp"

namespace kvferry::internal {
namespace {

using PlanT = GroupMemcpyPlan;
using Buffers = GroupMemcpyBuffers;

std::string why_not(const PlanT& /*plan*/) {
  return {};
}

// The host read the table: no pair is skipped by the kernel but those that are their own source.
Status run_given(const PlanT& plan, const Buffers& buffers, cuda::Queue& queue) {
  const GroupMemcpyCall call(plan, buffers);
  cuda::GroupCopyGiven::Params params{};
  const auto add = [&](std::int64_t p) {
    params.words[2 * params.count] = call.src(p);
    params.words[2 * params.count + 1] = call.dst(p);
    ++params.count;
  };
  if (plan.has_sizes) {
    std::array<std::int64_t, cuda::GroupCopyGiven::kMostSizedPairs + 1> ends;
    if (Status status = sum_sizes(call, ends.data()); !status.ok()) return status;
    for (std::int64_t p = 0; p < call.pairs; ++p) add(p);
    std::copy_n(ends.begin(), call.pairs, params.words + 2 * call.pairs);
    params.all_bytes = ends[static_cast<std::size_t>(call.pairs)];
  } else {
    for (std::int64_t p = 0; p < call.pairs; ++p) {
      if (!call.skipped(p) && call.src(p) != call.dst(p)) add(p);
    }
    const Checked bytes = Checked(params.count) * plan.copy_bytes;
    if (bytes.overflow) {
      return {StatusCode::kIndex,
              fmt::format("group_memcpy: addr_table: {} pairs of {} bytes are more than 2^63", params.count,
                          plan.copy_bytes)};
    }
    params.pair_bytes = plan.copy_bytes;
    params.all_bytes = bytes.value;
  }
  const std::int64_t units = params.all_bytes / queue.tuning().task_bytes + (params.all_bytes > 0 ? 1 : 0);
  return queue.launch<cuda::GroupCopyGiven>(plan.op, params, units);
}

// A pair at a time by few threads, or parts of it by many.
Status run_equal(const PlanT& plan, const cuda::GroupTable& table, cuda::Queue& queue) {
  cuda::GroupCopy::Params params{};
  params.table = table;
  params.bytes = plan.copy_bytes;
  const CudaSplit split = cuda_split(plan.copy_bytes, queue.tuning().task_bytes);
  params.parts = split.parts;
  params.part_bytes = split.part_bytes;
  params.ranks = cuda_ranks(split.part_bytes, cuda::GroupCopy::kThreads);
  return queue.launch<cuda::GroupCopy>(plan.op, params,
                                       cuda_units<cuda::GroupCopy>(plan.pairs, split.parts, params.ranks));
}

Status run_sized(const PlanT& plan, const Buffers& buffers, const cuda::GroupTable& table, const void* sizes,
                 cuda::Queue& queue) {
  cuda::GroupSums::Params sums{};
  sums.table = table;
  sums.sizes = cuda_indices(plan.sizes, sizes);
  sums.ends = cuda::DevicePtr<std::int64_t>::at(aligned<std::int64_t>(buffers.workspace));
  if (Status status = queue.launch<cuda::GroupSums>(plan.op, sums, 1); !status.ok()) return status;
  cuda::GroupCopySized::Params params{};
  params.table = table;
  params.ends = sums.ends;
  // How many bytes there are only the device knows.
  return queue.launch<cuda::GroupCopySized>(plan.op, params, std::numeric_limits<std::int64_t>::max());
}

Status run(const PlanT& plan, const Buffers& buffers, cuda::Queue& queue) {
  if (plan.nothing_to_do()) return {};
  if (plan.host_table) return run_given(plan, buffers, queue);
  DevicePointers device(queue, plan.op);
  const void* const addresses = device.of(buffers.addr_table, plan.pinned.addr_table, "addr_table");
  const void* const sizes = device.of(buffers.sizes, plan.pinned.sizes, "sizes");
  const void* const count = device.of(buffers.count, plan.pinned.count, "count");
  if (!device.status().ok()) return device.status();
  cuda::GroupTable table{};
  table.addresses = cuda_indices(plan.sources, addresses);
  table.addresses.step1 = plan.destinations.base - plan.sources.base;
  table.count = cuda_indices(plan.count, count);
  table.most = plan.pairs;
  table.has_count = plan.has_count;
  table.skip_null = plan.skip_null;
  return plan.has_sizes ? run_sized(plan, buffers, table, sizes, queue) : run_equal(plan, table, queue);
}

}  // namespace

std::span<const GroupMemcpyPlan::ImplType> group_memcpy_cuda() {
  return cuda_implementation<PlanT, Buffers, why_not, run>();
}

}  // namespace kvferry::internal
