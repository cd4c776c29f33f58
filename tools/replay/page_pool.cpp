// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/page_pool.hpp"

#include <algorithm>
#include <bit>

#include "tools/replay/numbers.hpp"

namespace kvferry::replay {

PagePool::PagePool(std::int64_t pages)
    : size_(pages),
      free_(pages),
      words_(usize((pages + 63) / 64), ~0ULL),
      summary_((words_.size() + 63) / 64) {
  if (pages % 64 != 0) words_.back() = (1ULL << (pages % 64)) - 1;
  for (std::size_t w = 0; w < words_.size(); ++w) summary_[w / 64] |= 1ULL << (w % 64);
}

bool PagePool::is_free(std::int32_t page) const {
  return (words_[usize(page) / 64] >> (usize(page) % 64) & 1) != 0;
}

void PagePool::take(std::span<std::int32_t> pages) {
  for (std::int32_t& page : pages) {
    while (summary_[hint_] == 0) ++hint_;
    const std::size_t w = hint_ * 64 + usize(std::countr_zero(summary_[hint_]));
    page = static_cast<std::int32_t>(w * 64 + usize(std::countr_zero(words_[w])));
    words_[w] &= words_[w] - 1;
    if (words_[w] == 0) summary_[hint_] &= summary_[hint_] - 1;
  }
  free_ -= std::ssize(pages);
  if (!pages.empty()) high_water_ = std::max(high_water_, std::int64_t{pages.back()} + 1);
}

void PagePool::give(std::span<const std::int32_t> pages) {
  for (const std::int32_t page : pages) {
    const std::size_t w = usize(page) / 64;
    words_[w] |= 1ULL << (usize(page) % 64);
    summary_[w / 64] |= 1ULL << (w % 64);
    hint_ = std::min(hint_, w / 64);
  }
  free_ += std::ssize(pages);
}

}  // namespace kvferry::replay
