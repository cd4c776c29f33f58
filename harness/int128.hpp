// SPDX-License-Identifier: Apache-2.0
//
// Oracles and case arithmetic work in integers that cannot wrap.
#pragma once

namespace kvferry::harness {

__extension__ using Int128 = __int128;

}  // namespace kvferry::harness
