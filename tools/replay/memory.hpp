// SPDX-License-Identifier: Apache-2.0
//
// Memory of the process and the machine, and how fast the machine copies.
#pragma once

#include <cstdint>

#include "kvferry/context.hpp"
#include "kvferry/status.hpp"

namespace kvferry::replay {

// Bytes; -1 where the system does not say.
std::int64_t peak_memory();       // of this process (VmHWM)
std::int64_t available_memory();  // of the machine (MemAvailable)

// GB/s (payload counted once) of a contiguous copy with non-temporal stores from cold memory to cold memory
// with all threads of the context: the yardstick of every "share of the limit". Shares no code with the
// operators. Median of several samples of 256 MiB.
Result<double> measure_copy_limit(const Context& context);
// How that copy is made on this machine: "AVX2 non-temporal" or "memcpy".
const char* copy_limit_method();

}  // namespace kvferry::replay
