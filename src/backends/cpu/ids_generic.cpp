// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/ids.hpp"

namespace kvferry::internal::cpu {
namespace {

std::int32_t outside(const std::int32_t* values, std::int32_t count, std::int32_t limit,
                     std::int32_t* places) {
  std::int32_t found = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    places[found] = i;
    found += static_cast<std::uint32_t>(values[i]) >= static_cast<std::uint32_t>(limit) ? 1 : 0;
  }
  return found;
}

}  // namespace

const IdKernels kGenericIds = {find_ids<std::uint16_t>, outside};

}  // namespace kvferry::internal::cpu
