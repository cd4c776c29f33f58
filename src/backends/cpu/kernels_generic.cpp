// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels.hpp"

namespace kvferry::internal::cpu {

std::string why_not_generic() {
  return {};
}

const CpuKernels kGenericKernels = {kGenericCopy, dequant_rows_generic, kGenericIds};

}  // namespace kvferry::internal::cpu
