/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_ACL_ACL_H_
#define KVFERRY_ACL_ACL_H_

#include "acl/acl_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Not required before any other call. The configuration file is not read. */
ACL_FUNC_VISIBILITY aclError aclInit(const char* configPath);
ACL_FUNC_VISIBILITY aclError aclFinalize(void);

#ifdef __cplusplus
}
#endif

#endif /* KVFERRY_ACL_ACL_H_ */
