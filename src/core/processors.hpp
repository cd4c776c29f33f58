// SPDX-License-Identifier: Apache-2.0
//
// Which processors threads may run on.
#pragma once

#include <vector>

#include "kvferry/status.hpp"

namespace kvferry::internal {

// Those of the calling thread; at least 1.
int available_processors() noexcept;

// Different ones in a list that check_processors() accepts.
int count_processors(const std::vector<int>& cpus) noexcept;

// Ok if threads of this process may be bound to every one of `cpus`.
Status check_processors(const std::vector<int>& cpus);

// Binds the calling thread to those of `cpus` that the system still gives; to none: nothing changes.
void bind_this_thread(const std::vector<int>& cpus) noexcept;

}  // namespace kvferry::internal
