/* SPDX-License-Identifier: Apache-2.0
 *
 * What CANN does not have: settings of this library, and help for C. Settings hold for the process; a first
 * phase reads them. Their environment variables are read once, at the first need; a wrong value there is an
 * error of every first phase until the setting is made by a call.
 */
#ifndef KVFERRY_ACL_ACL_KVFERRY_H_
#define KVFERRY_ACL_ACL_KVFERRY_H_

#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which product's dtypes are accepted: "950" (default; Ascend 950PR / 950DT) or "a2" (Atlas A2 and A3).
 * KVFERRY_ACL_PROFILE. */
ACL_FUNC_VISIBILITY aclnnStatus aclKvferrySetProfile(const char* profile);

/* What bad table entries and slots do: "default" or "reject" (kvferry/plan.hpp). A rejected call writes
 * nothing and fails at the next aclrtSynchronizeStream. KVFERRY_ACL_INDEX_POLICY. */
ACL_FUNC_VISIBILITY aclnnStatus aclKvferrySetIndexPolicy(const char* policy);

/* What fullQActualSeq of aclnnGatherSelectionKvCache holds: "counts" (default), "prefix_sum" (running sums
 * without a leading 0), or "all_rows" (it is not read and may be null). KVFERRY_SELECTION_Q_LEN. */
ACL_FUNC_VISIBILITY aclnnStatus aclKvferrySetSelectionQLen(const char* mode);

/* The plan behind an executor as text for people, valid until this thread's next call; null for an executor
 * that is not there. For the gather it names the tiling key of a CANN build. */
ACL_FUNC_VISIBILITY const char* aclKvferryDescribe(const aclOpExecutor* executor);

/* For C: frees what aclGetViewShape, aclGetStorageShape or aclGetViewStrides returned. */
ACL_FUNC_VISIBILITY void aclKvferryDeleteDims(const int64_t* dims);

#ifdef __cplusplus
}
#endif

#endif /* KVFERRY_ACL_ACL_KVFERRY_H_ */
