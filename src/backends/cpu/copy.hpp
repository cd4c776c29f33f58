// SPDX-License-Identifier: Apache-2.0
//
// Copy kernels: the inner loops of every CPU implementation, one table per instruction set. They get
// addresses and byte counts that were checked long before; sources and destinations never overlap.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvferry::internal::cpu {

struct Piece {
  const std::byte* src;
  std::byte* dst;
  std::int64_t bytes;
};

struct CopyKernels {
  // Any sizes; meant for pieces of kTuning.least_piece_bytes and more. With `nontemporal` the caller calls
  // fence() before it publishes the result.
  void (*pieces)(const Piece* pieces, std::int64_t count, bool nontemporal);
  // count pieces of `bytes` each, at fixed steps.
  void (*rows)(std::byte* dst, std::int64_t dst_step, const std::byte* src, std::int64_t src_step,
               std::int64_t count, std::int64_t bytes);
  // 32-byte units: dst[r * dst_pitch + c * 32] = src[c * src_pitch + r * 32]. `next`: the src of a later call
  // of the same shape, to be fetched meanwhile; or null.
  void (*transpose)(std::byte* dst, std::int64_t dst_pitch, const std::byte* src, std::int64_t src_pitch,
                    std::int64_t rows, std::int64_t columns, bool nontemporal, const std::byte* next);
  void (*fence)();
};

extern const CopyKernels kGenericCopy;
extern const CopyKernels kAvx2Copy;  // on x86-64 only
extern const CopyKernels kNeonCopy;  // on aarch64 only

}  // namespace kvferry::internal::cpu
