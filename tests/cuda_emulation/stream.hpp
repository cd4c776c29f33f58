// SPDX-License-Identifier: Apache-2.0
//
// A stream whose work is late: nothing happens before synchronize(), so that what the caller frees or
// rewrites too early shows.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/context.hpp"

namespace kvferry::emulation {

class Stream {
 public:
  explicit Stream(LaunchOptions options = {}) : options_(std::move(options)) {}

  // Keeps a copy of the parameters, as CUDA does, and of nothing that they point to.
  template <class K>
  void launch(std::uint32_t blocks, const typename K::Params& params) {
    work_.emplace_back([=, this] { return emulation::launch<K>(blocks, params, options_); });
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    work_.emplace_back([=] {
      std::memcpy(to, from, bytes);
      return Report{};
    });
  }

  // All of it, in order, up to the first finding; nothing is left.
  Report synchronize() {
    Report report;
    for (const auto& piece : std::exchange(work_, {})) {
      report = piece();
      if (report.finding) break;
    }
    return report;
  }

 private:
  LaunchOptions options_;
  std::vector<std::function<Report()>> work_;
};

}  // namespace kvferry::emulation
