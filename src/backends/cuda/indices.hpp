// SPDX-License-Identifier: Apache-2.0
//
// Index tensors, and what kernels say of bad entries.
#pragma once

#include <cstdint>

#include "backends/cuda/kernel.hpp"

namespace kvferry::internal::cuda {

// int32 or int64 of any strides (in bytes) and alignment.
struct Indices {
  DevicePtr<const std::uint8_t> data;
  std::int64_t step0, step1;
  bool wide;
};

// int32 at any address.
template <class X>
KVFERRY_KERNEL_FN std::int32_t load_int32(X& x, const std::uint8_t* at) {
  if (reinterpret_cast<std::uintptr_t>(at) % 4 == 0) return x.load(reinterpret_cast<const std::int32_t*>(at));
  std::uint32_t bits = 0;
  for (std::uint32_t n = 0; n < 4; ++n) bits |= static_cast<std::uint32_t>(x.load(at + n)) << 8 * n;
  return static_cast<std::int32_t>(bits);
}
template <class X>
KVFERRY_KERNEL_FN void store_int32(X& x, std::uint8_t* at, std::int32_t value) {
  if (reinterpret_cast<std::uintptr_t>(at) % 4 == 0)
    return x.store(reinterpret_cast<std::int32_t*>(at), value);
  for (std::uint32_t n = 0; n < 4; ++n)
    x.store(at + n, static_cast<std::uint8_t>(static_cast<std::uint32_t>(value) >> 8 * n));
}

// int32 that a kernel writes.
struct Int32Outputs {
  DevicePtr<std::uint8_t> data;
  std::int64_t step0, step1;
};

template <class X>
KVFERRY_KERNEL_FN void store_output(X& x, const Int32Outputs& outputs, std::int32_t value, std::int64_t i,
                                    std::int64_t j = 0) {
  store_int32(x, outputs.data.get() + i * outputs.step0 + j * outputs.step1, value);
}

template <class X>
KVFERRY_KERNEL_FN std::int64_t load_index(X& x, const Indices& indices, std::int64_t i, std::int64_t j = 0) {
  const std::uint8_t* at = indices.data.get() + i * indices.step0 + j * indices.step1;
  const std::uint32_t bytes = indices.wide ? 8 : 4;
  if (reinterpret_cast<std::uintptr_t>(at) % bytes == 0) {
    return indices.wide ? x.load(reinterpret_cast<const std::int64_t*>(at))
                        : x.load(reinterpret_cast<const std::int32_t*>(at));
  }
  std::uint64_t bits = 0;
  for (std::uint32_t n = 0; n < bytes; ++n) bits |= static_cast<std::uint64_t>(x.load(at + n)) << 8 * n;
  return indices.wide ? static_cast<std::int64_t>(bits) : static_cast<std::int32_t>(bits);
}

// How many of the `most` entries of a call run, where a tensor may say it.
template <class X>
KVFERRY_KERNEL_FN std::int64_t load_count(X& x, const Indices& count, bool has_count, std::int64_t most) {
  if (!has_count) return most;
  const std::int64_t wanted = load_index(x, count, 0);
  return wanted < 0 ? 0 : least(wanted, most);
}

// ErrorRecord of kvferry/plan.hpp, and its bits.
struct Record {
  std::uint64_t bad;
  std::int64_t batch, column, id;
  std::uint32_t which, op;
};
inline constexpr std::uint32_t kKeyBit = 1, kValueBit = 2, kColumnBit = 4, kDuplicateBit = 8, kSourceBit = 16,
                               kDestinationBit = 32;

// What the threads of one block found: how many, and the lowest (batch, column).
template <class X>
struct FoundShared {
  SharedArray<X, std::uint64_t, 1> bad;
  SharedArray<X, std::int64_t, 1> batch, column;
};

// What one thread found.
class Found {
 public:
  // `pairs` bad entries at (batch, column); true if that is the lowest of this thread so far.
  KVFERRY_KERNEL_FN bool add(std::int64_t batch, std::int64_t column, std::uint64_t pairs) {
    const bool lowest = bad_ == 0 || batch < batch_ || (batch == batch_ && column < column_);
    if (lowest) {
      batch_ = batch;
      column_ = column;
    }
    bad_ += pairs;
    return lowest;
  }

  // By all threads of the block; true for the one that must call add_to_record(), if anything was found. All
  // may call gather() again behind a barrier.
  template <class X>
  KVFERRY_KERNEL_FN bool gather(X& x, FoundShared<X>& sh) const {
    if (x.thread() == 0) {
      sh.bad.set(0, 0);
      sh.batch.set(0, kNone);
      sh.column.set(0, kNone);
    }
    x.sync();
    if (bad_ != 0) {
      x.atomic_add(sh.bad, 0, bad_);
      x.atomic_min(sh.batch, 0, batch_);
    }
    x.sync();
    if (bad_ != 0 && batch_ == sh.batch[0]) x.atomic_min(sh.column, 0, column_);
    x.sync();
    return x.thread() == 0 && sh.bad[0] != 0;
  }

  // Behind gather(): whether the block's lowest entry is one of this thread.
  template <class X>
  KVFERRY_KERNEL_FN bool has_lowest(const FoundShared<X>& sh) const {
    return bad_ != 0 && batch_ == sh.batch[0] && column_ == sh.column[0];
  }

 private:
  static constexpr std::int64_t kNone = 0x7fffffffffffffff;
  std::uint64_t bad_ = 0;
  std::int64_t batch_ = 0, column_ = 0;
};

// By one thread: as add_to() of core/error_record.hpp.
template <class X>
KVFERRY_KERNEL_FN void add_to_record(X& x, Record* record, const Record& more) {
  const Record old = x.load(static_cast<const Record*>(record));
  Record sum = old;
  if (old.bad == 0 || more.batch < old.batch || (more.batch == old.batch && more.column < old.column))
    sum = more;
  sum.bad = old.bad + more.bad;
  x.store(record, sum);
}

}  // namespace kvferry::internal::cuda
