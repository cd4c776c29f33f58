// SPDX-License-Identifier: Apache-2.0
#pragma once

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
};

// CPU implementations in order of preference.
std::span<const GroupMemcpyPlan::ImplType> group_memcpy_cpu();

}  // namespace kvferry::internal
