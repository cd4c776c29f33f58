// SPDX-License-Identifier: Apache-2.0
//
// The C call that says the same as a C++ call, for tests that hold the two APIs against each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "kvferry/kvferry.h"
#include "kvferry/ops/copy_blocks.hpp"
#include "kvferry/ops/gather_dequant.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"
#include "kvferry/ops/gather_selection_kv_cache.hpp"
#include "kvferry/ops/group_memcpy.hpp"
#include "kvferry/ops/scatter_pa_kv_cache.hpp"
#include "kvferry/ops/swap_blocks.hpp"
#include "kvferry/ops/transfer_layers.hpp"

namespace kvferry {

// DLPack's numbers for a dtype; hifloat8 is ours.
inline kvferry_dtype c_dtype(DType dtype) {
  constexpr std::uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kE4M3FN = 10, kE5M2 = 12,
                         kHiFloat = 128;
  switch (dtype) {
    case DType::kFloat16:
      return {kFloat, 16, 1};
    case DType::kBFloat16:
      return {kBFloat, 16, 1};
    case DType::kFloat32:
      return {kFloat, 32, 1};
    case DType::kInt8:
      return {kInt, 8, 1};
    case DType::kUInt8:
      return {kUInt, 8, 1};
    case DType::kInt16:
      return {kInt, 16, 1};
    case DType::kUInt16:
      return {kUInt, 16, 1};
    case DType::kInt32:
      return {kInt, 32, 1};
    case DType::kUInt32:
      return {kUInt, 32, 1};
    case DType::kInt64:
      return {kInt, 64, 1};
    case DType::kUInt64:
      return {kUInt, 64, 1};
    case DType::kHiFloat8:
      return {kHiFloat, 8, 1};
    case DType::kFloat8E5M2:
      return {kE5M2, 8, 1};
    case DType::kFloat8E4M3FN:
      return {kE4M3FN, 8, 1};
  }
  return {};
}

// Makes args structs. Their descriptors live in it and point into the C++ args, which must outlive it.
class CArgs {
 public:
  kvferry_gather_pa_kv_cache_args operator()(const GatherPaKvCacheArgs& a) {
    auto c = init<kvferry_gather_pa_kv_cache_args>();
    c.key_cache = one(a.key_cache);
    c.value_cache = one(a.value_cache);
    c.block_tables = one(a.block_tables);
    c.seq_lens = one(a.seq_lens);
    c.key = one(a.key);
    c.value = one(a.value);
    c.seq_offset = one(a.seq_offset);
    c.cache_mode = number(a.cache_mode);
    c.seq_lens_mode = a.is_seq_lens_cumsum ? KVFERRY_SEQ_LENS_CUMSUM : KVFERRY_SEQ_LENS_COUNTS;
    c.index_policy = number(a.index_policy);
    return c;
  }
  kvferry_scatter_pa_kv_cache_args operator()(const ScatterPaKvCacheArgs& a) {
    auto c = init<kvferry_scatter_pa_kv_cache_args>();
    c.key = one(a.key);
    c.key_cache = one(a.key_cache);
    c.slot_mapping = one(a.slot_mapping);
    c.value = one(a.value);
    c.value_cache = one(a.value_cache);
    c.cache_mode = number(a.cache_mode);
    c.scatter_mode = number(a.scatter_mode);
    for (std::size_t i = 0; i < 2; ++i) {
      c.nct_strides[i] = a.nct_strides[i];
      c.nct_offsets[i] = a.nct_offsets[i];
    }
    if (a.key.storage_elements >= 0) c.nct_storage_elements[0] = a.key.storage_elements;
    if (a.value && a.value->storage_elements >= 0) c.nct_storage_elements[1] = a.value->storage_elements;
    c.index_policy = number(a.index_policy);
    return c;
  }
  kvferry_group_memcpy_args operator()(const GroupMemcpyArgs& a) {
    auto c = init<kvferry_group_memcpy_args>();
    c.addr_table = one(a.addr_table);
    c.copy_bytes = a.copy_bytes;
    c.sizes = one(a.sizes);
    c.count = one(a.count);
    c.host_count = a.host_count ? &*a.host_count : nullptr;
    c.skip_null = a.skip_null ? 1 : 0;
    c.checked = a.checked ? 1 : 0;
    return c;
  }
  kvferry_gather_selection_kv_cache_args operator()(const GatherSelectionKvCacheArgs& a) {
    auto c = init<kvferry_gather_selection_kv_cache_args>();
    c.selection_k_rope = one(a.selection_k_rope);
    c.selection_kv_cache = one(a.selection_kv_cache);
    c.selection_kv_block_table = one(a.selection_kv_block_table);
    c.selection_kv_block_status = one(a.selection_kv_block_status);
    c.selection_topk_indices = one(a.selection_topk_indices);
    c.full_k_rope = one(a.full_k_rope);
    c.full_kv_cache = one(a.full_kv_cache);
    c.full_kv_block_table = one(a.full_kv_block_table);
    c.full_kv_actual_seq = one(a.full_kv_actual_seq);
    c.full_q_actual_seq = one(a.full_q_actual_seq);
    c.selection_kv_actual_seq = one(a.selection_kv_actual_seq);
    c.status_row = one(a.status_row);
    c.counters = one(a.counters);
    c.fetch_counts = one(a.fetch_counts);
    c.selection_topk_block_size = a.selection_topk_block_size;
    c.q_len_mode = number(a.q_len_mode);
    c.index_policy = number(a.index_policy);
    return c;
  }
  kvferry_copy_blocks_args operator()(const CopyBlocksArgs& a) {
    auto c = init<kvferry_copy_blocks_args>();
    c.caches = list(a.caches);
    c.num_caches = a.caches.size();
    c.mapping = one(a.mapping);
    c.count = one(a.count);
    c.index_policy = number(a.index_policy);
    return c;
  }
  kvferry_swap_blocks_args operator()(const SwapBlocksArgs& a) {
    auto c = init<kvferry_swap_blocks_args>();
    c.src = list(a.src);
    c.dst = list(a.dst);
    c.num_caches = a.src.size();
    c.mapping = one(a.mapping);
    c.count = one(a.count);
    c.index_policy = number(a.index_policy);
    return c;
  }
  kvferry_transfer_layers_args operator()(const TransferLayersArgs& a) {
    auto c = init<kvferry_transfer_layers_args>();
    c.key_caches = list(a.key_caches);
    c.value_caches = a.value_caches.empty() ? nullptr : list(a.value_caches);
    c.num_layers = a.key_caches.size();
    c.chunk = one(a.chunk);
    c.block_ids = one(a.block_ids);
    c.chunk_layout = number(a.chunk_layout);
    c.direction = number(a.direction);
    c.index_policy = number(a.index_policy);
    return c;
  }
  kvferry_gather_dequant_args operator()(const GatherDequantArgs& a) {
    auto c = init<kvferry_gather_dequant_args>();
    c.cache = one(a.cache);
    c.block_tables = one(a.block_tables);
    c.seq_lens = one(a.seq_lens);
    c.out = one(a.out);
    c.seq_offset = one(a.seq_offset);
    c.seq_lens_mode = a.is_seq_lens_cumsum ? KVFERRY_SEQ_LENS_CUMSUM : KVFERRY_SEQ_LENS_COUNTS;
    c.index_policy = number(a.index_policy);
    return c;
  }

 private:
  template <class Struct>
  static Struct init() {
    Struct object;
    KVFERRY_INIT(object);
    return object;
  }
  template <class Enum>
  static std::int64_t number(Enum value) {
    return static_cast<std::int64_t>(value);
  }

  static kvferry_tensor describe(const TensorView& view) {
    return {view.data,
            {static_cast<std::int32_t>(view.device.type), view.device.index},
            view.rank,
            c_dtype(view.dtype),
            view.shape.data(),
            view.strides.data(),
            static_cast<std::uint64_t>(view.offset * size_of(view.dtype))};
  }
  const kvferry_tensor* list(std::span<const TensorView> views) {
    std::vector<kvferry_tensor>& made = lists_.emplace_back();
    for (const TensorView& view : views) made.push_back(describe(view));
    return made.data();
  }
  const kvferry_tensor* one(const TensorView& view) { return list({&view, 1}); }
  const kvferry_tensor* one(const std::optional<TensorView>& view) { return view ? one(*view) : nullptr; }

  std::deque<std::vector<kvferry_tensor>> lists_;
};

// A buffers struct: the C++ one behind its size, member for member.
template <class CBuffers, class Buffers>
CBuffers c_buffers(const Buffers& buffers) {
  static_assert(sizeof(CBuffers) == sizeof(std::size_t) + sizeof(Buffers));
  CBuffers c;
  KVFERRY_INIT(c);
  std::memcpy(reinterpret_cast<std::byte*>(&c) + sizeof(std::size_t), &buffers, sizeof buffers);
  return c;
}

}  // namespace kvferry
