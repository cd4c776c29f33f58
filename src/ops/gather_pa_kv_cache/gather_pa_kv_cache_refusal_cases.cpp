// SPDX-License-Identifier: Apache-2.0
//
// Every rule of the gather's plan(), broken one at a time. A message names the tensor, the dimension, what
// was seen and what was expected.
#include <fmt/format.h>

#include <limits>

#include "harness/breaking.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_cases.hpp"

namespace kvferry::harness {
namespace {

using Args = GatherPaKvCacheArgs;
using Words = std::vector<std::string>;

constexpr StatusCode kBad = StatusCode::kInvalidArgument;
constexpr StatusCode kNull = StatusCode::kNull;

// With cumulative sums the expectation is "2 + 1", not a number of its own.
void change_lengths(Args& args, std::int64_t n, Words& words) {
  grow(args.seq_lens, 0, n, "seq_lens", words);
  if (args.is_seq_lens_cumsum) words.back() = fmt::format("{} + 1", args.block_tables.dim(0));
}

constexpr GatherBreaker kBreakers[] = {
    {"key_cache_null", kNull, [](Args& a, Words& w) { drop(a.key_cache, "key_cache", w); }},
    {"value_cache_null", kNull, [](Args& a, Words& w) { drop(a.value_cache, "value_cache", w); }},
    {"block_tables_null", kNull, [](Args& a, Words& w) { drop(a.block_tables, "block_tables", w); }},
    {"seq_lens_null", kNull, [](Args& a, Words& w) { drop(a.seq_lens, "seq_lens", w); }},
    {"key_null", kNull, [](Args& a, Words& w) { drop(a.key, "key", w); }},
    {"value_null", kNull, [](Args& a, Words& w) { drop(a.value, "value", w); }},
    {"seq_offset_null", kNull, [](Args& a, Words& w) { drop(*a.seq_offset, "seq_offset", w); }},

    {"key_cache_rank_3", kBad, [](Args& a, Words& w) { change_rank(a.key_cache, -1, "key_cache", w); }},
    {"key_cache_rank_5", kBad, [](Args& a, Words& w) { change_rank(a.key_cache, 1, "key_cache", w); }},
    {"value_cache_rank", kBad, [](Args& a, Words& w) { change_rank(a.value_cache, -1, "value_cache", w); }},
    {"block_tables_rank_1", kBad,
     [](Args& a, Words& w) { change_rank(a.block_tables, -1, "block_tables", w); }},
    {"block_tables_rank_3", kBad,
     [](Args& a, Words& w) { change_rank(a.block_tables, 1, "block_tables", w); }},
    {"seq_lens_rank_0", kBad, [](Args& a, Words& w) { change_rank(a.seq_lens, -1, "seq_lens", w); }},
    {"seq_lens_rank_2", kBad, [](Args& a, Words& w) { change_rank(a.seq_lens, 1, "seq_lens", w); }},
    {"key_rank_less", kBad, [](Args& a, Words& w) { change_rank(a.key, -1, "key", w); }},
    {"key_rank_more", kBad, [](Args& a, Words& w) { change_rank(a.key, 1, "key", w); }},
    {"value_rank", kBad, [](Args& a, Words& w) { change_rank(a.value, -1, "value", w); }},
    {"seq_offset_rank", kBad, [](Args& a, Words& w) { change_rank(*a.seq_offset, 1, "seq_offset", w); }},
    {"rank_above_8", kBad,
     [](Args& a, Words& w) {
       a.key_cache = contiguous(a.key_cache.data, a.key_cache.dtype, {1, 1, 1, 1, 1, 1, 1, 1, 1});
       w = {"key_cache", "rank"};
     }},
    {"rank_negative", kBad,
     [](Args& a, Words& w) {
       a.key.rank = -1;
       w = {"key", "rank", "-1"};
     }},
    {"wrong_mode_for_the_shapes", kBad,
     [](Args& a, Words& w) {
       a.cache_mode = a.cache_mode == CacheMode::kNorm ? CacheMode::kPaNz : CacheMode::kNorm;
       w = {"key", "rank"};
     }},

    {"key_cache_int64", kBad,
     [](Args& a, Words& w) {
       a.key.dtype = DType::kInt64;
       a.key.storage_elements = -1;
       change_dtype(a.key_cache, DType::kInt64, "key_cache", w);
     }},
    {"value_cache_uint64", kBad,
     [](Args& a, Words& w) {
       a.value.dtype = DType::kUInt64;
       a.value.storage_elements = -1;
       change_dtype(a.value_cache, DType::kUInt64, "value_cache", w);
     }},
    // Same width, other type: bytes would come out right, the caller is still wrong.
    {"key_other_dtype", kBad,
     [](Args& a, Words& w) {
       change_dtype(a.key, a.key_cache.dtype == DType::kInt16 ? DType::kUInt16 : DType::kInt16, "key", w);
       w.emplace_back(to_string(a.key_cache.dtype));
     }},
    {"value_other_dtype", kBad,
     [](Args& a, Words& w) {
       change_dtype(a.value, a.value_cache.dtype == DType::kInt16 ? DType::kUInt16 : DType::kInt16, "value",
                    w);
       w.emplace_back(to_string(a.value_cache.dtype));
     }},
    {"dtype_unknown", kBad,
     [](Args& a, Words& w) {
       a.key_cache.dtype = static_cast<DType>(200);
       w = {"key_cache", "dtype", "200"};
     }},
    {"block_tables_float", kBad,
     [](Args& a, Words& w) {
       change_dtype(a.block_tables, DType::kFloat32, "block_tables", w);
       w.insert(w.end(), {"int32", "int64"});
     }},
    {"block_tables_uint32", kBad,
     [](Args& a, Words& w) { change_dtype(a.block_tables, DType::kUInt32, "block_tables", w); }},
    {"seq_lens_other_index_dtype", kBad,
     [](Args& a, Words& w) {
       const DType table = a.block_tables.dtype;
       change_dtype(a.seq_lens, table == DType::kInt32 ? DType::kInt64 : DType::kInt32, "seq_lens", w);
       w.emplace_back(to_string(table));
     }},
    {"seq_offset_other_index_dtype", kBad,
     [](Args& a, Words& w) {
       const DType table = a.block_tables.dtype;
       change_dtype(*a.seq_offset, table == DType::kInt32 ? DType::kInt64 : DType::kInt32, "seq_offset", w);
       w.emplace_back(to_string(table));
     }},

    {"seq_lens_longer", kBad, [](Args& a, Words& w) { change_lengths(a, 1, w); }},
    {"seq_lens_shorter", kBad, [](Args& a, Words& w) { change_lengths(a, -1, w); }},
    {"cumsum_flag_wrong", kBad,
     [](Args& a, Words& w) {
       a.is_seq_lens_cumsum = !a.is_seq_lens_cumsum;
       w = {"seq_lens", "dimension 0", std::to_string(a.seq_lens.dim(0))};
     }},
    {"seq_offset_longer", kBad, [](Args& a, Words& w) { grow(*a.seq_offset, 0, 1, "seq_offset", w); }},
    {"seq_offset_shorter", kBad, [](Args& a, Words& w) { grow(*a.seq_offset, 0, -1, "seq_offset", w); }},
    {"no_columns", kBad,
     [](Args& a, Words& w) {
       a.block_tables.shape[1] = 0;
       w = {"block_tables", "dimension 1", "0"};
     }},
    {"no_batches", kBad,
     [](Args& a, Words& w) {
       a.block_tables.shape[0] = 0;
       a.seq_lens.shape[0] = a.is_seq_lens_cumsum ? 1 : 0;
       if (a.seq_offset) a.seq_offset->shape[0] = 0;
       w = {"block_tables", "dimension 0", "0"};
     }},
    {"block_size_0", kBad,
     [](Args& a, Words& w) {
       const std::size_t axis = a.cache_mode == CacheMode::kNorm ? 1 : 2;
       a.key_cache.shape[axis] = a.value_cache.shape[axis] = 0;
       w = {"key_cache", fmt::format("dimension {}", axis), "0"};
     }},
    {"block_sizes_differ", kBad,
     [](Args& a, Words& w) {
       grow(a.value_cache, a.cache_mode == CacheMode::kNorm ? 1 : 2, 1, "value_cache", w);
     }},
    {"rows_differ", kBad, [](Args& a, Words& w) { grow(a.value, 0, -1, "value", w); }},
    {"key_inner_dim", kBad, [](Args& a, Words& w) { grow(a.key, a.key.rank - 1, -1, "key", w); }},
    {"value_inner_dim", kBad, [](Args& a, Words& w) { grow(a.value, a.value.rank - 1, -1, "value", w); }},
    {"key_heads", kBad, [](Args& a, Words& w) { grow(a.key, 1, -1, "key", w); }},
    {"nz_last_dim", kBad, [](Args& a, Words& w) { grow(a.key_cache, 3, -1, "key_cache", w); }},
    {"nz_value_last_dim", kBad, [](Args& a, Words& w) { grow(a.value_cache, 3, -1, "value_cache", w); }},
    {"nz_units", kBad,
     [](Args& a, Words& w) {
       a.key_cache.shape[1] -= 1;
       w = {"key"};
     }},
    {"dim_negative", kBad,
     [](Args& a, Words& w) {
       a.key_cache.shape[2] = -3;
       w = {"key_cache", "dimension 2", "-3"};
     }},
    {"cache_mode_unknown", kBad,
     [](Args& a, Words& w) {
       a.cache_mode = static_cast<CacheMode>(9);
       w = {"cache_mode", "9"};
     }},
    {"index_policy_unknown", kBad,
     [](Args& a, Words& w) {
       a.index_policy = static_cast<IndexPolicy>(7);
       w = {"index_policy", "7"};
     }},

    {"key_stride_0", kBad,
     [](Args& a, Words& w) {
       a.key.strides[0] = 0;
       w = {"key"};
     }},
    {"value_stride_0", kBad,
     [](Args& a, Words& w) {
       a.value.strides[1] = 0;
       w = {"value"};
     }},
    {"key_rows_overlap", kBad,
     [](Args& a, Words& w) {
       a.key.strides[0] -= 1;
       w = {"key"};
     }},
    {"key_cache_beyond_storage", kBad,
     [](Args& a, Words& w) {
       a.key_cache.storage_elements -= 1;
       w = {"key_cache", std::to_string(a.key_cache.storage_elements)};
     }},
    {"key_beyond_storage", kBad,
     [](Args& a, Words& w) {
       a.key.storage_elements -= 1;
       w = {"key"};
     }},
    {"key_before_storage", kBad,
     [](Args& a, Words& w) {
       a.key.offset -= 1;
       w = {"key", "-1"};
     }},
    {"block_tables_beyond_storage", kBad,
     [](Args& a, Words& w) {
       a.block_tables.offset += 1;
       w = {"block_tables"};
     }},
    {"stride_overflows", kBad,
     [](Args& a, Words& w) {
       a.key_cache.strides[0] = std::numeric_limits<std::int64_t>::max();
       a.key_cache.storage_elements = -1;
       w = {"key_cache"};
     }},
    {"stride_least", kBad,
     [](Args& a, Words& w) {
       a.value_cache.strides[2] = std::numeric_limits<std::int64_t>::min();
       a.value_cache.storage_elements = -1;
       w = {"value_cache"};
     }},
    {"offset_overflows", kBad,
     [](Args& a, Words& w) {
       a.key.offset = std::numeric_limits<std::int64_t>::max();
       a.key.storage_elements = -1;
       w = {"key"};
     }},

    {"key_cache_on_cuda", kBad,
     [](Args& a, Words& w) {
       a.key_cache.device.type = DeviceType::kCuda;
       w = {"key_cache", "device"};
     }},
};

}  // namespace

std::span<const GatherBreaker> gather_breakers() {
  return kBreakers;
}

}  // namespace kvferry::harness
