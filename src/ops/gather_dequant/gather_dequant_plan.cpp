// SPDX-License-Identifier: Apache-2.0
#include "ops/gather_dequant/gather_dequant_plan.hpp"

#include "backends/cpu/dequant.hpp"
#include "backends/cpu/parallel_for.hpp"
#include "core/checks.hpp"
#include "ops/paged_cuda.hpp"

namespace kvferry {
namespace internal {
namespace {

using Row = cpu::DequantRow;

// All rules of the operator, in the order in which they are reported.
Status check_args(const GatherDequantArgs& a, const Context& context) {
  Checker check(Operator::kGatherDequant, context);
  check.tensor("cache", a.cache);
  check.output("out", a.out);
  check.index_policy(a.index_policy);
  check.rank("cache", a.cache, 3);
  check.rank("out", a.out, 2);
  check.that(a.cache.dtype == DType::kUInt8 || a.cache.dtype == DType::kInt8,
             "cache: dtype is {}, expected uint8 or int8 (rows of bytes)", to_string(a.cache.dtype));
  check.that(a.out.dtype == DType::kBFloat16, "out: dtype is {}, expected bfloat16", to_string(a.out.dtype));
  check.that(a.cache.dim(1) > 0, "cache: dimension 1 (block size) is 0, expected > 0");
  check.dim("cache", a.cache, 2, Row::kBytes, "512 values, 4 scales, 64 rope values");
  check.dim("out", a.out, 1, Row::kOutBytes / 2, "512 values, 64 rope values");
  check.that(a.cache.stride(2) == 1, "cache: stride 2 is {}, expected 1 (a row is one record)",
             a.cache.stride(2));
  if (!check.ok()) return check.take();
  check_reads(check, a.block_tables, a.seq_lens, a.seq_offset, a.is_seq_lens_cumsum, a.out.dim(0),
              a.out.dim(0) == 0);
  return check.take();
}

}  // namespace

Status GatherDequantPlan::check(const GatherDequantBuffers& buffers) const {
  Status status = check_workspace(*this, buffers.workspace);
  const bool any = !nothing_to_do();
  need(status, *this, "cache", buffers.cache, any && blocks > 0);
  need(status, *this, "out", buffers.out, any);
  need(status, *this, "block_tables", buffers.block_tables, any);
  need(status, *this, "seq_lens", buffers.seq_lens, any);
  need(status, *this, "seq_offset", buffers.seq_offset, any && reads.has_offset);
  return status;
}

std::string GatherDequantPlan::describe_problem() const {
  return fmt::format(
             "  problem         {} batches x {} columns of {} slots, {} rows from {} blocks\n"
             "  row             {} B to {} B of bfloat16{}\n",
             reads.batches, reads.table_width, reads.block_size, reads.rows, blocks, Row::kBytes,
             Row::kOutBytes, element_step == 2 ? "" : ", element by element") +
         cpu::describe_units(reads.rows, Row::kOutBytes, threads, "rows");
}

}  // namespace internal

GatherDequantBuffers buffers(const GatherDequantArgs& args) noexcept {
  GatherDequantBuffers b;
  b.cache = args.cache.data;
  b.block_tables = args.block_tables.data;
  b.seq_lens = args.seq_lens.data;
  b.seq_offset = args.seq_offset ? args.seq_offset->data : nullptr;
  b.out = args.out.data;
  return b;
}

Result<Plan> plan(const GatherDequantArgs& args, const Context& context) noexcept {
  using namespace internal;
  return guarded_plan([&]() -> Result<Plan> {
    if (Status status = check_args(args, context); !status.ok()) return status;
    auto body = std::make_shared<GatherDequantPlan>();
    body->reads = make_reads(args.block_tables, args.seq_lens, args.seq_offset, args.is_seq_lens_cumsum,
                             args.out.dim(0), args.cache.dim(1), args.index_policy);
    body->blocks = args.cache.dim(0);
    if (!body->nothing_to_do()) body->reads.add_cache("cache", kBadKey, body->blocks);
    body->cache_base = offset_bytes(args.cache);
    body->block_step = step_bytes(args.cache, 0);
    body->slot_step = step_bytes(args.cache, 1);
    body->out_base = offset_bytes(args.out);
    body->row_step = step_bytes(args.out, 0);
    body->element_step = step_bytes(args.out, 1);
    body->pinned = {is_pinned(args.cache), is_pinned(args.block_tables), is_pinned(args.seq_lens),
                    args.seq_offset && is_pinned(*args.seq_offset), is_pinned(args.out)};
    const bool cuda = context.state().queue != nullptr;
    body->workspace_bytes = cuda ? cuda_reads_workspace(body->reads) : body->reads.workspace_bytes();
    const auto table = cuda ? gather_dequant_cuda() : gather_dequant_cpu();
    if (Status status = pick(table, context, *body); !status.ok()) return status;
    return Plan(std::move(body));
  });
}

Status run(const Plan& plan, const GatherDequantBuffers& buffers, const Context& context) noexcept {
  return internal::run_plan<internal::GatherDequantPlan>(Operator::kGatherDequant, plan, buffers, context);
}

Status gather_dequant(const GatherDequantArgs& args, const Context& context,
                      ErrorRecord* error_record) noexcept {
  GatherDequantBuffers b = buffers(args);
  b.error_record = error_record;
  return internal::plan_and_run(args, b, context);
}

}  // namespace kvferry
