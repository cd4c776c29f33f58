// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "core/impl.hpp"
#include "core/index_view.hpp"
#include "kvferry/ops/group_memcpy.hpp"

namespace kvferry::internal {

struct GroupMemcpyPlan final : PlanBody {
  using ImplType = Impl<GroupMemcpyPlan, GroupMemcpyBuffers>;

  GroupMemcpyPlan() : PlanBody(Operator::kGroupMemcpy) {}
  std::string describe_problem() const override;
  Status check(const GroupMemcpyBuffers& buffers) const;
  bool nothing_to_do() const { return pairs == 0 || (!has_sizes && copy_bytes == 0); }
  // Few large pairs of equal size are split inside, many small ones between pairs.
  bool splits_pairs() const;

  const ImplType* impl = nullptr;
  std::int64_t pairs = 0;  // H, or the host count
  std::int64_t copy_bytes = 0;
  IndexView sources, destinations;  // into the address table
  bool has_sizes = false;
  bool has_count = false;
  IndexView sizes, count;
  bool skip_null = false;
  bool checked = false;
  // On a CUDA device: the table, sizes and count are in ordinary host memory, or which of them are in pinned
  // memory.
  bool host_table = false;
  struct Pinned {
    bool addr_table = false, sizes = false, count = false;
  } pinned;
};

// A call with its run-time count and where its table is, for who reads it on the host.
struct GroupMemcpyCall {
  const GroupMemcpyPlan& plan;
  const GroupMemcpyBuffers& buffers;
  std::int64_t pairs;

  GroupMemcpyCall(const GroupMemcpyPlan& p, const GroupMemcpyBuffers& b)
      : plan(p), buffers(b), pairs(p.pairs) {
    if (p.has_count) pairs = std::clamp<std::int64_t>(p.count.at(b.count, 0), 0, p.pairs);
  }
  std::uint64_t src(std::int64_t p) const noexcept {
    return static_cast<std::uint64_t>(plan.sources.at(buffers.addr_table, p));
  }
  std::uint64_t dst(std::int64_t p) const noexcept {
    return static_cast<std::uint64_t>(plan.destinations.at(buffers.addr_table, p));
  }
  std::int64_t size(std::int64_t p) const noexcept {
    return plan.has_sizes ? plan.sizes.at(buffers.sizes, p) : plan.copy_bytes;
  }
  bool skipped(std::int64_t p) const noexcept { return plan.skip_null && (src(p) == 0 || dst(p) == 0); }
};

// Sizes to prefix sums in `ends`, one more than pairs (ends[p] = bytes before pair p); pairs that are skipped
// count 0. kIndex for a negative size, and a sum of more than 63 bits.
Status sum_sizes(const GroupMemcpyCall& call, std::int64_t* ends);

// Implementations in order of preference.
std::span<const GroupMemcpyPlan::ImplType> group_memcpy_cpu();
std::span<const GroupMemcpyPlan::ImplType> group_memcpy_cuda();

}  // namespace kvferry::internal
