// SPDX-License-Identifier: Apache-2.0
//
// What the case files of copy_blocks share.
#pragma once

#include "ops/block_copy_cases.hpp"

namespace kvferry::harness {

const BlockCopyFront& copy_blocks_front();
std::span<const RegisteredCase> copy_blocks_registered_cases();

}  // namespace kvferry::harness
