/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_ACL_ACLNN_BASE_H_
#define KVFERRY_ACL_ACLNN_BASE_H_

#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Accepted for the sake of existing sources; there is nothing to set up. */
ACL_FUNC_VISIBILITY aclnnStatus aclnnInit(const char* configPath);
ACL_FUNC_VISIBILITY aclnnStatus aclnnFinalize(void);

#ifdef __cplusplus
}
#endif

#endif /* KVFERRY_ACL_ACLNN_BASE_H_ */
