// SPDX-License-Identifier: Apache-2.0
//
// Every rule of copy_blocks' plan(), broken one at a time. swap_blocks has them too, and some of its own.
#include <limits>

#include "harness/breaking.hpp"
#include "ops/block_copy_cases.hpp"

namespace kvferry::harness {
namespace {

// Valid tensors to be damaged, where the case has none.
std::int64_t numbers[16];

constexpr StatusCode kBad = StatusCode::kInvalidArgument;
constexpr StatusCode kNull = StatusCode::kNull;
using Call = BlockCopyCall;
using Words = std::vector<std::string>;

TensorView count_of(DType dtype, std::initializer_list<std::int64_t> shape) {
  return contiguous(static_cast<void*>(numbers), dtype, shape);
}

constexpr BlockCopyBreaker kBreakers[] = {
    {"mapping_null", kNull, [](Call& c, Words& w) { drop(c.mapping, "mapping", w); }},
    {"mapping_rank_1", kBad, [](Call& c, Words& w) { change_rank(c.mapping, -1, "mapping", w); }},
    {"mapping_rank_3", kBad, [](Call& c, Words& w) { change_rank(c.mapping, 1, "mapping", w); }},
    {"mapping_of_3_columns", kBad, [](Call& c, Words& w) { grow(c.mapping, 1, 1, "mapping", w); }},
    {"mapping_of_1_column", kBad, [](Call& c, Words& w) { grow(c.mapping, 1, -1, "mapping", w); }},
    {"mapping_float", kBad,
     [](Call& c, Words& w) {
       change_dtype(c.mapping, DType::kFloat32, "mapping", w);
       w.insert(w.end(), {"int32", "int64"});
     }},
    {"mapping_uint64", kBad,
     [](Call& c, Words& w) { change_dtype(c.mapping, DType::kUInt64, "mapping", w); }},
    {"mapping_on_cuda", kBad,
     [](Call& c, Words& w) {
       c.mapping.device.type = DeviceType::kCuda;
       w = {"mapping", "device"};
     }},
    {"mapping_beyond_storage", kBad,
     [](Call& c, Words& w) {
       c.mapping.offset += 1;
       w = {"mapping", "storage"};
     }},
    {"pairs_beyond_64_bits", kBad,
     [](Call& c, Words& w) {
       c.mapping = strided(c.mapping.data, c.mapping.dtype, {std::int64_t{1} << 56, 2}, {0, 1});
       w = {"mapping", std::to_string(std::int64_t{1} << 56), "64 bits"};
     }},
    {"count_null", kNull,
     [](Call& c, Words& w) {
       c.count = count_of(DType::kInt32, {});
       drop(*c.count, "count", w);
     }},
    {"count_float", kBad,
     [](Call& c, Words& w) {
       c.count = count_of(DType::kFloat32, {});
       w = {"count", "float32", "int32", "int64"};
     }},
    {"count_of_2", kBad,
     [](Call& c, Words& w) {
       c.count = count_of(DType::kInt32, {2});
       w = {"count", "2"};
     }},
    {"count_of_0", kBad,
     [](Call& c, Words& w) {
       c.count = count_of(DType::kInt32, {0});
       w = {"count", "0"};
     }},
    {"count_rank_2", kBad,
     [](Call& c, Words& w) {
       c.count = count_of(DType::kInt32, {1, 1});
       w = {"count"};
     }},
    {"policy", kBad,
     [](Call& c, Words& w) {
       c.policy = static_cast<IndexPolicy>(7);
       w = {"index_policy", "7"};
     }},

    {"dst_null", kNull, [](Call& c, Words& w) { drop(c.dst[1], "[1]", w); }},
    {"dst_rank_0", kBad,
     [](Call& c, Words& w) {
       c.dst[1].rank = 0;
       w = {"[1]", "rank", "0"};
     }},
    {"dst_rank_9", kBad,
     [](Call& c, Words& w) {
       c.dst[0].rank = 9;
       w = {"[0]", "rank", "9"};
     }},
    {"dst_int64", kBad, [](Call& c, Words& w) { change_dtype(c.dst.front(), DType::kInt64, "[0]", w); }},
    {"dst_blocks_differ", kBad, [](Call& c, Words& w) { grow(c.dst[1], 0, -1, "[1]", w); }},
    {"dst_negative_dimension", kBad,
     [](Call& c, Words& w) {
       c.dst[1].shape[1] = -3;
       w = {"[1]", "dimension 1", "-3"};
     }},
    {"dst_overlaps_itself", kBad,
     [](Call& c, Words& w) {
       c.dst[1].strides[0] = 1;
       w = {"[1]", "address"};
     }},
    {"dst_beyond_storage", kBad,
     [](Call& c, Words& w) {
       c.dst[1].offset += 1;
       w = {"[1]", "storage"};
     }},
    {"dst_beyond_64_bits", kBad,
     [](Call& c, Words& w) {
       c.dst[1].storage_elements = -1;
       c.dst[1].strides[0] = std::numeric_limits<std::int64_t>::max() / 4;
       w = {"[1]", "2^63"};
     }},
    {"dst_on_cuda", kBad,
     [](Call& c, Words& w) {
       c.dst[1].device.type = DeviceType::kCuda;
       w = {"[1]", "device"};
     }},
};

}  // namespace

std::span<const BlockCopyBreaker> block_copy_breakers() {
  return kBreakers;
}

}  // namespace kvferry::harness
