// SPDX-License-Identifier: Apache-2.0
//
// The commands that work on cases. Each adds itself to the app; an exit code is 0 for success, 1 for a wrong
// or refused case, 2 for arguments that make no sense.
#pragma once

#include <CLI/CLI.hpp>

namespace kvferry::tools {

inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

void add_list_command(CLI::App& app, int& exit_code);
void add_explain_command(CLI::App& app, int& exit_code);
void add_run_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);

}  // namespace kvferry::tools
