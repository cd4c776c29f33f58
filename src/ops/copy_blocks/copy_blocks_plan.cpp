// SPDX-License-Identifier: Apache-2.0
#include "ops/copy_blocks/copy_blocks_plan.hpp"

#include <memory>

namespace kvferry {
namespace internal {
namespace {

Result<std::shared_ptr<CopyBlocksPlan>> make_plan(const CopyBlocksArgs& a, const Context& context) {
  const BlockCopyArgs args{a.caches, a.caches, a.mapping, a.count, a.index_policy};
  Checker check(Operator::kCopyBlocks, context);
  check_blocks(check, "caches", a.caches, true);
  check_pairs(check, args);
  if (!check.ok()) return check.take();
  auto body = std::make_shared<CopyBlocksPlan>();
  make_block_copy(*body, args, context);
  const auto table = context.state().queue != nullptr ? copy_blocks_cuda() : copy_blocks_cpu();
  if (Status status = pick(table, context, *body); !status.ok()) return status;
  return body;
}

}  // namespace

Status CopyBlocksPlan::check(const CopyBlocksBuffers& b) const {
  return BlockCopyPlan::check("caches", b.caches, "caches", b.caches, b.mapping, b.count, b.workspace);
}

}  // namespace internal

CopyBlocksBuffers buffers(const CopyBlocksArgs& args, void** caches) noexcept {
  for (std::size_t i = 0; i < args.caches.size(); ++i) caches[i] = args.caches[i].data;
  CopyBlocksBuffers b;
  b.caches = caches;
  b.mapping = args.mapping.data;
  b.count = args.count ? args.count->data : nullptr;
  return b;
}

Result<Plan> plan(const CopyBlocksArgs& args, const Context& context) noexcept {
  return internal::guarded_plan([&]() -> Result<Plan> {
    auto made = internal::make_plan(args, context);
    if (!made.ok()) return made.status();
    return Plan(std::move(made.value()));
  });
}

Status run(const Plan& plan, const CopyBlocksBuffers& buffers, const Context& context) noexcept {
  return internal::run_plan<internal::CopyBlocksPlan>(Operator::kCopyBlocks, plan, buffers, context);
}

Status copy_blocks(const CopyBlocksArgs& args, const Context& context, ErrorRecord* error_record) noexcept {
  return internal::guarded_run([&]() -> Status {
    const auto made = internal::make_plan(args, context);
    if (!made.ok()) return made.status();
    internal::CopyBlocksPlan& body = *made.value();
    body.held_dst.resize(args.caches.size());
    CopyBlocksBuffers b = buffers(args, body.held_dst.data());
    b.error_record = error_record;
    return internal::run_in_context(Plan(made.value()), b, context);
  });
}

}  // namespace kvferry
