// SPDX-License-Identifier: Apache-2.0
//
// Repeated indices: which entry of an index tensor is the first to name an index. A hash table in the
// workspace, for the threads of one block.
#pragma once

#include <cstdint>

#include "backends/cuda/kernel.hpp"

namespace kvferry::internal::cuda {

// Every step is by all threads of the block, with a barrier (x.sync()) between the steps: clear(), add() of
// all entries, first() of any of them. Indices are not negative.
class FirstUse {
 public:
  struct alignas(16) Place {
    std::int64_t index;  // kFree: none
    std::int64_t entry;  // the lowest that names it
  };
  // Of workspace, for each entry that may be added: half of the places stay free, so that chains are short.
  static constexpr std::int64_t kBytesPerEntry = 2 * sizeof(Place);

  // REQUIRES entries > 0, and entries * kBytesPerEntry bytes.
  static FirstUse at(DevicePtr<Place> places, std::int64_t entries) {
    FirstUse table;
    table.places_ = places;
    table.count_ = 2 * static_cast<std::uint64_t>(entries);
    return table;
  }

  template <class X>
  KVFERRY_KERNEL_FN void clear(X& x) const {
    for (std::uint64_t i = x.thread(); i < count_; i += x.threads())
      x.store(places_.get() + i, Place{kFree, kNoEntry});
  }

  // By one thread: entry `entry` names `index`.
  template <class X>
  KVFERRY_KERNEL_FN void add(X& x, std::int64_t index, std::int64_t entry) const {
    for (std::uint64_t i = home(index);; i = next(i)) {
      Place* const place = places_.get() + i;
      const std::int64_t old = x.atomic_cas(&place->index, kFree, index);
      if (old != kFree && old != index) continue;
      x.atomic_min(&place->entry, entry);
      return;
    }
  }

  // By one thread: the lowest entry that names `index`, kNoEntry for none.
  template <class X>
  KVFERRY_KERNEL_FN std::int64_t first(X& x, std::int64_t index) const {
    for (std::uint64_t i = home(index);; i = next(i)) {
      const Place place = x.load(static_cast<const Place*>(places_.get()) + i);
      if (place.index == index || place.index == kFree) return place.entry;
    }
  }

  static constexpr std::int64_t kNoEntry = 0x7fffffffffffffff;

 private:
  static constexpr std::int64_t kFree = -1;

  // The upper half has a say too: indices are often multiples of a power of two.
  KVFERRY_KERNEL_FN std::uint64_t home(std::int64_t index) const {
    const std::uint64_t hash = static_cast<std::uint64_t>(index) * 0x9e3779b97f4a7c15U;
    return (hash ^ hash >> 32) % count_;
  }
  KVFERRY_KERNEL_FN std::uint64_t next(std::uint64_t i) const { return i + 1 == count_ ? 0 : i + 1; }

  DevicePtr<Place> places_;
  std::uint64_t count_;
};

}  // namespace kvferry::internal::cuda
