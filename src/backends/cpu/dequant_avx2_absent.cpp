// SPDX-License-Identifier: Apache-2.0
//
// Stands in for dequant_avx2.cpp where the target is not x86-64.
#include "backends/cpu/dequant.hpp"

namespace kvferry::internal::cpu {

DequantRows dequant_rows_avx2() noexcept {
  return nullptr;
}

}  // namespace kvferry::internal::cpu
