// SPDX-License-Identifier: Apache-2.0
//
// Small valid calls of each operator, with memory of their own, for tests of what all operators have in
// common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kvferry/ops/copy_blocks.hpp"
#include "kvferry/ops/gather_dequant.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"
#include "kvferry/ops/gather_selection_kv_cache.hpp"
#include "kvferry/ops/group_memcpy.hpp"
#include "kvferry/ops/scatter_pa_kv_cache.hpp"
#include "kvferry/ops/swap_blocks.hpp"
#include "kvferry/ops/transfer_layers.hpp"

namespace kvferry {

// Two sequences of 5 and 3 tokens out of 6 blocks of 4 tokens; a token is `width` bytes of K and of V.
struct GatherExample {
  explicit GatherExample(std::int64_t token_bytes = 48, std::int64_t blocks_per_sequence = 2)
      : width(token_bytes), columns(blocks_per_sequence), rows(8 * columns - 4) {
    const std::int64_t blocks = 2 * columns + 2;
    cache_k.resize(static_cast<std::size_t>(blocks * 4 * width));
    cache_v.resize(cache_k.size());
    for (std::size_t i = 0; i < cache_k.size(); ++i) {
      cache_k[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
      cache_v[i] = static_cast<std::uint8_t>(i * 11 + i / 241);
    }
    table.resize(static_cast<std::size_t>(2 * columns));
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int64_t>(table.size() - i);
    lens = {4 * columns - 3, 4 * columns - 1};
    key.assign(static_cast<std::size_t>(rows * width), 77);
    value = key;
    args.key_cache = contiguous(cache_k.data(), DType::kUInt8, {blocks, 4, 1, width});
    args.value_cache = contiguous(cache_v.data(), DType::kUInt8, {blocks, 4, 1, width});
    args.block_tables = contiguous(table.data(), DType::kInt64, {2, columns});
    args.seq_lens = contiguous(lens.data(), DType::kInt64, {2});
    args.key = contiguous(key.data(), DType::kUInt8, {rows, 1, width});
    args.value = contiguous(value.data(), DType::kUInt8, {rows, 1, width});
    args.is_seq_lens_cumsum = false;
  }
  GatherExample(const GatherExample&) = delete;
  GatherExample& operator=(const GatherExample&) = delete;

  // Row `row` of the outputs as the operator defines it, for ids that are in range.
  bool right() const {
    std::int64_t row = 0;
    for (std::int64_t batch = 0; batch < 2; ++batch) {
      for (std::int64_t t = 0; t < lens[static_cast<std::size_t>(batch)]; ++t, ++row) {
        const std::int64_t token = table[static_cast<std::size_t>(batch * columns + t / 4)] * 4 + t % 4;
        if (!std::equal(key.begin() + row * width, key.begin() + (row + 1) * width,
                        cache_k.begin() + token * width) ||
            !std::equal(value.begin() + row * width, value.begin() + (row + 1) * width,
                        cache_v.begin() + token * width)) {
          return false;
        }
      }
    }
    return true;
  }
  bool untouched() const {
    const auto is_77 = [](std::uint8_t byte) { return byte == 77; };
    return std::all_of(key.begin(), key.end(), is_77) && std::all_of(value.begin(), value.end(), is_77);
  }
  void clear() {
    std::fill(key.begin(), key.end(), std::uint8_t{77});
    std::fill(value.begin(), value.end(), std::uint8_t{77});
  }

  std::int64_t width;
  std::int64_t columns;
  std::int64_t rows;
  std::vector<std::uint8_t> cache_k, cache_v, key, value;
  std::vector<std::int64_t> table, lens;
  GatherPaKvCacheArgs args;
};

// `tokens` tokens of `width` bytes into every second slot.
struct ScatterExample {
  explicit ScatterExample(std::int64_t token_bytes = 48, std::int64_t count = 6)
      : width(token_bytes), tokens(count) {
    const std::int64_t blocks = (2 * tokens + 3) / 4;
    key.resize(static_cast<std::size_t>(tokens * width));
    std::iota(key.begin(), key.end(), std::uint8_t{1});
    cache.assign(static_cast<std::size_t>(blocks * 4 * width), 77);
    slots.resize(static_cast<std::size_t>(tokens));
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int64_t>(2 * i);
    args.key = contiguous(key.data(), DType::kUInt8, {tokens, 1, width});
    args.key_cache = contiguous(cache.data(), DType::kUInt8, {blocks, 4, 1, width});
    args.slot_mapping = contiguous(slots.data(), DType::kInt64, {tokens});
  }
  ScatterExample(const ScatterExample&) = delete;
  ScatterExample& operator=(const ScatterExample&) = delete;

  bool right() const {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t at = slots[static_cast<std::size_t>(t)] * width;
      if (!std::equal(key.begin() + t * width, key.begin() + (t + 1) * width, cache.begin() + at))
        return false;
    }
    return true;
  }
  bool untouched() const {
    return std::all_of(cache.begin(), cache.end(), [](std::uint8_t byte) { return byte == 77; });
  }

  std::int64_t width;
  std::int64_t tokens;
  std::vector<std::uint8_t> key, cache;
  std::vector<std::int64_t> slots;
  ScatterPaKvCacheArgs args;
};

// `pairs` pairs of `bytes` bytes.
struct GroupMemcpyExample {
  explicit GroupMemcpyExample(std::int64_t pair_bytes = 48, std::int64_t count = 5)
      : bytes(pair_bytes), pairs(count) {
    src.resize(static_cast<std::size_t>(pairs * bytes));
    std::iota(src.begin(), src.end(), std::uint8_t{3});
    dst.assign(src.size(), 77);
    for (std::int64_t p = 0; p < pairs; ++p) {
      table.push_back(reinterpret_cast<std::uintptr_t>(src.data() + p * bytes));
      table.push_back(reinterpret_cast<std::uintptr_t>(dst.data() + (pairs - 1 - p) * bytes));
    }
    args.addr_table = contiguous(table.data(), DType::kUInt64, {pairs, 2});
    args.copy_bytes = bytes;
  }
  GroupMemcpyExample(const GroupMemcpyExample&) = delete;
  GroupMemcpyExample& operator=(const GroupMemcpyExample&) = delete;

  bool right() const {
    for (std::int64_t p = 0; p < pairs; ++p) {
      if (!std::equal(src.begin() + p * bytes, src.begin() + (p + 1) * bytes,
                      dst.begin() + (pairs - 1 - p) * bytes)) {
        return false;
      }
    }
    return true;
  }
  bool untouched() const {
    return std::all_of(dst.begin(), dst.end(), [](std::uint8_t byte) { return byte == 77; });
  }

  std::int64_t bytes;
  std::int64_t pairs;
  std::vector<std::uint8_t> src, dst;
  std::vector<std::uint64_t> table;
  GroupMemcpyArgs args;
};

// Two query rows of one sequence of 2 * `count` + 1 tokens of `width` bytes, the last two of them drafts;
// each row selects `count` tokens one by one. Pages of 4 tokens.
struct SelectionExample {
  explicit SelectionExample(std::int64_t token_bytes = 48, std::int64_t top_k = 6)
      : width(token_bytes), count(top_k), columns((count + 3) / 4) {
    const std::int64_t full_columns = (2 * count + 4) / 4;
    full.resize(static_cast<std::size_t>(full_columns * 4 * width));
    for (std::size_t i = 0; i < full.size(); ++i)
      full[i] = static_cast<std::uint8_t>(i * 7 + i / 251 + i / 65521);
    selection.assign(static_cast<std::size_t>(2 * columns * 4 * width), 77);
    table.resize(static_cast<std::size_t>(2 * columns));
    std::iota(table.begin(), table.end(), 0);
    full_table.resize(static_cast<std::size_t>(full_columns));
    std::iota(full_table.rbegin(), full_table.rend(), 0);
    status.assign(static_cast<std::size_t>(2 * (count + 1)), -1);
    for (std::int64_t i = 0; i < 2 * count; ++i) topk.push_back(static_cast<std::int32_t>(2 * count - 1 - i));
    lens = {static_cast<std::int32_t>(2 * count + 1)};
    args.selection_kv_cache = contiguous(selection.data(), DType::kUInt8, {2 * columns, 4, width});
    args.selection_kv_block_table = contiguous(table.data(), DType::kInt32, {2, columns});
    args.selection_kv_block_status = contiguous(status.data(), DType::kInt32, {1, 2, 1, count + 1});
    args.selection_topk_indices = contiguous(topk.data(), DType::kInt32, {1, 2, 1, count});
    args.full_kv_cache = contiguous(full.data(), DType::kUInt8, {full_columns, 4, width});
    args.full_kv_block_table = contiguous(full_table.data(), DType::kInt32, {1, full_columns});
    args.full_kv_actual_seq = contiguous(lens.data(), DType::kInt32, {1});
    args.full_q_actual_seq = contiguous(q.data(), DType::kInt32, {1});
    args.selection_kv_actual_seq = contiguous(out.data(), DType::kInt32, {2});
    args.selection_topk_block_size = 1;
  }
  SelectionExample(const SelectionExample&) = delete;
  SelectionExample& operator=(const SelectionExample&) = delete;

  // Every slot holds the token that status says, and both rows what they selected.
  bool right() const {
    for (std::int64_t row = 0; row < 2; ++row) {
      const auto ids = status.begin() + row * (count + 1);
      std::vector<std::int32_t> held(ids, ids + count);
      std::sort(held.rbegin(), held.rend());
      if (!std::equal(held.begin(), held.end(), topk.begin() + row * count)) return false;
      if (ids[count] != count || out[static_cast<std::size_t>(row)] != count) return false;
      for (std::int64_t p = 0; p < count; ++p) {
        const std::int64_t to = (row * columns + p / 4) * 4 + p % 4;
        const std::int64_t from = full_table[static_cast<std::size_t>(ids[p] / 4)] * 4 + ids[p] % 4;
        if (!std::equal(selection.begin() + to * width, selection.begin() + (to + 1) * width,
                        full.begin() + from * width)) {
          return false;
        }
      }
    }
    return true;
  }
  bool untouched() const {
    return std::all_of(selection.begin(), selection.end(), [](std::uint8_t byte) { return byte == 77; }) &&
           std::all_of(status.begin(), status.end(), [](std::int32_t id) { return id == -1; });
  }
  void clear() {
    std::fill(selection.begin(), selection.end(), std::uint8_t{77});
    std::fill(status.begin(), status.end(), -1);
  }

  std::int64_t width;
  std::int64_t count;
  std::int64_t columns;
  std::vector<std::uint8_t> full, selection;
  std::vector<std::int32_t> table, full_table, status, topk, lens, q = {2}, out = {-1, -1};
  GatherSelectionKvCacheArgs args;
};

// `pairs` pairs between the halves of two caches, or between two pools of two caches: block p goes to the
// last but p. Blocks of the caches have `bytes` and 3 bytes.
struct BlocksExample {
  explicit BlocksExample(std::int64_t block_bytes = 48, std::int64_t count = 5)
      : bytes(block_bytes), pairs(count) {
    for (const std::int64_t size : {bytes, std::int64_t{3}}) {
      auto& source = src.emplace_back(static_cast<std::size_t>(2 * pairs * size), std::uint8_t{77});
      std::iota(source.begin(), source.begin() + pairs * size, std::uint8_t{3});
      dst.push_back(source);
      std::fill(dst.back().begin(), dst.back().end(), std::uint8_t{77});
      src_views.push_back(contiguous(src.back().data(), DType::kUInt8, {2 * pairs, size}));
      dst_views.push_back(contiguous(dst.back().data(), DType::kUInt8, {2 * pairs, size}));
    }
    for (std::int64_t p = 0; p < pairs; ++p) mapping.insert(mapping.end(), {p, 2 * pairs - 1 - p});
    const TensorView ids = contiguous(mapping.data(), DType::kInt64, {pairs, 2});
    copy = {src_views, ids, {}, IndexPolicy::kDefault};
    swap = {src_views, dst_views, ids, {}, IndexPolicy::kDefault};
  }
  BlocksExample(const BlocksExample&) = delete;
  BlocksExample& operator=(const BlocksExample&) = delete;

  CopyBlocksBuffers copy_buffers() { return buffers(copy, caches); }
  SwapBlocksBuffers swap_buffers() { return buffers(swap, sources, caches); }

  bool copied() const { return right(src); }
  bool swapped() const { return right(dst); }
  bool untouched() const {
    const auto is_77 = [](std::uint8_t byte) { return byte == 77; };
    bool all = true;
    for (std::size_t i = 0; i < 2; ++i) {
      const auto middle = src[i].begin() + static_cast<std::ptrdiff_t>(src[i].size() / 2);
      all =
          all && std::all_of(middle, src[i].end(), is_77) && std::all_of(dst[i].begin(), dst[i].end(), is_77);
    }
    return all;
  }

  std::int64_t bytes;
  std::int64_t pairs;
  std::vector<std::vector<std::uint8_t>> src, dst;
  std::vector<TensorView> src_views, dst_views;
  std::vector<std::int64_t> mapping;
  CopyBlocksArgs copy;
  SwapBlocksArgs swap;
  const void* sources[2] = {};
  void* caches[2] = {};

 private:
  bool right(const std::vector<std::vector<std::uint8_t>>& to) const {
    for (std::size_t i = 0; i < 2; ++i) {
      const std::int64_t size = src_views[i].dim(1);
      for (std::int64_t p = 0; p < pairs; ++p) {
        if (!std::equal(src[i].begin() + p * size, src[i].begin() + (p + 1) * size,
                        to[i].begin() + (2 * pairs - 1 - p) * size)) {
          return false;
        }
      }
    }
    return true;
  }
};

// 3 layers of K pools of 2n blocks of 2 slots; every second block goes into a chunk.
struct TransferLayersExample {
  explicit TransferLayersExample(std::int64_t slot_bytes = 48, std::int64_t count = 4)
      : block_bytes(2 * slot_bytes), entries(count) {
    memory.resize(static_cast<std::size_t>(6 * entries * block_bytes));
    std::iota(memory.begin(), memory.end(), std::uint8_t{5});
    chunk.assign(memory.size() / 2, 77);
    for (std::int64_t i = 0; i < entries; ++i) ids.push_back(2 * (entries - 1 - i));
    for (std::int64_t l = 0; l < 3; ++l) {
      pools.push_back(contiguous(memory.data() + l * 2 * entries * block_bytes, DType::kUInt8,
                                 {2 * entries, 2, 1, slot_bytes}));
    }
    args.key_caches = pools;
    args.chunk = contiguous(chunk.data(), DType::kUInt8, {3, entries, 1, 2, 1, slot_bytes});
    args.block_ids = contiguous(ids.data(), DType::kInt64, {entries});
  }
  TransferLayersExample(const TransferLayersExample&) = delete;
  TransferLayersExample& operator=(const TransferLayersExample&) = delete;

  bool right() const {
    for (std::int64_t l = 0; l < 3; ++l) {
      for (std::int64_t i = 0; i < entries; ++i) {
        const std::int64_t block = l * 2 * entries + ids[static_cast<std::size_t>(i)];
        const auto place = chunk.begin() + (l * entries + i) * block_bytes;
        if (!std::equal(place, place + block_bytes, memory.begin() + block * block_bytes)) return false;
      }
    }
    return true;
  }
  bool untouched() const {
    return std::all_of(chunk.begin(), chunk.end(), [](std::uint8_t byte) { return byte == 77; });
  }

  std::int64_t block_bytes;
  std::int64_t entries;
  std::vector<std::uint8_t> memory, chunk;
  std::vector<std::int64_t> ids;
  std::vector<TensorView> pools;
  std::vector<void*> pointers = std::vector<void*>(3);
  TransferLayersArgs args;
};

// One sequence that is all of `blocks` blocks of 4 tokens, last block first. Values are 1, scales 2.
struct GatherDequantExample {
  explicit GatherDequantExample(std::int64_t count = 2) : blocks(count) {
    cache.assign(static_cast<std::size_t>(blocks * 4 * 656), 0x38);
    for (std::size_t row = 0; row < cache.size(); row += 656) {
      for (std::size_t i = 0; i < 16; ++i) cache[row + 512 + i] = i % 4 == 3 ? 0x40 : 0;
      cache[row + 528] = static_cast<std::uint8_t>(row / 656);  // the first rope value tells rows apart
    }
    for (std::int64_t i = 0; i < blocks; ++i) table.push_back(blocks - 1 - i);
    lens = {4 * blocks};
    out.assign(static_cast<std::size_t>(4 * blocks * 576), 77);
    args.cache = contiguous(cache.data(), DType::kUInt8, {blocks, 4, 656});
    args.block_tables = contiguous(table.data(), DType::kInt64, {1, blocks});
    args.seq_lens = contiguous(lens.data(), DType::kInt64, {1});
    args.is_seq_lens_cumsum = false;
    args.out = contiguous(out.data(), DType::kBFloat16, {4 * blocks, 576});
  }
  GatherDequantExample(const GatherDequantExample&) = delete;
  GatherDequantExample& operator=(const GatherDequantExample&) = delete;

  bool right() const {
    for (std::size_t row = 0; row < out.size() / 576; ++row) {
      const auto first = out.begin() + static_cast<std::ptrdiff_t>(row * 576);
      const auto token = static_cast<std::size_t>(table[row / 4]) * 4 + row % 4;
      if (!std::all_of(first, first + 512, [](std::uint16_t value) { return value == 0x4000; }) ||
          first[512] != (0x3800 | (token & 255))) {
        return false;
      }
    }
    return true;
  }
  bool untouched() const {
    return std::all_of(out.begin(), out.end(), [](std::uint16_t value) { return value == 77; });
  }

  std::int64_t blocks;
  std::vector<std::uint8_t> cache;
  std::vector<std::int64_t> table, lens;
  std::vector<std::uint16_t> out;
  GatherDequantArgs args;
};

}  // namespace kvferry
