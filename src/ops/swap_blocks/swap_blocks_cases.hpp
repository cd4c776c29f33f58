// SPDX-License-Identifier: Apache-2.0
//
// What the case files of swap_blocks share.
#pragma once

#include "ops/block_copy_cases.hpp"

namespace kvferry::harness {

const BlockCopyFront& swap_blocks_front();
std::span<const RegisteredCase> swap_blocks_registered_cases();
std::span<const BlockCopyBreaker> swap_blocks_breakers();  // beside the common ones

}  // namespace kvferry::harness
