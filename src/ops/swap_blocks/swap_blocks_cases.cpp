// SPDX-License-Identifier: Apache-2.0
//
// From a swap_blocks case to an Instance.
#include "ops/swap_blocks/swap_blocks_cases.hpp"

#include "ops/registry.hpp"
#include "ops/swap_blocks/swap_blocks_plan.hpp"

namespace kvferry::harness {
namespace {

void connect(Instance& instance, const std::shared_ptr<const BlockCopyCall>& held) {
  const auto args_of = [](const BlockCopyCall& call) {
    return SwapBlocksArgs{call.src, call.dst, call.mapping, call.count, call.policy};
  };
  instance.plan = [=](const Context& context) { return kvferry::plan(args_of(*held), context); };
  // The pointers must outlive work on a stream.
  const auto src = std::make_shared<std::vector<const void*>>(held->src.size());
  const auto dst = std::make_shared<std::vector<void*>>(held->dst.size());
  instance.run = [=](const Plan& plan, const Workspace& workspace, ErrorRecord* record,
                     const Context& context) {
    SwapBlocksBuffers b = buffers(args_of(*held), src->data(), dst->data());
    b.workspace = workspace;
    b.error_record = record;
    return kvferry::run(plan, b, context);
  };
  instance.call = [=](ErrorRecord* record, const Context& context) {
    const auto brief = std::make_unique<BlockCopyCall>(*held);  // gone before a stream begins
    return swap_blocks(args_of(*brief), context, record);
  };
}

std::vector<std::string> implementation_names() {
  std::vector<std::string> names;
  for (const auto& implementation : internal::swap_blocks_cpu()) names.emplace_back(implementation.name);
  return names;
}

}  // namespace

const BlockCopyFront& swap_blocks_front() {
  static const BlockCopyFront front = {Operator::kSwapBlocks, false, swap_blocks_breakers(), connect};
  return front;
}

const OperatorInfo& swap_blocks_info() {
  static const OperatorInfo info = {
      Operator::kSwapBlocks,
      "swap_blocks",
      "blocks of caches from one pool to another",
      block_copy_keys(),
      swap_blocks_registered_cases(),
      [](const Case& from) { return make_block_copy(swap_blocks_front(), from); },
      [](std::uint64_t seed) { return block_copy_random_case(swap_blocks_front(), seed); },
      implementation_names,
  };
  return info;
}

}  // namespace kvferry::harness
