// SPDX-License-Identifier: Apache-2.0
//
// One decoding step: new tokens scattered into the cache, the blocks that sparse attention picked gathered
// from it on another stream, then copies from a table of addresses. Events order the streams.
#include "acl_sample.hpp"
#include "aclnnop/aclnn_gather_selection_kv_cache.h"
#include "aclnnop/aclnn_group_memcpy.h"
#include "aclnnop/aclnn_scatter_pa_kv_cache.h"

int main() {
  using Bytes = std::vector<int8_t>;
  aclrtStream writer = nullptr, reader = nullptr;
  aclrtEvent written = nullptr;
  require(aclrtSetDevice(0), "aclrtSetDevice");
  require(aclrtCreateStream(&writer), "aclrtCreateStream");
  require(aclrtCreateStream(&reader), "aclrtCreateStream");
  require(aclrtCreateEvent(&written), "aclrtCreateEvent");

  // A cache of 4 blocks of 2 tokens; a token is one byte. The scatter sees it as [blocks, 2, heads, size].
  Bytes cache = {10, 11, 20, 21, 30, 31, 40, 41};
  const int64_t dims4[] = {4, 2, 1, 1}, dims3[] = {4, 2, 1};
  aclTensor* paged = aclCreateTensor(dims4, 4, ACL_INT8, nullptr, 0, ACL_FORMAT_ND, dims4, 4, cache.data());
  aclTensor* full = aclCreateTensor(dims3, 3, ACL_INT8, nullptr, 0, ACL_FORMAT_ND, dims3, 3, cache.data());
  Tensor<int8_t> tokens({2, 1, 1}, ACL_INT8, {77, 88});
  Tensor<int32_t> slots({2}, ACL_INT32, {7, -1});  // -1: padding
  uint64_t bytes = 0;
  aclOpExecutor* executor = nullptr;
  require(aclnnScatterPaKvCacheGetWorkspaceSize(tokens.handle, paged, slots.handle, nullptr, nullptr, nullptr,
                                                nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, &bytes,
                                                &executor),
          "aclnnScatterPaKvCacheGetWorkspaceSize");
  std::vector<char> scatter_workspace(bytes);
  require(aclnnScatterPaKvCache(scatter_workspace.data(), bytes, executor, writer), "aclnnScatterPaKvCache");
  require(aclrtRecordEvent(written, writer), "aclrtRecordEvent");

  // The sequence has 6 tokens in blocks 1, 0, 3; tokens 5 and 2 are selected.
  Tensor<int8_t> selection({1, 4, 1}, ACL_INT8, Bytes(4)), rope({0}, ACL_INT8, {}),
      full_rope({0}, ACL_INT8, {});
  Tensor<int32_t> table({1, 1}, ACL_INT32, {0}), status({1, 1, 1, 5}, ACL_INT32, {-1, -1, -1, -1, -1});
  Tensor<int32_t> topk({1, 1, 1, 4}, ACL_INT32, {5, 2, -1, -1}), full_table({1, 3}, ACL_INT32, {1, 0, 3});
  Tensor<int32_t> length({1}, ACL_INT32, {6}), queries({1}, ACL_INT32, {1}), valid({1}, ACL_INT32, {0});
  require(aclnnGatherSelectionKvCacheGetWorkspaceSize(
              rope.handle, selection.handle, table.handle, status.handle, topk.handle, full_rope.handle, full,
              full_table.handle, length.handle, queries.handle, 1, valid.handle, &bytes, &executor),
          "aclnnGatherSelectionKvCacheGetWorkspaceSize");
  std::vector<char> selection_workspace(bytes);
  require(aclrtStreamWaitEvent(reader, written), "aclrtStreamWaitEvent");
  require(aclnnGatherSelectionKvCache(selection_workspace.data(), bytes, executor, reader),
          "aclnnGatherSelectionKvCache");

  // Two copies of 2 bytes: source, destination, source, destination.
  Bytes copies(4);
  const auto address = [](int8_t* pointer) {
    return static_cast<int64_t>(reinterpret_cast<intptr_t>(pointer));
  };
  Tensor<int64_t> addresses(
      {2, 2}, ACL_INT64,
      {address(&selection.data[0]), address(&copies[2]), address(&cache[0]), address(&copies[0])});
  require(aclnnGroupMemcpyGetWorkspaceSize(addresses.handle, 2, &bytes, &executor),
          "aclnnGroupMemcpyGetWorkspaceSize");
  std::vector<char> copies_workspace(bytes);
  require(aclnnGroupMemcpy(copies_workspace.data(), bytes, executor, reader), "aclnnGroupMemcpy");
  require(aclrtSynchronizeStream(reader), "aclrtSynchronizeStream");

  require_true(cache == Bytes({10, 11, 20, 21, 30, 31, 40, 77}), "scatter");
  require_true(valid.data[0] == 2 && selection.data[0] == 77 && selection.data[1] == 10, "selection");
  require_true(copies == Bytes({10, 11, 77, 10}), "copies");
  aclDestroyTensor(paged);
  aclDestroyTensor(full);
  require(aclrtDestroyEvent(written), "aclrtDestroyEvent");
  require(aclrtResetDevice(0), "aclrtResetDevice");
  std::puts("ok");
}
