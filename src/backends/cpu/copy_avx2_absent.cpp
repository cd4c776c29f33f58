// SPDX-License-Identifier: Apache-2.0
//
// Stands in for copy_avx2.cpp where the target is not x86-64.
#include "backends/cpu/copy.hpp"
#include "backends/cpu/features.hpp"

namespace kvferry::internal::cpu {

std::string why_no_avx2() {
  return "this build is not for x86-64";
}
const CopyKernels* avx2_copy() noexcept {
  return nullptr;
}

}  // namespace kvferry::internal::cpu
