// SPDX-License-Identifier: Apache-2.0
//
// Gathers two sequences out of a small paged cache, and shows what an error looks like.
#include <kvferry/ops/gather_pa_kv_cache.hpp>

#include <cstdint>
#include <cstdio>
#include <vector>

using kvferry::DType;

int main() {
  // 4 blocks of 2 tokens; a token has 1 head of 2 elements. The token in slot s of block b holds 10 b + s.
  const std::vector<std::int32_t> keys = {0, 0, 1, 1, 10, 10, 11, 11, 20, 20, 21, 21, 30, 30, 31, 31};
  const std::vector<std::int32_t>& values = keys;
  // The first sequence has 3 tokens, in blocks 3 and 0; the second has 2, in block 1.
  const std::vector<std::int32_t> block_tables = {3, 0, 1, -1};
  const std::vector<std::int32_t> cumulative_lens = {0, 3, 5};
  std::vector<std::int32_t> key(10);
  std::vector<std::int32_t> value(10);

  kvferry::GatherPaKvCacheArgs args;
  args.key_cache = kvferry::contiguous(keys.data(), DType::kInt32, {4, 2, 1, 2});
  args.value_cache = kvferry::contiguous(values.data(), DType::kInt32, {4, 2, 1, 2});
  args.block_tables = kvferry::contiguous(block_tables.data(), DType::kInt32, {2, 2});
  args.seq_lens = kvferry::contiguous(cumulative_lens.data(), DType::kInt32, {3});
  args.key = kvferry::contiguous(key.data(), DType::kInt32, {5, 1, 2});
  args.value = kvferry::contiguous(value.data(), DType::kInt32, {5, 1, 2});

  const kvferry::Context context;
  const kvferry::Status status = kvferry::gather_pa_kv_cache(args, context);
  if (!status.ok()) {
    std::printf("%s\n", status.message().c_str());
    return 1;
  }
  const std::vector<std::int32_t> expected = {30, 30, 31, 31, 0, 0, 10, 10, 11, 11};
  if (key != expected || value != expected) {
    std::printf("wrong bytes\n");
    return 1;
  }

  // Three elements per head, where the cache has two.
  args.key = kvferry::contiguous(key.data(), DType::kInt32, {3, 1, 3});
  const kvferry::Status refused = kvferry::gather_pa_kv_cache(args, context);
  if (refused.code() != kvferry::StatusCode::kInvalidArgument) {
    std::printf("expected invalid_argument, got %s\n", kvferry::to_string(refused.code()));
    return 1;
  }
  std::printf("%s\n", refused.message().c_str());
  std::printf("ok\n");
  return 0;
}
