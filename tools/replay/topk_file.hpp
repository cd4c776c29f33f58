// SPDX-License-Identifier: Apache-2.0
//
// TopkFile: recorded ids, one JSON object a line:
//   {"request": 1, "step": 0, "layer": 0, "ids": [17, 4, 230]}
// request is its line in the trace (of the generator: its number, from 1), step counts its decode steps from
// 0, layer is one of the run's. At most K ids; what they mean is the operator's business: a negative one ends
// the list, one outside the sequence is skipped, a repeated one counts once. Other members are ignored, and
// so are lines for requests, steps and layers that the run does not have.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvferry/status.hpp"
#include "tools/replay/locality.hpp"
#include "tools/replay/trace.hpp"

namespace kvferry::replay {

class TopkFile final : public IdSource {
 public:
  // Errors read "FILE:LINE: reason". `refused` requests need no lines, all others one for each step and
  // layer.
  static Result<std::unique_ptr<TopkFile>> read(const std::string& path, const Trace& trace,
                                                std::span<const std::int32_t> refused, int layers,
                                                std::int64_t k);

  void choose(const Choice& choice, std::span<std::int32_t> ids) override;

 private:
  struct List {
    std::size_t first = 0, count = 0;
  };
  std::int64_t index(std::int32_t request, std::int64_t step, std::int64_t layer) const {
    return first_step_[usize(request)] + step * layers_ + layer;
  }

  int layers_ = 1;
  std::vector<std::int64_t> first_step_;  // of each request, in lists_
  std::vector<List> lists_;
  std::vector<std::int32_t> ids_;
};

}  // namespace kvferry::replay
