// SPDX-License-Identifier: Apache-2.0
//
// Plain C++ for every machine: memcpy per piece. The hint for non-temporal stores is ignored, libc decides.
#include "backends/cpu/copy.hpp"
#include "backends/cpu/small_copy.hpp"

namespace kvferry::internal::cpu {
namespace {

void pieces(const Piece* pieces, std::int64_t count, bool /*nontemporal*/) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(pieces[i].dst, pieces[i].src, static_cast<std::size_t>(pieces[i].bytes));
  }
}

void transpose(std::byte* dst, std::int64_t dst_pitch, const std::byte* src, std::int64_t src_pitch,
               std::int64_t rows, std::int64_t columns, bool /*nontemporal*/, const std::byte* /*next*/) {
  for (std::int64_t r = 0; r < rows; ++r) {
    copy_rows(dst + r * dst_pitch, 32, src + r * 32, src_pitch, columns, 32);
  }
}

void fence() {}

}  // namespace

const CopyKernels kGenericCopy = {pieces, copy_rows, transpose, fence};

}  // namespace kvferry::internal::cpu
