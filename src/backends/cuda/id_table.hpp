// SPDX-License-Identifier: Apache-2.0
//
// A hash table of ids that the threads of a block fill together: open addressing, at most half full, in
// shared memory or in that of the device.
#pragma once

#include <cstdint>

#include "backends/cuda/kernel.hpp"

namespace kvferry::internal::cuda {

// int32 words in a shared array.
template <class Array>
class SharedWords {
 public:
  KVFERRY_KERNEL_FN explicit SharedWords(Array& array) : array_(&array) {}
  template <class X>
  KVFERRY_KERNEL_FN std::int32_t get(X& /*x*/, std::uint32_t i) const {
    return (*array_)[i];
  }
  template <class X>
  KVFERRY_KERNEL_FN void set(X& /*x*/, std::uint32_t i, std::int32_t value) const {
    array_->set(i, value);
  }
  template <class X>
  KVFERRY_KERNEL_FN std::int32_t cas(X& x, std::uint32_t i, std::int32_t expected,
                                     std::int32_t desired) const {
    return x.atomic_cas(*array_, i, expected, desired);
  }
  template <class X>
  KVFERRY_KERNEL_FN void lower(X& x, std::uint32_t i, std::int32_t value) const {
    x.atomic_min(*array_, i, value);
  }

 private:
  Array* array_;
};

// int32 words of the device.
class DeviceWords {
 public:
  KVFERRY_KERNEL_FN explicit DeviceWords(std::int32_t* words) : words_(words) {}
  template <class X>
  KVFERRY_KERNEL_FN std::int32_t get(X& x, std::uint32_t i) const {
    return x.load(static_cast<const std::int32_t*>(words_ + i));
  }
  template <class X>
  KVFERRY_KERNEL_FN void set(X& x, std::uint32_t i, std::int32_t value) const {
    x.store(words_ + i, value);
  }
  template <class X>
  KVFERRY_KERNEL_FN std::int32_t cas(X& x, std::uint32_t i, std::int32_t expected,
                                     std::int32_t desired) const {
    return x.atomic_cas(words_ + i, expected, desired);
  }
  template <class X>
  KVFERRY_KERNEL_FN void lower(X& x, std::uint32_t i, std::int32_t value) const {
    x.atomic_min(words_ + i, value);
  }

 private:
  std::int32_t* words_;
};

// Of 2^bits entries, the keys alone: what else is known of an id lies at the same place in other words. Keys
// are kFree before the first id comes; ids are not negative.
template <class Words>
class IdTable {
 public:
  static constexpr std::int32_t kFree = -1;
  static constexpr std::uint32_t kNowhere = 0xffffffffU;

  KVFERRY_KERNEL_FN IdTable(Words keys, std::uint32_t bits) : keys_(keys), bits_(bits) {}
  KVFERRY_KERNEL_FN std::uint32_t entries() const { return 1U << bits_; }

  // The place of `id`, which is put there if it is in none; `is_new` for the thread that did.
  template <class X>
  KVFERRY_KERNEL_FN std::uint32_t insert(X& x, std::int32_t id, bool& is_new) const {
    std::uint32_t at = home(id);
    for (;; at = next(at)) {
      const std::int32_t key = keys_.cas(x, at, kFree, id);
      is_new = key == kFree;
      if (is_new || key == id) return at;
    }
  }

  // Behind a barrier that ends the insertions; kNowhere for an id that was not among them.
  template <class X>
  KVFERRY_KERNEL_FN std::uint32_t find(X& x, std::int32_t id) const {
    for (std::uint32_t at = home(id);; at = next(at)) {
      const std::int32_t key = keys_.get(x, at);
      if (key == id) return at;
      if (key == kFree) return kNowhere;
    }
  }

 private:
  KVFERRY_KERNEL_FN std::uint32_t home(std::int32_t id) const {
    return static_cast<std::uint32_t>(id) * 2654435769U >> (32 - bits_);
  }
  KVFERRY_KERNEL_FN std::uint32_t next(std::uint32_t at) const { return (at + 1) & (entries() - 1); }

  Words keys_;
  std::uint32_t bits_;
};

// Bits of a table for so many ids, 1 to 31.
constexpr std::uint32_t id_table_bits(std::int64_t ids) {
  std::uint32_t bits = 1;
  while ((std::int64_t{1} << bits) < 2 * ids) ++bits;
  return bits;
}

}  // namespace kvferry::internal::cuda
