// SPDX-License-Identifier: Apache-2.0
//
// IndexPolicy::kReport of the scatter: slots that a cache does not have, and slots that are named again.
#pragma once

#include <cstdint>

#include "backends/cuda/first_use.hpp"
#include "backends/cuda/indices.hpp"
#include "backends/cuda/kernel.hpp"

namespace kvferry::internal::cuda {

// One block.
struct ScatterReport {
  struct Cache {
    std::int64_t slots;
    std::uint32_t bit;  // of a record
  };
  struct Params {
    Indices slots;
    std::int64_t tokens;
    FirstUse uses;  // room for `tokens`
    DevicePtr<Record> record;
    Cache caches[2];
    std::uint32_t cache_count;
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
    p.uses.clear(x);
    x.sync();
    for (std::int64_t t = x.thread(); t < p.tokens; t += kThreads) {
      const std::int64_t slot = load_index(x, p.slots, t);
      if (slot >= 0 && in_range(p, slot) != 0) p.uses.add(x, slot, t);
    }
    x.sync();
    Found found;
    for (std::int64_t t = x.thread(); t < p.tokens; t += kThreads) {
      const std::uint32_t bits = bits_of(x, p, t, load_index(x, p.slots, t));
      const std::uint32_t pairs = (bits & kKeyBit) + (bits & kValueBit) / kValueBit;
      if (pairs != 0) found.add(t, 0, pairs);
    }
    if (!found.gather(x, sh.found)) return;
    const std::int64_t token = sh.found.batch[0], slot = load_index(x, p.slots, token);
    add_to_record(x, p.record.get(), {sh.found.bad[0], token, 0, slot, bits_of(x, p, token, slot), p.op});
  }

 private:
  // Bits of the caches that have the slot. REQUIRES that it is not negative.
  KVFERRY_KERNEL_FN static std::uint32_t in_range(const Params& p, std::int64_t slot) {
    std::uint32_t bits = 0;
    for (std::uint32_t c = 0; c < p.cache_count; ++c) {
      if (slot < p.caches[c].slots) bits |= p.caches[c].bit;
    }
    return bits;
  }

  // What is wrong with token t: out of range for one cache, repeated in the other.
  template <class X>
  KVFERRY_KERNEL_FN static std::uint32_t bits_of(X& x, const Params& p, std::int64_t t, std::int64_t slot) {
    if (slot < 0) return 0;  // padding
    const std::uint32_t inside = in_range(p, slot);
    std::uint32_t bits = 0;
    for (std::uint32_t c = 0; c < p.cache_count; ++c) bits |= p.caches[c].bit & ~inside;
    if (inside != 0 && p.uses.first(x, slot) != t) bits |= inside | kDuplicateBit;
    return bits;
  }
};

}  // namespace kvferry::internal::cuda
