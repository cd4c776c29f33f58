// SPDX-License-Identifier: Apache-2.0
//
// Progress on stderr: a bar that is redrawn on a terminal, else a plain line at most every 5 s.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace kvferry::replay {

class Progress {
 public:
  // Null: silent.
  explicit Progress(std::FILE* out);

  // A phase of `total` units of work; 0: unknown. Phases follow one another.
  void begin(std::string phase, std::int64_t total = 0);
  // Cheap: looks at the clock and mostly returns.
  bool due();
  void update(std::int64_t done, const std::string& text);
  // Ends the phase's line with `text`; returns its seconds.
  double end(const std::string& text);
  // The phase failed: leaves room for the reason.
  void cancel();

 private:
  using Clock = std::chrono::steady_clock;
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  std::size_t columns() const;
  void print(const std::string& line);

  std::FILE* out_;
  bool terminal_;
  std::string phase_;
  std::int64_t total_ = 0;
  Clock::time_point start_;
  Clock::time_point next_;
};

}  // namespace kvferry::replay
