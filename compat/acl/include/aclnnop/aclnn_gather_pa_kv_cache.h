/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens of paged K and V caches to contiguous K and V: kvferry/ops/gather_pa_kv_cache.hpp.
 * cacheMode: "Norm" (also when null) or "PA_NZ". seqOffsetOptional may be null.
 */
#ifndef KVFERRY_ACL_ACLNN_GATHER_PA_KV_CACHE_H_
#define KVFERRY_ACL_ACLNN_GATHER_PA_KV_CACHE_H_

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnGatherPaKvCacheGetWorkspaceSize(
    const aclTensor* keyCache, const aclTensor* valueCache, const aclTensor* blockTables,
    const aclTensor* seqLens, aclTensor* keyRef, aclTensor* valueRef, const aclTensor* seqOffsetOptional,
    char* cacheMode, bool isSeqLensCumsum, uint64_t* workspaceSize, aclOpExecutor** executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnGatherPaKvCache(void* workspace, uint64_t workspaceSize,
                                                     aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* KVFERRY_ACL_ACLNN_GATHER_PA_KV_CACHE_H_ */
