// SPDX-License-Identifier: Apache-2.0
//
// Every rule of group_memcpy's plan(), broken one at a time.
#include "harness/breaking.hpp"
#include "ops/group_memcpy/group_memcpy_cases.hpp"

namespace kvferry::harness {
namespace {

using Args = GroupMemcpyArgs;
using Words = std::vector<std::string>;

constexpr StatusCode kBad = StatusCode::kInvalidArgument;
constexpr StatusCode kNull = StatusCode::kNull;

// Valid tensors to be damaged, where the case has none.
std::int64_t numbers[16];

TensorView sizes_for(const Args& a) {
  const std::int64_t pairs = a.addr_table.rank == 1 ? a.addr_table.dim(0) / 2 : a.addr_table.dim(0);
  return contiguous(static_cast<void*>(numbers), DType::kInt64, {pairs});
}
TensorView count_of(DType dtype) {
  return contiguous(static_cast<void*>(numbers), dtype, {});
}

constexpr GroupMemcpyBreaker kBreakers[] = {
    {"table_null", kNull, [](Args& a, Words& w) { drop(a.addr_table, "addr_table", w); }},
    {"sizes_null", kNull,
     [](Args& a, Words& w) {
       a.copy_bytes = 0;
       a.sizes = sizes_for(a);
       drop(*a.sizes, "sizes", w);
     }},
    {"count_null", kNull,
     [](Args& a, Words& w) {
       a.count = count_of(DType::kInt32);
       drop(*a.count, "count", w);
     }},

    {"table_rank_0", kBad,
     [](Args& a, Words& w) {
       a.addr_table.rank = 0;
       w = {"addr_table", "rank", "0", "1", "2"};
     }},
    {"table_rank_3", kBad,
     [](Args& a, Words& w) {
       a.addr_table = contiguous(a.addr_table.data, a.addr_table.dtype, {2, 1, 2});
       w = {"addr_table", "rank", "3", "1", "2"};
     }},
    {"table_odd", kBad,
     [](Args& a, Words& w) {
       a.addr_table = contiguous(a.addr_table.data, a.addr_table.dtype, {5});
       w = {"addr_table", "dimension 0", "5"};
     }},
    {"table_of_3_columns", kBad,
     [](Args& a, Words& w) {
       a.addr_table = contiguous(a.addr_table.data, a.addr_table.dtype, {2, 3});
       w = {"addr_table", "dimension 1", "3", "2"};
     }},
    {"table_int32", kBad,
     [](Args& a, Words& w) {
       change_dtype(a.addr_table, DType::kInt32, "addr_table", w);
       w.insert(w.end(), {"int64", "uint64"});
     }},
    {"table_float", kBad,
     [](Args& a, Words& w) { change_dtype(a.addr_table, DType::kFloat32, "addr_table", w); }},
    {"table_beyond_storage", kBad,
     [](Args& a, Words& w) {
       a.addr_table.offset += 1;
       w = {"addr_table"};
     }},
    {"table_on_cuda", kBad,
     [](Args& a, Words& w) {
       a.addr_table.device.type = DeviceType::kCuda;
       w = {"addr_table", "device"};
     }},

    {"bytes_negative", kBad,
     [](Args& a, Words& w) {
       a.copy_bytes = -1;
       w = {"copy_bytes", "-1"};
     }},
    {"bytes_and_sizes", kBad,
     [](Args& a, Words& w) {
       a.sizes = sizes_for(a);
       w = {"copy_bytes", std::to_string(a.copy_bytes), "0"};
     }},
    {"sizes_int32", kBad,
     [](Args& a, Words& w) {
       a.copy_bytes = 0;
       a.sizes = sizes_for(a);
       change_dtype(*a.sizes, DType::kInt32, "sizes", w);
       w.emplace_back("int64");
     }},
    {"sizes_rank_2", kBad,
     [](Args& a, Words& w) {
       a.copy_bytes = 0;
       a.sizes = sizes_for(a);
       change_rank(*a.sizes, 1, "sizes", w);
     }},
    {"sizes_longer", kBad,
     [](Args& a, Words& w) {
       a.copy_bytes = 0;
       a.sizes = sizes_for(a);
       grow(*a.sizes, 0, 1, "sizes", w);
     }},
    {"sizes_shorter", kBad,
     [](Args& a, Words& w) {
       a.copy_bytes = 0;
       a.sizes = sizes_for(a);
       grow(*a.sizes, 0, -1, "sizes", w);
     }},

    {"count_float", kBad,
     [](Args& a, Words& w) {
       a.count = count_of(DType::kFloat32);
       w = {"count", "float32", "int32", "int64"};
     }},
    {"count_uint64", kBad,
     [](Args& a, Words& w) {
       a.count = count_of(DType::kUInt64);
       w = {"count", "uint64"};
     }},
    {"count_of_2", kBad,
     [](Args& a, Words& w) {
       a.count = contiguous(static_cast<void*>(numbers), DType::kInt32, {2});
       w = {"count", "2"};
     }},
    {"count_of_0", kBad,
     [](Args& a, Words& w) {
       a.count = contiguous(static_cast<void*>(numbers), DType::kInt32, {0});
       w = {"count", "0"};
     }},
    {"count_rank_2", kBad,
     [](Args& a, Words& w) {
       a.count = contiguous(static_cast<void*>(numbers), DType::kInt32, {1, 1});
       w = {"count"};
     }},
    {"count_and_host_count", kBad,
     [](Args& a, Words& w) {
       a.count = count_of(DType::kInt32);
       a.host_count = 1;
       w = {"host_count", "count"};
     }},
    {"host_count_negative", kBad,
     [](Args& a, Words& w) {
       a.host_count = -1;
       w = {"host_count", "-1"};
     }},
    {"host_count_above_h", kBad,
     [](Args& a, Words& w) {
       a.host_count = 6;
       w = {"host_count", "6", "5"};
     }},
};

}  // namespace

std::span<const GroupMemcpyBreaker> group_memcpy_breakers() {
  return kBreakers;
}

}  // namespace kvferry::harness
