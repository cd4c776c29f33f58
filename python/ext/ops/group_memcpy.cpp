// SPDX-License-Identifier: Apache-2.0
#include "kvferry/ops/group_memcpy.hpp"

#include "binding.hpp"
#include "ops/operators.hpp"

namespace kvferry::python {
namespace {

struct GroupMemcpy {
  using Args = GroupMemcpyArgs;
  static constexpr Operator kOp = Operator::kGroupMemcpy;
  static constexpr const char* kName = "group_memcpy";
  static constexpr const char* kPlanName = "GroupMemcpyPlan";
  static constexpr std::size_t kPositional = 2;
  static constexpr std::tuple kFields{
      in("addr_table", &Args::addr_table),
      value("copy_bytes", &Args::copy_bytes, std::int64_t{0}, "int = 0"),
      in("sizes", &Args::sizes),
      in("count", &Args::count),
      value("host_count", &Args::host_count, std::optional<std::int64_t>(), "int | None = None"),
      value("skip_null", &Args::skip_null, false, "bool = False"),
      value("checked", &Args::checked, false, "bool = False"),
  };
  static constexpr const char* kDoc = R"(Many copies from a table of addresses.

addr_table: [2*pairs] or [pairs, 2], int64 or uint64: source 0, destination 0, source 1, destination 1, ...
copy_bytes: bytes of every pair; or
sizes:      [pairs], int64: bytes of each; copy_bytes is then 0
count:      [] or [1], int32 or int64: so many of the pairs run; or host_count, a plain number
skip_null:  pairs with a null address are left out
checked:    null, wrapping and overlapping addresses raise IndexError before anything is written

The addresses are raw: without checked a wrong one is undefined behaviour, and nothing here keeps the memory
alive. Destinations may not overlap each other nor a source.)";
};

}  // namespace

void define_group_memcpy(nb::module_& module) {
  define_operator<GroupMemcpy>(module);
}

}  // namespace kvferry::python
