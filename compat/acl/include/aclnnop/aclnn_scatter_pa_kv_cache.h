/* SPDX-License-Identifier: Apache-2.0
 *
 * New tokens into the slots of paged K and V caches: kvferry/ops/scatter_pa_kv_cache.hpp. Note the order of
 * the tensors.
 *
 * value and valueCacheRef may both be null: K only. cacheModeOptional: "Norm" (also when null) or "PA_NZ".
 * scatterModeOptional: "None" (also when null), "NHSD" or "Nct"; only "Nct" reads stridesOptional and
 * offsetsOptional, two elements each. "Alibi", "Rope", "Omni" and the tensors that belong to them are not
 * implemented.
 */
#ifndef KVFERRY_ACL_ACLNN_SCATTER_PA_KV_CACHE_H_
#define KVFERRY_ACL_ACLNN_SCATTER_PA_KV_CACHE_H_

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnScatterPaKvCacheGetWorkspaceSize(
    const aclTensor* key, aclTensor* keyCacheRef, const aclTensor* slotMapping, const aclTensor* value,
    aclTensor* valueCacheRef, const aclTensor* compressLensOptional,
    const aclTensor* compressSeqOffsetOptional, const aclTensor* seqLensOptional, char* cacheModeOptional,
    char* scatterModeOptional, const aclIntArray* stridesOptional, const aclIntArray* offsetsOptional,
    uint64_t* workspaceSize, aclOpExecutor** executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnScatterPaKvCache(void* workspace, uint64_t workspaceSize,
                                                      aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* KVFERRY_ACL_ACLNN_SCATTER_PA_KV_CACHE_H_ */
