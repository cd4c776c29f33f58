// SPDX-License-Identifier: Apache-2.0
//
// How the threads of a grid take items of two levels (pairs and their parts) in turns.
#pragma once

#include <cstdint>

#include "backends/cuda/kernel.hpp"

namespace kvferry::internal::cuda {

// Items (outer, inner) with `inner` below `count`, in this order, by groups of `ranks` neighbouring threads:
// their number may exceed 64 bits, as whole outer items can be passed over.
class Turns {
 public:
  template <class X>
  KVFERRY_KERNEL_FN Turns(X& x, std::int64_t count, std::uint32_t ranks) : count_(count) {
    const std::uint32_t groups = x.threads() / ranks;
    step_ = std::int64_t{x.blocks()} * groups;
    advance(std::int64_t{x.block()} * groups + x.thread() / ranks);
  }
  KVFERRY_KERNEL_FN std::int64_t outer() const { return outer_; }
  KVFERRY_KERNEL_FN std::int64_t inner() const { return inner_; }
  KVFERRY_KERNEL_FN void next() { advance(step_); }
  // To the first item of this group that has another `outer`.
  KVFERRY_KERNEL_FN void skip() { advance((count_ - inner_ + step_ - 1) / step_ * step_); }

 private:
  KVFERRY_KERNEL_FN void advance(std::int64_t items) {
    if (count_ == 1) {  // the divisions would take longer than small items
      outer_ += items;
      return;
    }
    inner_ += items;
    if (inner_ < count_) return;
    const std::int64_t more = inner_ / count_;
    outer_ += more;
    inner_ -= more * count_;
  }

  std::int64_t count_, step_;
  std::int64_t outer_ = 0, inner_ = 0;
};

}  // namespace kvferry::internal::cuda
