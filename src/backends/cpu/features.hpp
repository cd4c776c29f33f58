// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvferry::internal::cpu {

// Empty if this CPU (and the operating system) can run AVX2 code, else why not.
std::string why_no_avx2();

}  // namespace kvferry::internal::cpu
