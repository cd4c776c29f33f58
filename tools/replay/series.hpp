// SPDX-License-Identifier: Apache-2.0
//
// TimeSeries: how a run went on, in few enough points to draw.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tools/replay/scheduler.hpp"
#include "tools/replay/selector.hpp"

namespace kvferry::replay {

// After a step. Sums are from the start on.
struct Sample {
  std::int64_t steps = 0;
  std::int64_t admitted = 0;  // requests
  std::int64_t prompt_tokens = 0;
  std::int64_t device_hit_tokens = 0, host_hit_tokens = 0;
  std::int64_t running_pages = 0;  // of the pool that requests run in
  std::int64_t device_pages = 0, host_pages = 0;
  std::int64_t running = 0;                // requests
  std::int64_t selected = 0, fetched = 0;  // tokens of each layer
};

inline Sample sample_of(const Counts& c, const SelectionTotals& selection) {
  return {.steps = c.steps,
          .admitted = c.admitted,
          .prompt_tokens = c.prompt_tokens,
          .device_hit_tokens = c.device_hit_tokens,
          .host_hit_tokens = c.host_hit_tokens,
          .running_pages = c.running_pages,
          .device_pages = c.device_pages,
          .host_pages = c.host_pages,
          .running = c.running,
          .selected = selection.ids,
          .fetched = selection.fetched};
}

class TimeSeries {
 public:
  static constexpr std::int64_t kMostPoints = 512;

  // For a run of so many steps.
  explicit TimeSeries(std::int64_t steps = 0)
      : every_(std::max<std::int64_t>(1, (steps + kMostPoints - 2) / (kMostPoints - 1))) {}

  void add(const Sample& sample) {
    const bool stays = (added_ - 1) % every_ == 0;  // the last one; else it was the end so far
    if (added_ > 0 && !stays) points_.pop_back();
    points_.push_back(sample);
    ++added_;
  }
  // Evenly spaced steps, and the last one.
  const std::vector<Sample>& points() const { return points_; }

 private:
  std::int64_t every_;
  std::int64_t added_ = 0;
  std::vector<Sample> points_;
};

}  // namespace kvferry::replay
