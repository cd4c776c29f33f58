// SPDX-License-Identifier: Apache-2.0
#include "aclnnop/aclnn_group_memcpy.h"

#include "acl_phase_one.hpp"
#include "kvferry/ops/group_memcpy.hpp"

namespace kvferry::acl {
namespace {

constexpr std::array<Operand<GroupMemcpyBuffers>, 1> kOperands = {{
    operand<&GroupMemcpyBuffers::addr_table, GroupMemcpyBuffers>(false),
}};

// The same in all profiles.
std::string why_not(Profile, const GroupMemcpyArgs&) {
  return {};
}

}  // namespace
}  // namespace kvferry::acl

using namespace kvferry::acl;

aclnnStatus aclnnGroupMemcpyGetWorkspaceSize(const aclTensor* addrTable, int64_t copyBytes,
                                             uint64_t* workspaceSize, aclOpExecutor** executor) {
  return guarded(ACLNN_ERR_INNER, [&] {
    PhaseOne phase(kvferry::Operator::kGroupMemcpy, workspaceSize, executor);
    kvferry::GroupMemcpyArgs args;
    args.addr_table = phase.tensor("addrTable", addrTable);
    args.copy_bytes = copyBytes;
    return phase.finish(args, kOperands, why_not);
  });
}

aclnnStatus aclnnGroupMemcpy(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                             aclrtStream stream) {
  return guarded(ACLNN_ERR_INNER, [&] {
    return executors().launch(kvferry::Operator::kGroupMemcpy, executor, workspace, workspaceSize, stream);
  });
}
