// SPDX-License-Identifier: Apache-2.0
#include "ops/swap_blocks/swap_blocks_plan.hpp"

#include <memory>

namespace kvferry {
namespace internal {
namespace {

// Block i of one side fits block i of the other.
void check_counterpart(Checker& check, std::size_t i, const TensorView& src, const TensorView& dst) {
  const std::string dst_text = name_of("dst", i), src_text = name_of("src", i);
  const char* name = dst_text.c_str();
  check.same_dtype(name, dst, src_text.c_str(), src);
  check.that(dst.rank == src.rank, "{}: rank is {}, expected {} ({})", name, dst.rank, src.rank, src_text);
  for (int axis = 1; axis < dst.rank; ++axis) check.dim(name, dst, axis, src.dim(axis), src_text);
}

Result<std::shared_ptr<SwapBlocksPlan>> make_plan(const SwapBlocksArgs& a, const Context& context) {
  const BlockCopyArgs args{a.src, a.dst, a.mapping, a.count, a.index_policy};
  Checker check(Operator::kSwapBlocks, context);
  check_blocks(check, "src", a.src, false);
  check_blocks(check, "dst", a.dst, true);
  check.that(a.dst.size() == a.src.size(), "dst: {} tensors, expected {} (tensors of src)", a.dst.size(),
             a.src.size());
  for (std::size_t i = 0; check.ok() && i < a.dst.size(); ++i)
    check_counterpart(check, i, a.src[i], a.dst[i]);
  check_pairs(check, args);
  if (!check.ok()) return check.take();
  auto body = std::make_shared<SwapBlocksPlan>();
  make_block_copy(*body, args, context);
  const auto table = context.state().queue != nullptr ? swap_blocks_cuda() : swap_blocks_cpu();
  if (Status status = pick(table, context, *body); !status.ok()) return status;
  return body;
}

}  // namespace

Status SwapBlocksPlan::check(const SwapBlocksBuffers& b) const {
  return BlockCopyPlan::check("src", b.src, "dst", b.dst, b.mapping, b.count, b.workspace);
}

}  // namespace internal

SwapBlocksBuffers buffers(const SwapBlocksArgs& args, const void** src, void** dst) noexcept {
  for (std::size_t i = 0; i < args.src.size(); ++i) src[i] = args.src[i].data;
  for (std::size_t i = 0; i < args.dst.size(); ++i) dst[i] = args.dst[i].data;
  SwapBlocksBuffers b;
  b.src = src;
  b.dst = dst;
  b.mapping = args.mapping.data;
  b.count = args.count ? args.count->data : nullptr;
  return b;
}

Result<Plan> plan(const SwapBlocksArgs& args, const Context& context) noexcept {
  return internal::guarded_plan([&]() -> Result<Plan> {
    auto made = internal::make_plan(args, context);
    if (!made.ok()) return made.status();
    return Plan(std::move(made.value()));
  });
}

Status run(const Plan& plan, const SwapBlocksBuffers& buffers, const Context& context) noexcept {
  return internal::run_plan<internal::SwapBlocksPlan>(Operator::kSwapBlocks, plan, buffers, context);
}

Status swap_blocks(const SwapBlocksArgs& args, const Context& context, ErrorRecord* error_record) noexcept {
  return internal::guarded_run([&]() -> Status {
    const auto made = internal::make_plan(args, context);
    if (!made.ok()) return made.status();
    internal::SwapBlocksPlan& body = *made.value();
    body.held_src.resize(args.src.size());
    body.held_dst.resize(args.dst.size());
    SwapBlocksBuffers b = buffers(args, body.held_src.data(), body.held_dst.data());
    b.error_record = error_record;
    return internal::run_in_context(Plan(made.value()), b, context);
  });
}

}  // namespace kvferry
