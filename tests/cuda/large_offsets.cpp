// SPDX-License-Identifier: Apache-2.0
//
// 64-bit offsets: a cache of 5 GiB, whose last blocks would be others if an offset lost its upper half.
#include <array>
#include <cstring>
#include <vector>

#include "harness/random.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"
#include "kvferry/ops/scatter_pa_kv_cache.hpp"
#include "tests/cuda/gpu.hpp"

namespace kvferry::gpu {
namespace {

constexpr std::int64_t kTokens = 64;                                     // of a block
constexpr std::int64_t kHeads = 8, kHeadSize = 128, kItem = 2;           // float16
constexpr std::int64_t kTokenBytes = kHeads * kHeadSize * kItem;         // 2 KiB
constexpr std::int64_t kBlockBytes = kTokens * kTokenBytes;              // 128 KiB
constexpr std::int64_t kBlocks = (std::int64_t{5} << 30) / kBlockBytes;  // 40960
constexpr std::int64_t kAbove = (std::int64_t{1} << 32) / kBlockBytes;   // the first above 4 GiB
constexpr std::array<std::int64_t, 4> kIds = {kBlocks - 1, kAbove, kAbove + 5, 3};
constexpr std::int64_t kCount = std::ssize(kIds) * kTokens;

// What a lost upper half makes of block `id`.
std::int64_t alias_of(std::int64_t id) {
  return id < kAbove ? id : id - kAbove;
}

std::vector<std::byte> random_bytes(std::int64_t bytes, std::uint64_t seed) {
  std::vector<std::byte> to(static_cast<std::size_t>(bytes));
  harness::fill_random(to.data(), bytes, seed);
  return to;
}
std::vector<std::byte> block_bytes(std::int64_t id, std::uint64_t seed) {
  return random_bytes(kBlockBytes, seed * 1'000'003 + static_cast<std::uint64_t>(id));
}

void upload(std::byte* to, const void* from, std::int64_t bytes) {
  require(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice), "cudaMemcpy");
}
std::vector<std::byte> download(const std::byte* from, std::int64_t bytes) {
  std::vector<std::byte> to(static_cast<std::size_t>(bytes));
  require(cudaMemcpy(to.data(), from, to.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return to;
}

TensorView on_device(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view = contiguous(data, dtype, shape);
  view.device = {DeviceType::kCuda, 0};
  return view;
}

}  // namespace

std::string check_large_offsets(cudaStream_t stream) {
  ContextOptions options;
  options.device = {DeviceType::kCuda, 0};
  options.cuda_stream = stream;
  const Context context(options);
  const DeviceMemory cache(kBlocks * kBlockBytes), rows(kCount * kTokenBytes), indices(1 << 16);
  const TensorView cache_view =
      on_device(cache.data(), DType::kFloat16, {kBlocks, kTokens, kHeads, kHeadSize});
  const TensorView no_cache = on_device(nullptr, DType::kFloat16, {kBlocks, kTokens, kHeads, 0});
  const TensorView rows_view = on_device(rows.data(), DType::kFloat16, {kCount, kHeads, kHeadSize});
  const TensorView no_rows = on_device(nullptr, DType::kFloat16, {kCount, kHeads, 0});

  const auto place = [&](std::int64_t id) { return cache.data() + id * kBlockBytes; };
  for (const std::int64_t id : kIds) {
    upload(place(alias_of(id)), block_bytes(alias_of(id), 1).data(), kBlockBytes);
    upload(place(id), block_bytes(id, 1).data(), kBlockBytes);
  }
  require(cudaMemset(rows.data(), 0, kCount * kTokenBytes), "cudaMemset");
  require(cudaDeviceSynchronize(), "cudaMemset");  // the stream does not wait for it
  const std::int64_t length = kCount;
  upload(indices.data(), kIds.data(), sizeof kIds);
  upload(indices.data() + sizeof kIds, &length, sizeof length);
  GatherPaKvCacheArgs gather;
  gather.key_cache = cache_view;
  gather.key = rows_view;
  gather.value_cache = no_cache;
  gather.value = no_rows;
  gather.block_tables = on_device(indices.data(), DType::kInt64, {1, std::ssize(kIds)});
  gather.seq_lens = on_device(indices.data() + sizeof kIds, DType::kInt64, {1});
  gather.is_seq_lens_cumsum = false;
  Status status = gather_pa_kv_cache(gather, context);
  require(cudaStreamSynchronize(stream), "gather above 4 GiB");
  if (!status.ok()) return status.message();
  for (std::size_t i = 0; i < kIds.size(); ++i) {
    const auto n = static_cast<std::int64_t>(i);
    if (download(rows.data() + n * kBlockBytes, kBlockBytes) != block_bytes(kIds[i], 1))
      return "gather_pa_kv_cache: wrong bytes of block " + std::to_string(kIds[i]) + " of a 5 GiB cache";
  }

  // Back into the same blocks: other bytes, and every token of a block in reverse.
  std::vector<std::int64_t> slots;
  for (const std::int64_t id : kIds) {
    for (std::int64_t t = 0; t < kTokens; ++t) slots.push_back(id * kTokens + kTokens - 1 - t);
  }
  const std::vector<std::byte> fresh = random_bytes(kCount * kTokenBytes, 9);
  upload(rows.data(), fresh.data(), kCount * kTokenBytes);
  upload(indices.data(), slots.data(), std::ssize(slots) * 8);
  ScatterPaKvCacheArgs scatter;
  scatter.key = rows_view;
  scatter.key_cache = cache_view;
  scatter.slot_mapping = on_device(indices.data(), DType::kInt64, {kCount});
  status = scatter_pa_kv_cache(scatter, context);
  require(cudaStreamSynchronize(stream), "scatter above 4 GiB");
  if (!status.ok()) return status.message();
  for (std::size_t i = 0; i < kIds.size(); ++i) {
    const std::vector<std::byte> seen = download(place(kIds[i]), kBlockBytes);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::byte* from = fresh.data() + (static_cast<std::int64_t>(i) * kTokens + t) * kTokenBytes;
      if (std::memcmp(seen.data() + (kTokens - 1 - t) * kTokenBytes, from, kTokenBytes) != 0)
        return "scatter_pa_kv_cache: wrong bytes in block " + std::to_string(kIds[i]) + " of a 5 GiB cache";
    }
    const std::int64_t alias = alias_of(kIds[i]);
    if (alias != kIds[i] && alias != kIds.back() &&
        download(place(alias), kBlockBytes) != block_bytes(alias, 1))
      return "scatter_pa_kv_cache: block " + std::to_string(alias) + " was written, and nobody named it";
  }
  return {};
}

}  // namespace kvferry::gpu
