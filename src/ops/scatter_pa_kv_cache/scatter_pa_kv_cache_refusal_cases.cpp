// SPDX-License-Identifier: Apache-2.0
//
// Every rule of the scatter's plan(), broken one at a time.
#include <fmt/format.h>

#include <limits>

#include "harness/breaking.hpp"
#include "ops/scatter_pa_kv_cache/scatter_pa_kv_cache_cases.hpp"

namespace kvferry::harness {
namespace {

using Args = ScatterPaKvCacheArgs;
using Words = std::vector<std::string>;

constexpr StatusCode kBad = StatusCode::kInvalidArgument;
constexpr StatusCode kNull = StatusCode::kNull;

constexpr const char* kAll = "nd nhsd nct nz nz5";
constexpr const char* kNorm = "nd nhsd nct";
constexpr const char* kNz = "nz nz5";
constexpr const char* kNoNct = "nd nhsd nz nz5";  // where key's own strides count

int slot_axis(const Args& a) {
  if (a.cache_mode == CacheMode::kPaNz) return a.key_cache.rank == 5 ? 3 : 2;
  return a.scatter_mode == ScatterMode::kNhsd ? 2 : 1;
}

DType other_16_bits(DType dtype) {
  return dtype == DType::kInt16 ? DType::kUInt16 : DType::kInt16;
}

constexpr ScatterBreaker kBreakers[] = {
    {"key_null", kAll, kNull, [](Args& a, Words& w) { drop(a.key, "key", w); }},
    {"key_cache_null", kAll, kNull, [](Args& a, Words& w) { drop(a.key_cache, "key_cache", w); }},
    {"slot_mapping_null", kAll, kNull, [](Args& a, Words& w) { drop(a.slot_mapping, "slot_mapping", w); }},
    {"value_null", kAll, kNull, [](Args& a, Words& w) { drop(*a.value, "value", w); }},
    {"value_cache_null", kAll, kNull, [](Args& a, Words& w) { drop(*a.value_cache, "value_cache", w); }},

    {"key_rank_2", kAll, kBad, [](Args& a, Words& w) { change_rank(a.key, -1, "key", w); }},
    {"key_rank_4", kAll, kBad, [](Args& a, Words& w) { change_rank(a.key, 1, "key", w); }},
    {"value_rank", kAll, kBad, [](Args& a, Words& w) { change_rank(*a.value, -1, "value", w); }},
    {"key_cache_rank_3", "nd nhsd nct nz", kBad,
     [](Args& a, Words& w) { change_rank(a.key_cache, -1, "key_cache", w); }},
    {"key_cache_rank_5", kNorm, kBad, [](Args& a, Words& w) { change_rank(a.key_cache, 1, "key_cache", w); }},
    {"key_cache_rank_6", "nz5", kBad,
     [](Args& a, Words& w) {
       change_rank(a.key_cache, 1, "key_cache", w);
       w = {"key_cache", "rank", "6", "4", "5"};
     }},
    {"value_cache_rank", kNorm, kBad,
     [](Args& a, Words& w) { change_rank(*a.value_cache, -1, "value_cache", w); }},
    {"slot_mapping_rank_2", kAll, kBad,
     [](Args& a, Words& w) { change_rank(a.slot_mapping, 1, "slot_mapping", w); }},
    {"slot_mapping_rank_0", kAll, kBad,
     [](Args& a, Words& w) { change_rank(a.slot_mapping, -1, "slot_mapping", w); }},
    {"rank_above_8", kAll, kBad,
     [](Args& a, Words& w) {
       a.key_cache.rank = 9;
       w = {"key_cache", "rank", "9"};
     }},

    {"key_other_dtype", kAll, kBad,
     [](Args& a, Words& w) {
       change_dtype(a.key, other_16_bits(a.key.dtype), "key", w);
       w.emplace_back(to_string(a.key_cache.dtype));
     }},
    {"value_other_dtype", kAll, kBad,
     [](Args& a, Words& w) {
       change_dtype(*a.value, other_16_bits(a.value->dtype), "value", w);
       w.emplace_back(to_string(a.value_cache->dtype));
     }},
    {"int64_cache", kNorm, kBad,
     [](Args& a, Words& w) {
       a.key.dtype = DType::kInt64;
       a.key.storage_elements = 1 << 20;
       change_dtype(a.key_cache, DType::kInt64, "key_cache", w);
     }},
    {"slot_mapping_float", kAll, kBad,
     [](Args& a, Words& w) {
       change_dtype(a.slot_mapping, DType::kFloat32, "slot_mapping", w);
       w.insert(w.end(), {"int32", "int64"});
     }},
    {"slot_mapping_uint64", kAll, kBad,
     [](Args& a, Words& w) { change_dtype(a.slot_mapping, DType::kUInt64, "slot_mapping", w); }},

    {"key_rows_too_few", kAll, kBad, [](Args& a, Words& w) { shrink_kept_storage(a.key, 0, "key", w); }},
    {"value_rows_too_few", kAll, kBad,
     [](Args& a, Words& w) { shrink_kept_storage(*a.value, 0, "value", w); }},
    {"key_heads", kAll, kBad,
     [](Args& a, Words& w) {
       shrink_kept_storage(a.key, 1, "key", w);
       if (a.key_cache.rank == 4 && a.cache_mode == CacheMode::kPaNz) w = {"key"};  // H * D is what counts
     }},
    {"key_head_size", kAll, kBad,
     [](Args& a, Words& w) {
       shrink_kept_storage(a.key, 2, "key", w);
       if (a.key_cache.rank == 4 && a.cache_mode == CacheMode::kPaNz) w = {"key"};
     }},
    {"value_head_size", kAll, kBad,
     [](Args& a, Words& w) {
       shrink_kept_storage(*a.value, 2, "value", w);
       if (a.key_cache.rank == 4 && a.cache_mode == CacheMode::kPaNz) w = {"value"};
     }},
    {"block_size_0", kAll, kBad,
     [](Args& a, Words& w) {
       const int axis = slot_axis(a);
       a.key_cache.shape[static_cast<std::size_t>(axis)] = 0;
       a.value_cache->shape[static_cast<std::size_t>(axis)] = 0;
       w = {"key_cache", fmt::format("dimension {}", axis), "0"};
     }},
    {"block_sizes_differ", kAll, kBad,
     [](Args& a, Words& w) { shrink_kept_storage(*a.value_cache, slot_axis(a), "value_cache", w); }},
    {"nz_last_dim", kNz, kBad,
     [](Args& a, Words& w) { shrink_kept_storage(a.key_cache, a.key_cache.rank - 1, "key_cache", w); }},
    {"nz_value_last_dim", kNz, kBad,
     [](Args& a, Words& w) {
       shrink_kept_storage(*a.value_cache, a.value_cache->rank - 1, "value_cache", w);
     }},
    {"nz_units", kNz, kBad,
     [](Args& a, Words& w) {
       --a.key_cache.shape[a.key_cache.rank == 5 ? 2 : 1];
       w = {"key"};
     }},
    {"nhsd_shape_for_nd", "nhsd", kBad,
     [](Args& a, Words& w) {
       a.scatter_mode = ScatterMode::kNone;
       w = {"key", "dimension 1"};
     }},
    {"dim_negative", kAll, kBad,
     [](Args& a, Words& w) {
       a.key_cache.shape[1] = -3;
       w = {"key_cache", "dimension 1", "-3"};
     }},

    {"only_value", kAll, kBad,
     [](Args& a, Words& w) {
       a.value_cache.reset();
       w = {"value_cache"};
     }},
    {"only_value_cache", kAll, kBad,
     [](Args& a, Words& w) {
       a.value.reset();
       w = {"value"};
     }},
    {"value_rank_0_with_cache", kAll, kBad,
     [](Args& a, Words& w) {
       a.value->rank = 0;
       w = {"value"};
     }},

    {"cache_mode_unknown", kAll, kBad,
     [](Args& a, Words& w) {
       a.cache_mode = static_cast<CacheMode>(9);
       w = {"cache_mode", "9"};
     }},
    {"scatter_mode_unknown", kAll, kBad,
     [](Args& a, Words& w) {
       a.scatter_mode = static_cast<ScatterMode>(9);
       w = {"scatter_mode", "9"};
     }},
    {"index_policy_unknown", kAll, kBad,
     [](Args& a, Words& w) {
       a.index_policy = static_cast<IndexPolicy>(7);
       w = {"index_policy", "7"};
     }},
    {"nz_with_nhsd", kNz, kBad,
     [](Args& a, Words& w) {
       a.scatter_mode = ScatterMode::kNhsd;
       w = {"scatter_mode"};
     }},
    {"nz_with_nct", kNz, kBad,
     [](Args& a, Words& w) {
       a.scatter_mode = ScatterMode::kNct;
       w = {"scatter_mode"};
     }},

    {"nct_stride_0", "nct", kBad,
     [](Args& a, Words& w) {
       a.nct_strides[0] = 0;
       w = {"key", "0", "1"};
     }},
    {"nct_value_stride_negative", "nct", kBad,
     [](Args& a, Words& w) {
       a.nct_strides[1] = -5;
       w = {"value", "-5"};
     }},
    {"nct_offset_negative", "nct", kBad,
     [](Args& a, Words& w) {
       a.nct_offsets[0] = -1;
       w = {"key", "-1"};
     }},
    {"nct_beyond_storage", "nct", kBad,
     [](Args& a, Words& w) {
       a.nct_offsets[0] += 1;
       w = {"key", std::to_string(a.key.storage_elements)};
     }},
    {"nct_value_beyond_storage", "nct", kBad,
     [](Args& a, Words& w) {
       a.nct_strides[1] += 1;
       w = {"value", std::to_string(a.value->storage_elements)};
     }},
    {"nct_stride_overflows", "nct", kBad,
     [](Args& a, Words& w) {
       a.nct_strides[0] = std::numeric_limits<std::int64_t>::max();
       w = {"key"};
     }},
    {"nct_storage_unknown", "nct", kBad,
     [](Args& a, Words& w) {
       a.key.storage_elements = -1;
       w = {"key"};
     }},

    {"key_cache_stride_0", kAll, kBad,
     [](Args& a, Words& w) {
       a.key_cache.strides[0] = 0;
       w = {"key_cache"};
     }},
    {"value_cache_slots_overlap", kAll, kBad,
     [](Args& a, Words& w) {
       a.value_cache->strides[0] -= 1;
       w = {"value_cache"};
     }},
    {"key_cache_beyond_storage", kAll, kBad,
     [](Args& a, Words& w) {
       a.key_cache.storage_elements -= 1;
       w = {"key_cache", std::to_string(a.key_cache.storage_elements - 1)};
     }},
    {"key_beyond_storage", kNoNct, kBad,
     [](Args& a, Words& w) {
       a.key.storage_elements -= 1;
       w = {"key"};
     }},
    {"slot_mapping_beyond_storage", kAll, kBad,
     [](Args& a, Words& w) {
       a.slot_mapping.offset += 1;
       w = {"slot_mapping"};
     }},
    {"stride_overflows", kAll, kBad,
     [](Args& a, Words& w) {
       a.key_cache.strides[0] = std::numeric_limits<std::int64_t>::max();
       a.key_cache.storage_elements = -1;
       w = {"key_cache"};
     }},
    {"key_on_cuda", kAll, kBad,
     [](Args& a, Words& w) {
       a.key.device.type = DeviceType::kCuda;
       w = {"key", "device"};
     }},
};

}  // namespace

std::span<const ScatterBreaker> scatter_breakers() {
  return kBreakers;
}

}  // namespace kvferry::harness
