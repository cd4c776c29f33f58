// SPDX-License-Identifier: Apache-2.0
//
// Blocks of the pools of many layers to one chunk and back: the kernels of transfer_layers.
#pragma once

#include <cstdint>

#include "backends/cuda/first_use.hpp"
#include "backends/cuda/indices.hpp"
#include "backends/cuda/kernel.hpp"
#include "backends/cuda/mover.hpp"
#include "backends/cuda/turns.hpp"

namespace kvferry::internal::cuda {

struct LayerIds {
  Indices ids;
  std::int64_t entries, blocks;
  bool to_chunk;

  template <class X>
  KVFERRY_KERNEL_FN std::int64_t at(X& x, std::int64_t entry) const {
    return load_index(x, ids, entry);
  }
  KVFERRY_KERNEL_FN bool in_range(std::int64_t id) const { return id >= 0 && id < blocks; }
};

struct LayerPool {
  DevicePtr<std::uint8_t> data;
  std::int64_t block_step;
  std::int64_t in_chunk;  // of an entry, where this pool's block is
};

// Pools that are strided alike. Blocks take tasks, some slots of one block of one pool, in turns. REQUIRES
// tasks of less than 2 GiB.
struct LayerTransfer {
  static constexpr std::uint32_t kMostPools = 144;

  struct Params {
    LayerIds ids;
    DevicePtr<std::uint8_t> chunk;
    std::int64_t entry_step;
    std::int64_t block_size;
    std::int64_t parts;  // of a block: of 2^part_shift slots
    std::uint32_t part_shift;
    std::uint32_t pool_count;
    DeviceNest nest;  // a slot from source to destination
    LayerPool pools[kMostPools];
  };
  static_assert(sizeof(Params) <= kMostParameterBytes);
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kMinBlocks = 4;

  template <class X>
  struct Shared {};

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& /*sh*/, const Params& p) {
    for (Turns turns(x, p.pool_count * p.parts, kThreads); turns.outer() < p.ids.entries;) {
      const std::int64_t id = p.ids.at(x, turns.outer());
      const bool there = p.ids.in_range(id);
      if (!there && !p.ids.to_chunk) {
        turns.skip();
        continue;
      }
      const std::int64_t pool_index = turns.inner() / p.parts;
      const LayerPool& pool = p.pools[pool_index];
      const std::int64_t slot = (turns.inner() - pool_index * p.parts) << p.part_shift;
      const auto tokens =
          static_cast<std::uint32_t>(least(std::int64_t{1} << p.part_shift, p.block_size - slot));
      std::uint8_t* const place = p.chunk.get() + turns.outer() * p.entry_step + pool.in_chunk;
      std::uint8_t* const home = there ? pool.data.get() + id * pool.block_step : nullptr;
      const std::uint8_t* src = p.ids.to_chunk ? home : place;
      if (src != nullptr) src += slot * p.nest.src_token_step;
      BlockMover<kThreads>::move(x, p.nest, (p.ids.to_chunk ? place : home) + slot * p.nest.dst_token_step,
                                 src, tokens);
      turns.next();
    }
  }
};

// The record of IndexPolicy::kReport: report() of transfer_layers_cpu.cpp. One block.
struct LayerReport {
  struct Params {
    LayerIds ids;
    FirstUse uses;  // unless to_chunk
    DevicePtr<Record> record;
    std::uint32_t op;
  };
  static constexpr std::uint32_t kThreads = 512;
  static constexpr std::uint32_t kMinBlocks = 1;

  template <class X>
  struct Shared {
    FoundShared<X> found;
  };

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (!p.ids.to_chunk) {
      p.uses.clear(x);
      x.sync();
      for (std::int64_t i = x.thread(); i < p.ids.entries; i += kThreads) {
        const std::int64_t id = p.ids.at(x, i);
        if (p.ids.in_range(id)) p.uses.add(x, id, i);
      }
      x.sync();
    }
    Found found;
    for (std::int64_t i = x.thread(); i < p.ids.entries; i += kThreads) {
      if (judge(x, p, i, p.ids.at(x, i)) != 0) found.add(i, 0, 1);
    }
    if (!found.gather(x, sh.found)) return;
    const std::int64_t first = sh.found.batch[0], id = p.ids.at(x, first);
    add_to_record(x, p.record.get(), {sh.found.bad[0], first, 0, id, judge(x, p, first, id), p.op});
  }

 private:
  template <class X>
  KVFERRY_KERNEL_FN static std::uint32_t judge(X& x, const Params& p, std::int64_t i, std::int64_t id) {
    if (p.ids.to_chunk) return p.ids.in_range(id) ? 0 : kSourceBit;
    if (id < 0) return 0;
    if (id >= p.ids.blocks) return kDestinationBit;
    return p.uses.first(x, id) < i ? kDuplicateBit : 0;
  }
};

}  // namespace kvferry::internal::cuda
