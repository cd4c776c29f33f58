// SPDX-License-Identifier: Apache-2.0
//
// Every rule of transfer_layers' plan(), broken one at a time. The cases have 3 layers, 4 entries, K and V.
#include <limits>

#include "harness/breaking.hpp"
#include "ops/transfer_layers/transfer_layers_cases.hpp"

namespace kvferry::harness {
namespace {

using Call = TransferLayersCall;
using Words = std::vector<std::string>;

constexpr StatusCode kBad = StatusCode::kInvalidArgument;
constexpr StatusCode kNull = StatusCode::kNull;
constexpr const char* kBoth = "out in";

// The axis of the layers in the chunk.
int layer_axis(const Call& c) {
  return c.rest.chunk_layout == ChunkLayout::kLayerFirst ? 0 : 1;
}

constexpr TransferLayersBreaker kBreakers[] = {
    {"key_null", kBoth, kNull,
     [](Call& c, Words& w) {
       drop(c.keys[1], "key_caches", w);
       w.emplace_back("1");
     }},
    {"value_null", kBoth, kNull,
     [](Call& c, Words& w) {
       drop(c.values[2], "value_caches", w);
       w.emplace_back("2");
     }},
    {"chunk_null", kBoth, kNull, [](Call& c, Words& w) { drop(c.rest.chunk, "chunk", w); }},
    {"block_ids_null", kBoth, kNull, [](Call& c, Words& w) { drop(c.rest.block_ids, "block_ids", w); }},

    {"one_value_pool_less", kBoth, kBad,
     [](Call& c, Words& w) {
       c.values.pop_back();
       w = {"value_caches", "2", "3"};
     }},
    {"one_key_pool_less", kBoth, kBad,
     [](Call& c, Words& w) {
       c.keys.pop_back();
       c.values.pop_back();
       w = {"chunk", layer_axis(c) == 0 ? "dimension 0" : "dimension 1", "3", "2"};
     }},
    {"no_value_pools_but_two_parts", kBoth, kBad,
     [](Call& c, Words& w) {
       c.values.clear();
       w = {"chunk", "dimension 2", "2", "1"};
     }},
    {"no_pools_but_places", kBoth, kBad,
     [](Call& c, Words& w) {
       c.keys.clear();
       c.values.clear();
       w = {"chunk", layer_axis(c) == 0 ? "dimension 0" : "dimension 1", "3", "0"};
     }},
    {"three_parts_without_layers", kBoth, kBad,
     [](Call& c, Words& w) {
       c.keys.clear();
       c.values.clear();
       c.rest.chunk.shape[static_cast<std::size_t>(layer_axis(c))] = 0;
       c.rest.chunk.shape[2] = 3;
       w = {"chunk", "dimension 2", "3"};
     }},

    {"key_rank_3", kBoth, kBad, [](Call& c, Words& w) { change_rank(c.keys[2], -1, "key_caches", w); }},
    {"key_rank_5", kBoth, kBad, [](Call& c, Words& w) { change_rank(c.keys[0], 1, "key_caches", w); }},
    {"value_rank_5", kBoth, kBad, [](Call& c, Words& w) { change_rank(c.values[1], 1, "value_caches", w); }},
    {"chunk_rank_5", kBoth, kBad, [](Call& c, Words& w) { change_rank(c.rest.chunk, -1, "chunk", w); }},
    {"block_ids_rank_2", kBoth, kBad,
     [](Call& c, Words& w) { change_rank(c.rest.block_ids, 1, "block_ids", w); }},

    {"pools_int64", kBoth, kBad,
     [](Call& c, Words& w) {
       for (TensorView& pool : c.keys) change_dtype(pool, DType::kInt64, "key_caches", w);
     }},
    // Same width, other type: bytes would come out right, the caller is still wrong.
    {"one_layer_of_another_dtype", kBoth, kBad,
     [](Call& c, Words& w) {
       change_dtype(c.keys[2], DType::kInt16, "key_caches", w);
       w.emplace_back(to_string(c.keys[0].dtype));
     }},
    {"value_of_another_dtype", kBoth, kBad,
     [](Call& c, Words& w) { change_dtype(c.values[0], DType::kInt16, "value_caches", w); }},
    {"chunk_of_another_dtype", kBoth, kBad,
     [](Call& c, Words& w) {
       change_dtype(c.rest.chunk, DType::kInt16, "chunk", w);
       w.emplace_back(to_string(c.keys[0].dtype));
     }},
    {"block_ids_uint32", kBoth, kBad,
     [](Call& c, Words& w) { change_dtype(c.rest.block_ids, DType::kUInt32, "block_ids", w); }},

    {"blocks_differ_by_layer", kBoth, kBad,
     [](Call& c, Words& w) { grow(c.keys[1], 0, -1, "key_caches", w); }},
    {"blocks_differ_of_k_and_v", kBoth, kBad,
     [](Call& c, Words& w) { grow(c.values[0], 0, -1, "value_caches", w); }},
    {"block_size_differs", kBoth, kBad,
     [](Call& c, Words& w) { grow(c.values[1], 1, -1, "value_caches", w); }},
    {"heads_differ", kBoth, kBad, [](Call& c, Words& w) { grow(c.keys[2], 2, -1, "key_caches", w); }},
    {"head_size_differs", kBoth, kBad,
     [](Call& c, Words& w) { grow(c.values[2], 3, -1, "value_caches", w); }},
    {"block_size_0", kBoth, kBad,
     [](Call& c, Words& w) {
       for (auto* pools : {&c.keys, &c.values}) {
         for (TensorView& pool : *pools) pool.shape[1] = 0;
       }
       c.rest.chunk.shape[3] = 0;
       w = {"key_caches", "dimension 1", "0"};
     }},
    {"chunk_entries", kBoth, kBad,
     [](Call& c, Words& w) { grow(c.rest.chunk, 1 - layer_axis(c), -1, "chunk", w); }},
    {"chunk_layers", kBoth, kBad,
     [](Call& c, Words& w) { grow(c.rest.chunk, layer_axis(c), -1, "chunk", w); }},
    {"chunk_parts", kBoth, kBad, [](Call& c, Words& w) { grow(c.rest.chunk, 2, -1, "chunk", w); }},
    {"chunk_block_size", kBoth, kBad, [](Call& c, Words& w) { grow(c.rest.chunk, 3, -1, "chunk", w); }},
    {"chunk_heads", kBoth, kBad, [](Call& c, Words& w) { grow(c.rest.chunk, 4, -1, "chunk", w); }},
    {"chunk_head_size", kBoth, kBad, [](Call& c, Words& w) { grow(c.rest.chunk, 5, -1, "chunk", w); }},
    {"block_ids_longer", kBoth, kBad,
     [](Call& c, Words& w) {
       grow(c.rest.block_ids, 0, 1, "block_ids", w);
       w = {"chunk", layer_axis(c) == 0 ? "dimension 1" : "dimension 0", "4", "5"};
     }},
    {"wrong_layout_for_the_shape", kBoth, kBad,
     [](Call& c, Words& w) {
       c.rest.chunk_layout = layer_axis(c) == 0 ? ChunkLayout::kPageFirst : ChunkLayout::kLayerFirst;
       w = {"chunk", "3", "4"};
     }},

    {"layout_unknown", kBoth, kBad,
     [](Call& c, Words& w) {
       c.rest.chunk_layout = static_cast<ChunkLayout>(9);
       w = {"chunk_layout", "9"};
     }},
    {"direction_unknown", kBoth, kBad,
     [](Call& c, Words& w) {
       c.rest.direction = static_cast<TransferDirection>(5);
       w = {"direction", "5"};
     }},
    {"index_policy_unknown", kBoth, kBad,
     [](Call& c, Words& w) {
       c.rest.index_policy = static_cast<IndexPolicy>(7);
       w = {"index_policy", "7"};
     }},

    {"chunk_stride_0", "out", kBad,
     [](Call& c, Words& w) {
       c.rest.chunk.strides[1] = 0;
       w = {"chunk"};
     }},
    {"pool_stride_0", "in", kBad,
     [](Call& c, Words& w) {
       c.keys[1].strides[0] = 0;
       w = {"key_caches", "1"};
     }},
    {"pool_slots_overlap", "in", kBad,
     [](Call& c, Words& w) {
       c.values[2].strides[1] -= 1;
       w = {"value_caches", "2"};
     }},
    {"key_beyond_storage", kBoth, kBad,
     [](Call& c, Words& w) {
       c.keys[2].storage_elements -= 1;
       w = {"key_caches", std::to_string(c.keys[2].storage_elements)};
     }},
    {"chunk_beyond_storage", kBoth, kBad,
     [](Call& c, Words& w) {
       c.rest.chunk.offset += 1;
       w = {"chunk"};
     }},
    {"stride_overflows", kBoth, kBad,
     [](Call& c, Words& w) {
       c.values[1].strides[0] = std::numeric_limits<std::int64_t>::max();
       c.values[1].storage_elements = -1;
       w = {"value_caches"};
     }},
    {"value_on_cuda", kBoth, kBad,
     [](Call& c, Words& w) {
       c.values[1].device.type = DeviceType::kCuda;
       w = {"value_caches", "device"};
     }},
};

}  // namespace

std::span<const TransferLayersBreaker> transfer_layers_breakers() {
  return kBreakers;
}

}  // namespace kvferry::harness
