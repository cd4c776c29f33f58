/* SPDX-License-Identifier: Apache-2.0
 *
 * Many copies of copyBytes each from a table of addresses: kvferry/ops/group_memcpy.hpp. Provisional: CANN
 * has not published the signature of its operator, so this one may change.
 */
#ifndef KVFERRY_ACL_ACLNN_GROUP_MEMCPY_H_
#define KVFERRY_ACL_ACLNN_GROUP_MEMCPY_H_

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupMemcpyGetWorkspaceSize(const aclTensor* addrTable,
                                                                 int64_t copyBytes, uint64_t* workspaceSize,
                                                                 aclOpExecutor** executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnGroupMemcpy(void* workspace, uint64_t workspaceSize,
                                                 aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* KVFERRY_ACL_ACLNN_GROUP_MEMCPY_H_ */
