// SPDX-License-Identifier: Apache-2.0
//
// The built-in trace: conversations behind one system prompt.
//
// A request either starts a conversation, and shares only the system prompt (id 0) with others, or continues
// one: the full blocks of an earlier prompt that nobody has continued yet, then new tokens. Requests come in
// bursts, 3 s apart. The numbers follow what the published conversation trace of Mooncake (FAST'25) shows:
// lengths of fresh prompts, of outputs and of what a turn adds, and how many requests lie between the turns
// of a conversation.
#pragma once

#include <cstdint>

#include "tools/replay/trace.hpp"

namespace kvferry::replay {

// The same on every platform: integer arithmetic only. requests >= 1.
Trace generate_trace(std::uint64_t seed, std::int64_t requests);

}  // namespace kvferry::replay
