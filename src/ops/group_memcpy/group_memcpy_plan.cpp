// SPDX-License-Identifier: Apache-2.0
#include "ops/group_memcpy/group_memcpy_plan.hpp"

#include "backends/cpu/parallel_for.hpp"
#include "backends/cpu/tuning.hpp"
#include "core/checked_math.hpp"
#include "core/checks.hpp"
#include "ops/cuda_implementation.hpp"

namespace kvferry {
namespace internal {
namespace {

std::int64_t pairs_of(const TensorView& table) {
  return table.rank == 1 ? table.dim(0) / 2 : table.dim(0);
}

// The device cannot: run() has to.
bool reads_on_host(const GroupMemcpyArgs& a, const Context& context) {
  return context.state().queue != nullptr && is_on_host(a.addr_table);
}

// All rules of the operator, in the order in which they are reported.
Status check_args(const GroupMemcpyArgs& a, const Context& context) {
  Checker check(Operator::kGroupMemcpy, context);
  check.indices("addr_table", a.addr_table);
  check.that(a.addr_table.rank == 1 || a.addr_table.rank == 2,
             "addr_table: rank is {}, expected 1 ([2H]) or 2 ([H, 2])", a.addr_table.rank);
  check.that(a.addr_table.dtype == DType::kInt64 || a.addr_table.dtype == DType::kUInt64,
             "addr_table: dtype is {}, expected int64 or uint64", to_string(a.addr_table.dtype));
  if (a.addr_table.rank == 2) check.dim("addr_table", a.addr_table, 1, 2, "a source and a destination");
  check.that(a.addr_table.rank == 2 || a.addr_table.dim(0) % 2 == 0,
             "addr_table: dimension 0 is {}, expected an even number (sources and destinations)",
             a.addr_table.dim(0));
  if (a.checked) check.on_host("checked: true, expected false");
  check.that(a.copy_bytes >= 0, "copy_bytes: {}, expected >= 0", a.copy_bytes);
  const std::int64_t pairs = pairs_of(a.addr_table);
  if (a.sizes) {
    check.indices_beside("sizes", *a.sizes, "addr_table", a.addr_table);
    check.rank("sizes", *a.sizes, 1);
    check.that(a.sizes->dtype == DType::kInt64, "sizes: dtype is {}, expected int64",
               to_string(a.sizes->dtype));
    check.dim("sizes", *a.sizes, 0, pairs, "pairs of addr_table");
    check.that(a.copy_bytes == 0, "copy_bytes: {}, expected 0 together with sizes", a.copy_bytes);
  }
  if (a.count) {
    check.count("count", *a.count, "addr_table", a.addr_table);
    check.that(!a.host_count, "host_count: {}, expected none together with count", a.host_count.value_or(0));
  }
  if (a.host_count) {
    check.that(*a.host_count >= 0 && *a.host_count <= pairs,
               "host_count: {}, expected 0 to {} (pairs of addr_table)", *a.host_count, pairs);
  }
  if (reads_on_host(a, context)) {
    const std::int64_t most =
        a.sizes ? cuda::GroupCopyGiven::kMostSizedPairs : cuda::GroupCopyGiven::kMostPairs;
    check.that(
        a.host_count.value_or(pairs) <= most,
        "addr_table: {} pairs{} in ordinary host memory, expected at most {}, or device or pinned memory",
        a.host_count.value_or(pairs), a.sizes ? " with sizes" : "", most);
  }
  // Sizes and sorted pairs, 8 bytes each.
  check.that(!(Checked(pairs) * 16 + 3 * kWorkspaceAlign).overflow,
             "addr_table: {} pairs are too many for 64 bits", pairs);
  return check.take();
}

}  // namespace

Status GroupMemcpyPlan::check(const GroupMemcpyBuffers& buffers) const {
  Status status = check_workspace(*this, buffers.workspace);
  need(status, *this, "addr_table", buffers.addr_table, !nothing_to_do());
  need(status, *this, "sizes", buffers.sizes, !nothing_to_do() && has_sizes);
  need(status, *this, "count", buffers.count, !nothing_to_do() && has_count);
  return status;
}

bool GroupMemcpyPlan::splits_pairs() const {
  // More than 2^63 bytes can only be pairs that are skipped.
  return copy_bytes >= cpu::kTuning.min_claim_bytes && !(Checked(pairs) * copy_bytes).overflow;
}

std::string GroupMemcpyPlan::describe_problem() const {
  std::string text = fmt::format("  problem         {} pairs of {}{}{}{}\n", pairs,
                                 has_sizes ? "their own size" : fmt::format("{} B", copy_bytes),
                                 has_count ? ", count read at run time" : "",
                                 skip_null ? ", null pairs skipped" : "", checked ? ", checked" : "");
  if (host_table) text += "  table           read by run(), into the parameters of the kernel\n";
  if (has_sizes) return text + "  units           bytes of all pairs, known at run time\n";
  return text + (splits_pairs() ? cpu::describe_units(pairs * copy_bytes, 1, threads, "bytes")
                                : cpu::describe_units(pairs, copy_bytes, threads, "pairs"));
}

}  // namespace internal

GroupMemcpyBuffers buffers(const GroupMemcpyArgs& args) noexcept {
  GroupMemcpyBuffers b;
  b.addr_table = args.addr_table.data;
  b.sizes = args.sizes ? args.sizes->data : nullptr;
  b.count = args.count ? args.count->data : nullptr;
  return b;
}

Result<Plan> plan(const GroupMemcpyArgs& args, const Context& context) noexcept {
  using namespace internal;
  return guarded_plan([&]() -> Result<Plan> {
    if (Status status = check_args(args, context); !status.ok()) return status;
    auto body = std::make_shared<GroupMemcpyPlan>();
    body->pairs = args.host_count.value_or(pairs_of(args.addr_table));
    body->copy_bytes = args.copy_bytes;
    // [2H] and [H, 2] are both "pair p at a step, destination one element further".
    const std::int64_t element = args.addr_table.stride(args.addr_table.rank - 1) * 8;
    body->sources = IndexView(args.addr_table);
    body->sources.step0 = args.addr_table.rank == 1 ? 2 * element : step_bytes(args.addr_table, 0);
    body->destinations = body->sources;
    body->destinations.base += element;
    body->has_sizes = args.sizes.has_value();
    if (args.sizes) body->sizes = IndexView(*args.sizes);
    body->has_count = args.count.has_value();
    if (args.count) body->count = IndexView(*args.count);
    body->skip_null = args.skip_null;
    body->checked = args.checked;
    const bool cuda = context.state().queue != nullptr;
    body->host_table = reads_on_host(args, context);
    body->pinned = {is_pinned(args.addr_table), args.sizes && is_pinned(*args.sizes),
                    args.count && is_pinned(*args.count)};
    if (!body->nothing_to_do() && !body->host_table && (body->has_sizes || body->checked)) {
      const std::int64_t words = (body->has_sizes ? body->pairs + 1 : 0) + (body->checked ? body->pairs : 0);
      body->workspace_bytes = words * 8 + kWorkspaceAlign;
    }
    const auto table = cuda ? group_memcpy_cuda() : group_memcpy_cpu();
    if (Status status = pick(table, context, *body); !status.ok()) return status;
    return Plan(std::move(body));
  });
}

Status run(const Plan& plan, const GroupMemcpyBuffers& buffers, const Context& context) noexcept {
  return internal::run_plan<internal::GroupMemcpyPlan>(Operator::kGroupMemcpy, plan, buffers, context);
}

Status group_memcpy(const GroupMemcpyArgs& args, const Context& context) noexcept {
  return internal::plan_and_run(args, buffers(args), context);
}

}  // namespace kvferry
