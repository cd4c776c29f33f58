// SPDX-License-Identifier: Apache-2.0
//
// aclnnGatherPaKvCache with distinct ids, a last block that is not full, running sums, offsets, PA_NZ, and an
// executor that runs once a layer.
#include <numeric>

#include "acl_sample.hpp"
#include "aclnnop/aclnn_gather_pa_kv_cache.h"

namespace {

using Keys = std::vector<uint16_t>;

Keys counting(size_t n) {
  Keys values(n);
  std::iota(values.begin(), values.end(), uint16_t{0});
  return values;
}

void run(void* workspace, uint64_t bytes, aclOpExecutor* executor, aclrtStream stream) {
  require(aclnnGatherPaKvCache(workspace, bytes, executor, stream), "aclnnGatherPaKvCache");
  require(aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");
}

// Two sequences of 3 and 2 tokens in blocks of 2 tokens of one number: block b holds 2b and 2b + 1.
void norm(bool cumsum, bool offset, aclrtStream stream) {
  Tensor<uint16_t> key_cache({6, 2, 1, 1}, ACL_FLOAT16, counting(12));
  Tensor<uint16_t> value_cache({6, 2, 1, 1}, ACL_FLOAT16, counting(12));
  Tensor<int32_t> tables({2, 3}, ACL_INT32, {5, 2, 4, 0, 3, 1});
  const std::vector<int32_t> lengths = cumsum ? std::vector<int32_t>{0, 3, 5} : std::vector<int32_t>{3, 2};
  Tensor<int32_t> lens({static_cast<int64_t>(lengths.size())}, ACL_INT32, lengths);
  Tensor<int32_t> offsets({2}, ACL_INT32, {2, 3});  // one block each: the rest of 3 does not count
  Tensor<uint16_t> key({5, 1, 1}, ACL_FLOAT16, Keys(5, 99)), value({5, 1, 1}, ACL_FLOAT16, Keys(5, 99));
  char mode[] = "Norm";
  uint64_t bytes = 0;
  aclOpExecutor* executor = nullptr;
  require(aclnnGatherPaKvCacheGetWorkspaceSize(
              key_cache.handle, value_cache.handle, tables.handle, lens.handle, key.handle, value.handle,
              offset ? offsets.handle : nullptr, mode, cumsum, &bytes, &executor),
          "aclnnGatherPaKvCacheGetWorkspaceSize");
  std::vector<char> workspace(bytes);
  run(workspace.data(), bytes, executor, stream);
  const Keys expected = offset ? Keys{4, 5, 8, 6, 7} : Keys{10, 11, 4, 0, 1};
  require_true(key.data == expected && value.data == expected, "Norm");
}

// FRACTAL_NZ: element j of token s of block b is cache[b, j / 16, s, j % 16].
void nz(aclrtStream stream) {
  Tensor<uint16_t> cache({2, 2, 2, 16}, ACL_FLOAT16, counting(128), ACL_FORMAT_FRACTAL_NZ);
  Tensor<int32_t> tables({1, 1}, ACL_INT32, {1}), lens({1}, ACL_INT32, {2});
  Tensor<uint16_t> key({2, 32}, ACL_FLOAT16, Keys(64)), value({2, 32}, ACL_FLOAT16, Keys(64));
  char mode[] = "PA_NZ";
  uint64_t bytes = 0;
  aclOpExecutor* executor = nullptr;
  require(
      aclnnGatherPaKvCacheGetWorkspaceSize(cache.handle, cache.handle, tables.handle, lens.handle, key.handle,
                                           value.handle, nullptr, mode, false, &bytes, &executor),
      "aclnnGatherPaKvCacheGetWorkspaceSize");
  std::vector<char> workspace(bytes);
  run(workspace.data(), bytes, executor, stream);
  require_true(key.data[0] == 64 && key.data[16] == 96 && key.data[32] == 80 && value.data[63] == 127,
               "PA_NZ");
}

// One executor, one table, a cache for every layer.
void layers(aclrtStream stream) {
  Keys caches = counting(3 * 4), keys(3 * 2);
  Tensor<uint16_t> cache({2, 2, 1, 1}, ACL_FLOAT16, Keys(4)), value({2, 1, 1}, ACL_FLOAT16, Keys(2));
  Tensor<uint16_t> key({2, 1, 1}, ACL_FLOAT16, Keys(2));
  Tensor<int32_t> tables({1, 1}, ACL_INT32, {1}), lens({1}, ACL_INT32, {2});
  uint64_t bytes = 0;
  aclOpExecutor* executor = nullptr;
  require(
      aclnnGatherPaKvCacheGetWorkspaceSize(cache.handle, cache.handle, tables.handle, lens.handle, key.handle,
                                           value.handle, nullptr, nullptr, false, &bytes, &executor),
      "aclnnGatherPaKvCacheGetWorkspaceSize");
  require(aclSetAclOpExecutorRepeatable(executor), "aclSetAclOpExecutorRepeatable");
  std::vector<char> workspace(bytes);
  for (size_t layer = 0; layer < 3; ++layer) {
    require(aclSetTensorAddr(executor, 0, cache.handle, &caches[layer * 4]), "aclSetTensorAddr");
    require(aclSetOutputTensorAddr(executor, 0, key.handle, &keys[layer * 2]), "aclSetOutputTensorAddr");
    require(aclnnGatherPaKvCache(workspace.data(), bytes, executor, stream), "aclnnGatherPaKvCache");
  }
  require(aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");
  require(aclDestroyAclOpExecutor(executor), "aclDestroyAclOpExecutor");
  require_true(keys == Keys{2, 3, 6, 7, 10, 11}, "layers");
}

}  // namespace

int main() {
  aclrtStream stream = nullptr;
  require(aclrtSetDevice(0), "aclrtSetDevice");
  require(aclrtCreateStream(&stream), "aclrtCreateStream");
  for (const bool cumsum : {false, true}) {
    for (const bool offset : {false, true}) norm(cumsum, offset, stream);
  }
  nz(stream);
  layers(stream);
  require(aclrtDestroyStream(stream), "aclrtDestroyStream");
  std::puts("ok");
}
