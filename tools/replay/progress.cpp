// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "tools/replay/print.hpp"

namespace kvferry::replay {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::milliseconds kNextLine{5000};
constexpr int kBarWidth = 24;

}  // namespace

Progress::Progress(std::FILE* out) : out_(out), terminal_(out != nullptr && isatty(fileno(out)) != 0) {}

void Progress::begin(std::string phase, std::int64_t total) {
  phase_ = std::move(phase);
  total_ = total;
  start_ = Clock::now();
  next_ = start_ + (terminal_ ? Clock::duration::zero() : kNextLine);
  if (terminal_) print(fmt::format("\r\033[K{:<10} ...", phase_));
}

bool Progress::due() {
  return out_ != nullptr && Clock::now() >= next_;
}

void Progress::update(std::int64_t done, const std::string& text) {
  next_ = Clock::now() + (terminal_ ? kRedraw : kNextLine);
  const double share =
      total_ > 0 ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total_)) : 0;
  std::string line = fmt::format("{:<10} ", phase_);
  if (terminal_ && total_ > 0) {
    const int full = static_cast<int>(share * kBarWidth);
    line += fmt::format("[{:#<{}}{:.<{}}] ", "", full, "", kBarWidth - full);
  }
  if (total_ > 0) line += fmt::format("{:3.0f} %  ", 100 * share);
  line += text;
  const double now = elapsed();
  line += fmt::format("  {}", print_seconds(now));
  if (share > 0.01) line += fmt::format(", {} left", print_seconds(now / share - now));
  if (terminal_) {
    line.resize(std::min(line.size(), columns()));  // a wrapped line could not be redrawn
    print("\r" + line + "\033[K");
  } else {
    print(line + "\n");
  }
}

std::size_t Progress::columns() const {
  winsize size{};
  const bool known = ioctl(fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col - 1U : 79U;
}

double Progress::end(const std::string& text) {
  const double seconds = elapsed();
  print(fmt::format("{}{:<10} {}  {}\n", terminal_ ? "\r\033[K" : "", phase_, text, print_seconds(seconds)));
  return seconds;
}

void Progress::cancel() {
  if (terminal_) print("\r\033[K");
}

void Progress::print(const std::string& line) {
  if (out_ == nullptr) return;
  std::fputs(line.c_str(), out_);
  std::fflush(out_);
}

}  // namespace kvferry::replay
