// SPDX-License-Identifier: Apache-2.0
//
// What the two phases of a small aclnnGatherPaKvCache cost the caller: submission only, with the stream's
// worker awake, beside the cheapest call across the library's boundary. Prints medians in nanoseconds.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_gather_pa_kv_cache.h"

namespace {

constexpr int kSamples = 10000;
// Short enough for the queue to stay shorter than the worker is fast, and for nothing to wait inside a
// sample.
constexpr int kCallsBetweenWaits = 16;

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void require(int code) {
  if (code == 0) return;
  std::fprintf(stderr, "%d %s\n", code, aclGetRecentErrMsg());
  std::exit(1);
}

std::int64_t median(std::vector<std::int64_t> samples) {
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

aclTensor* tensor(std::vector<std::int64_t> dims, aclDataType dtype, void* data) {
  return aclCreateTensor(dims.data(), dims.size(), dtype, nullptr, 0, ACL_FORMAT_ND, dims.data(), dims.size(),
                         data);
}

}  // namespace

int main() {
  // One sequence of one token of 2 KiB, K and V.
  std::vector<std::uint16_t> key_pool(64 * 16 * 1024), value_pool(key_pool.size()), key(1024), value(1024);
  std::array<std::int32_t, 4> table = {3, 1, 2, 0};
  std::array<std::int32_t, 1> length = {1};
  const std::array<aclTensor*, 6> tensors = {tensor({64, 16, 8, 128}, ACL_FLOAT16, key_pool.data()),
                                             tensor({64, 16, 8, 128}, ACL_FLOAT16, value_pool.data()),
                                             tensor({1, 4}, ACL_INT32, table.data()),
                                             tensor({1}, ACL_INT32, length.data()),
                                             tensor({1, 8, 128}, ACL_FLOAT16, key.data()),
                                             tensor({1, 8, 128}, ACL_FLOAT16, value.data())};
  aclrtStream stream = nullptr;
  require(aclrtCreateStream(&stream));
  std::uint64_t bytes = 0;
  aclOpExecutor* executor = nullptr;
  const auto phase_one = [&] {
    require(aclnnGatherPaKvCacheGetWorkspaceSize(tensors[0], tensors[1], tensors[2], tensors[3], tensors[4],
                                                 tensors[5], nullptr, nullptr, false, &bytes, &executor));
  };
  phase_one();
  std::vector<char> workspace(bytes);
  const auto phase_two = [&] { require(aclnnGatherPaKvCache(workspace.data(), bytes, executor, stream)); };
  phase_two();

  std::vector<std::int64_t> empty, first, second, both, repeated;
  for (int i = 0; i < kSamples; ++i) {
    if (i % kCallsBetweenWaits == 0) require(aclrtSynchronizeStream(stream));
    const std::int64_t t0 = now();
    aclDataTypeSize(ACL_FLOAT16);
    const std::int64_t t1 = now();
    phase_one();
    const std::int64_t t2 = now();
    phase_two();
    const std::int64_t t3 = now();
    empty.push_back(t1 - t0);
    first.push_back(t2 - t1);
    second.push_back(t3 - t2);
    both.push_back(t3 - t1);
  }
  require(aclrtSynchronizeStream(stream));
  phase_one();
  require(aclSetAclOpExecutorRepeatable(executor));
  for (int i = 0; i < kSamples; ++i) {
    if (i % kCallsBetweenWaits == 0) require(aclrtSynchronizeStream(stream));
    const std::int64_t t0 = now();
    phase_two();
    repeated.push_back(now() - t0);
  }
  require(aclrtSynchronizeStream(stream));
  require(aclDestroyAclOpExecutor(executor));
  for (const aclTensor* one : tensors) aclDestroyTensor(one);
  require(aclrtDestroyStream(stream));
  std::printf("medians of %d, ns (each contains one reading of the clock)\n", kSamples);
  std::printf("empty call                   %6ld\n", static_cast<long>(median(empty)));
  std::printf("phase 1                      %6ld\n", static_cast<long>(median(first)));
  std::printf("phase 2                      %6ld\n", static_cast<long>(median(second)));
  std::printf("phase 1 + phase 2            %6ld\n", static_cast<long>(median(both)));
  std::printf("phase 2, repeatable executor %6ld\n", static_cast<long>(median(repeated)));
}
