// SPDX-License-Identifier: Apache-2.0
//
// The replay as a whole: trace, simulation, memory, movement, report.
#pragma once

#include <cstdio>

#include "kvferry/status.hpp"
#include "tools/replay/options.hpp"
#include "tools/replay/report.hpp"

namespace kvferry::replay {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // a mismatch or a failed call
inline constexpr int kExitUsage = 2;   // an option or a trace that cannot be used

struct Outcome {
  int exit_code = kExitOk;
  std::string error;  // why, for people
  Report report;      // as far as the run came; complete with exit code 0
};

// Progress goes to `progress` (null: nowhere). Writes nothing else: the caller
// prints the table and saves the files.
Outcome replay(const Options& options, std::FILE* progress);

// replay(), the table to stdout, the JSON and the page to their files, errors to stderr; returns the exit
// code.
int run_replay(const Options& options);

}  // namespace kvferry::replay
