// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace kvferry::replay {

// Adds `replay` to the app. When it was named on the command line, `exit_code` is
// its result after app.parse().
void add_replay_command(CLI::App& app, int& exit_code);

}  // namespace kvferry::replay
