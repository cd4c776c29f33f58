/* SPDX-License-Identifier: Apache-2.0
 *
 * The top-k blocks of a long paged cache into a small one: kvferry/ops/gather_selection_kv_cache.hpp. Without
 * rope, both rope tensors are empty (any tensor without elements).
 */
#ifndef KVFERRY_ACL_ACLNN_GATHER_SELECTION_KV_CACHE_H_
#define KVFERRY_ACL_ACLNN_GATHER_SELECTION_KV_CACHE_H_

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGatherSelectionKvCacheGetWorkspaceSize(
    aclTensor* selectionKRopeRef, aclTensor* selectionKvCacheRef, aclTensor* selectionKvBlockTableRef,
    aclTensor* selectionKvBlockStatusRef, const aclTensor* selectionTopkIndices, const aclTensor* fullKRope,
    const aclTensor* fullKvCache, const aclTensor* fullKvBlockTable, const aclTensor* fullKvActualSeq,
    const aclTensor* fullQActualSeq, int64_t selectionTopkBlockSize, aclTensor* selectionKvActualSeqOut,
    uint64_t* workspaceSize, aclOpExecutor** executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnGatherSelectionKvCache(void* workspace, uint64_t workspaceSize,
                                                            aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* KVFERRY_ACL_ACLNN_GATHER_SELECTION_KV_CACHE_H_ */
