// SPDX-License-Identifier: Apache-2.0
//
// From a copy_blocks case to an Instance.
#include "ops/copy_blocks/copy_blocks_cases.hpp"

#include "ops/copy_blocks/copy_blocks_plan.hpp"
#include "ops/registry.hpp"

namespace kvferry::harness {
namespace {

void connect(Instance& instance, const std::shared_ptr<const BlockCopyCall>& held) {
  const auto args_of = [](const BlockCopyCall& call) {
    return CopyBlocksArgs{call.dst, call.mapping, call.count, call.policy};
  };
  instance.plan = [=](const Context& context) { return kvferry::plan(args_of(*held), context); };
  // The pointers must outlive work on a stream.
  const auto pointers = std::make_shared<std::vector<void*>>(held->dst.size());
  instance.run = [=](const Plan& plan, const Workspace& workspace, ErrorRecord* record,
                     const Context& context) {
    CopyBlocksBuffers b = buffers(args_of(*held), pointers->data());
    b.workspace = workspace;
    b.error_record = record;
    return kvferry::run(plan, b, context);
  };
  instance.call = [=](ErrorRecord* record, const Context& context) {
    const auto brief = std::make_unique<BlockCopyCall>(*held);  // gone before a stream begins
    return copy_blocks(args_of(*brief), context, record);
  };
}

std::vector<std::string> implementation_names() {
  std::vector<std::string> names;
  for (const auto& implementation : internal::copy_blocks_cpu()) names.emplace_back(implementation.name);
  return names;
}

}  // namespace

const BlockCopyFront& copy_blocks_front() {
  static const BlockCopyFront front = {Operator::kCopyBlocks, true, {}, connect};
  return front;
}

const OperatorInfo& copy_blocks_info() {
  static const OperatorInfo info = {
      Operator::kCopyBlocks,
      "copy_blocks",
      "blocks of caches onto other blocks of the same caches",
      block_copy_keys(),
      copy_blocks_registered_cases(),
      [](const Case& from) { return make_block_copy(copy_blocks_front(), from); },
      [](std::uint64_t seed) { return block_copy_random_case(copy_blocks_front(), seed); },
      implementation_names,
  };
  return info;
}

}  // namespace kvferry::harness
