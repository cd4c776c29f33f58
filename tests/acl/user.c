/* SPDX-License-Identifier: Apache-2.0
 *
 * A user in C11: every header, and one call through both phases. */
#include "acl/acl.h"
#include "aclnn/acl_kvferry.h"
#include "aclnnop/aclnn_gather_pa_kv_cache.h"
#include "aclnnop/aclnn_gather_selection_kv_cache.h"
#include "aclnnop/aclnn_group_memcpy.h"
#include "aclnnop/aclnn_scatter_pa_kv_cache.h"

static int failed(const char* what, int code) {
  const char* text = aclGetRecentErrMsg();
  fprintf(stderr, "%s: %d %s\n", what, code, text == NULL ? "" : text);
  return 1;
}

int main(void) {
  const char from[4] = {1, 2, 3, 4};
  char to[4] = {0};
  const int64_t table[2] = {(int64_t)(intptr_t)from, (int64_t)(intptr_t)to};
  const int64_t dims[1] = {2};
  int64_t* seen = NULL;
  uint64_t count = 0, bytes = 0;
  aclOpExecutor* executor = NULL;
  aclError code = ACL_SUCCESS;
  aclTensor* tensor =
      aclCreateTensor(dims, 1, ACL_INT64, NULL, 0, ACL_FORMAT_ND, dims, 1, (void*)(intptr_t)table);
  if (aclGetViewShape(tensor, &seen, &count) != ACLNN_SUCCESS || count != 1 || seen[0] != 2) return 1;
  aclKvferryDeleteDims(seen);

  code = aclnnGroupMemcpyGetWorkspaceSize(tensor, 4, &bytes, &executor);
  if (code != ACLNN_SUCCESS) return failed("aclnnGroupMemcpyGetWorkspaceSize", code);
  code = aclnnGroupMemcpy(NULL, bytes, executor, NULL);
  if (code != ACLNN_SUCCESS) return failed("aclnnGroupMemcpy", code);
  code = aclrtSynchronizeStream(NULL);
  if (code != ACL_SUCCESS) return failed("aclrtSynchronizeStream", code);
  aclDestroyTensor(tensor);
  puts(to[0] == 1 && to[3] == 4 ? "ok" : "wrong bytes");
  return 0;
}
