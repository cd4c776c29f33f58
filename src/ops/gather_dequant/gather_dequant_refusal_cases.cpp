// SPDX-License-Identifier: Apache-2.0
//
// Every rule of gather_dequant's plan(), broken one at a time.
#include <fmt/format.h>

#include <limits>

#include "harness/breaking.hpp"
#include "ops/gather_dequant/gather_dequant_cases.hpp"

namespace kvferry::harness {
namespace {

using Args = GatherDequantArgs;
using Words = std::vector<std::string>;

constexpr StatusCode kBad = StatusCode::kInvalidArgument;
constexpr StatusCode kNull = StatusCode::kNull;

DType other_index(DType dtype) {
  return dtype == DType::kInt32 ? DType::kInt64 : DType::kInt32;
}

constexpr GatherDequantBreaker kBreakers[] = {
    {"cache_null", kNull, [](Args& a, Words& w) { drop(a.cache, "cache", w); }},
    {"block_tables_null", kNull, [](Args& a, Words& w) { drop(a.block_tables, "block_tables", w); }},
    {"seq_lens_null", kNull, [](Args& a, Words& w) { drop(a.seq_lens, "seq_lens", w); }},
    {"out_null", kNull, [](Args& a, Words& w) { drop(a.out, "out", w); }},
    {"seq_offset_null", kNull, [](Args& a, Words& w) { drop(*a.seq_offset, "seq_offset", w); }},

    {"cache_rank_2", kBad, [](Args& a, Words& w) { change_rank(a.cache, -1, "cache", w); }},
    {"cache_rank_4", kBad, [](Args& a, Words& w) { change_rank(a.cache, 1, "cache", w); }},
    {"out_rank_1", kBad, [](Args& a, Words& w) { change_rank(a.out, -1, "out", w); }},
    {"out_rank_3", kBad, [](Args& a, Words& w) { change_rank(a.out, 1, "out", w); }},
    {"block_tables_rank", kBad, [](Args& a, Words& w) { change_rank(a.block_tables, 1, "block_tables", w); }},
    {"seq_lens_rank", kBad, [](Args& a, Words& w) { change_rank(a.seq_lens, 1, "seq_lens", w); }},
    {"seq_offset_rank", kBad, [](Args& a, Words& w) { change_rank(*a.seq_offset, 1, "seq_offset", w); }},

    {"cache_e4m3", kBad,
     [](Args& a, Words& w) {
       change_dtype(a.cache, DType::kFloat8E4M3FN, "cache", w);
       w.insert(w.end(), {"uint8", "int8"});
     }},
    {"out_float16", kBad,
     [](Args& a, Words& w) {
       change_dtype(a.out, DType::kFloat16, "out", w);
       w.emplace_back("bfloat16");
     }},
    {"block_tables_float", kBad,
     [](Args& a, Words& w) { change_dtype(a.block_tables, DType::kFloat32, "block_tables", w); }},
    {"seq_lens_other_index_dtype", kBad,
     [](Args& a, Words& w) { change_dtype(a.seq_lens, other_index(a.seq_lens.dtype), "seq_lens", w); }},
    {"seq_offset_other_index_dtype", kBad,
     [](Args& a, Words& w) {
       change_dtype(*a.seq_offset, other_index(a.seq_offset->dtype), "seq_offset", w);
     }},

    {"row_of_655_bytes", kBad, [](Args& a, Words& w) { grow(a.cache, 2, -1, "cache", w); }},
    {"row_of_657_bytes", kBad, [](Args& a, Words& w) { grow(a.cache, 2, 1, "cache", w); }},
    {"out_of_512_values", kBad, [](Args& a, Words& w) { grow(a.out, 1, -64, "out", w); }},
    {"block_size_0", kBad,
     [](Args& a, Words& w) {
       a.cache.shape[1] = 0;
       w = {"cache", "dimension 1", "0"};
     }},
    {"bytes_of_a_row_apart", kBad,
     [](Args& a, Words& w) {
       a.cache.strides[2] = 2;
       a.cache.storage_elements = -1;
       w = {"cache", "stride 2", "2", "1"};
     }},
    {"bytes_of_a_row_backwards", kBad,
     [](Args& a, Words& w) {
       a.cache.strides[2] = -1;
       a.cache.storage_elements = -1;
       w = {"cache", "stride 2", "-1"};
     }},

    {"seq_lens_longer", kBad,
     [](Args& a, Words& w) {
       grow(a.seq_lens, 0, 1, "seq_lens", w);
       if (a.is_seq_lens_cumsum) w.back() = fmt::format("{} + 1", a.block_tables.dim(0));
     }},
    {"seq_offset_shorter", kBad, [](Args& a, Words& w) { grow(*a.seq_offset, 0, -1, "seq_offset", w); }},
    {"no_columns", kBad,
     [](Args& a, Words& w) {
       a.block_tables.shape[1] = 0;
       w = {"block_tables", "dimension 1", "0"};
     }},
    {"index_policy_unknown", kBad,
     [](Args& a, Words& w) {
       a.index_policy = static_cast<IndexPolicy>(7);
       w = {"index_policy", "7"};
     }},
    {"out_stride_0", kBad,
     [](Args& a, Words& w) {
       a.out.strides[0] = 0;
       w = {"out"};
     }},
    {"out_beyond_storage", kBad,
     [](Args& a, Words& w) {
       a.out.storage_elements -= 1;
       w = {"out"};
     }},
    {"cache_beyond_storage", kBad,
     [](Args& a, Words& w) {
       a.cache.storage_elements -= 1;
       w = {"cache", std::to_string(a.cache.storage_elements)};
     }},
    {"stride_overflows", kBad,
     [](Args& a, Words& w) {
       a.cache.strides[0] = std::numeric_limits<std::int64_t>::max();
       a.cache.storage_elements = -1;
       w = {"cache"};
     }},
    {"out_on_cuda", kBad,
     [](Args& a, Words& w) {
       a.out.device.type = DeviceType::kCuda;
       w = {"out", "device"};
     }},
};

}  // namespace

std::span<const GatherDequantBreaker> gather_dequant_breakers() {
  return kBreakers;
}

}  // namespace kvferry::harness
