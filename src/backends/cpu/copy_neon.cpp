// SPDX-License-Identifier: Apache-2.0
//
// NEON copy kernels. Every aarch64 CPU has NEON, so no attribute.
#include <arm_neon.h>

#define KVFERRY_TARGET
#include "backends/cpu/vector_copy.hpp"

namespace kvferry::internal::cpu {
namespace {

struct RegularStore {
  static constexpr bool kStreams = false;
  static uint8x16x2_t get(const std::byte* p) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(p);
    return {vld1q_u8(bytes), vld1q_u8(bytes + 16)};
  }
  static void put(std::byte* p, uint8x16x2_t v) {
    auto* bytes = reinterpret_cast<std::uint8_t*>(p);
    vst1q_u8(bytes, v.val[0]);
    vst1q_u8(bytes + 16, v.val[1]);
  }
};
struct StreamingStore : RegularStore {
  static constexpr bool kStreams = true;
  // The only non-temporal store there is takes a pair of registers, and GCC has no name for it.
  static void put(std::byte* p, uint8x16x2_t v) {
    asm("stnp %q1, %q2, [%3]"
        : "=m"(*reinterpret_cast<std::byte(*)[32]>(p))
        : "w"(v.val[0]), "w"(v.val[1]), "r"(p));
  }
};

// The release that publishes a result orders non-temporal stores like all others.
void fence() {}

}  // namespace

const CopyKernels kNeonCopy = {vector_pieces<RegularStore, StreamingStore>, copy_rows,
                               vector_transpose<RegularStore, StreamingStore>, fence};

}  // namespace kvferry::internal::cpu
