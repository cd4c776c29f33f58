// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/tiered_cache.hpp"
#include "tools/replay/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvferry::replay {

TieredCache::TieredCache(const PrefixTree& tree, std::int64_t page_tokens, std::int64_t device_pages,
                         std::int64_t host_pages)
    : tree_(tree),
      page_tokens_(page_tokens),
      device_(device_pages),
      host_(host_pages),
      blocks_(usize(tree.size())) {}

std::int64_t TieredCache::page_count(std::int32_t block) const {
  const std::int64_t depth = tree_.depth(block);
  return prefix_pages(depth + 1) - prefix_pages(depth);
}

void TieredCache::append(LruList& list, std::int32_t block) {
  Block& b = blocks_[usize(block)];
  b.older = list.newest;
  b.newer = kNone;
  (list.newest == kNone ? list.oldest : blocks_[usize(list.newest)].newer) = block;
  list.newest = block;
  list.pages += std::ssize(b.pages);
}

void TieredCache::remove(LruList& list, std::int32_t block) {
  const Block& b = blocks_[usize(block)];
  (b.older == kNone ? list.oldest : blocks_[usize(b.older)].newer) = b.newer;
  (b.newer == kNone ? list.newest : blocks_[usize(b.newer)].older) = b.older;
  list.pages -= std::ssize(b.pages);
}

void TieredCache::reference(std::int32_t block) {
  if (blocks_[usize(block)].references++ == 0) remove(device_lru_, block);
}

// Forgets the list's oldest block.
void TieredCache::drop(LruList& list, PagePool& pool, Admission& admission) {
  const std::int32_t block = list.oldest;
  remove(list, block);
  Block& b = blocks_[usize(block)];
  pool.give(b.pages);
  ++admission.dropped_blocks;
  admission.dropped_pages += std::ssize(b.pages);
  b.pages = {};
  b.tier = Tier::kNowhere;
}

// Frees at least `pages` device pages. REQUIRES that the unreferenced blocks have them.
void TieredCache::evict(std::int64_t pages, Admission& admission) {
  std::int64_t leaving = 0;
  for (std::int32_t b = device_lru_.oldest; leaving < pages; b = blocks_[usize(b)].newer)
    leaving += page_count(b);
  // If the host tier is too small for all of them, the oldest ones go without the detour: a host page is the
  // destination of at most one block of an admission. What the host held is older still.
  if (leaving > host_.free_pages() + host_lru_.pages) {
    while (host_lru_.oldest != kNone) drop(host_lru_, host_, admission);
  }
  while (leaving > host_.free_pages() + host_lru_.pages) {
    leaving -= page_count(device_lru_.oldest);
    drop(device_lru_, device_, admission);
  }
  while (leaving > 0) {
    const std::int32_t block = device_lru_.oldest;
    const std::int64_t n = page_count(block);
    while (host_.free_pages() < n) drop(host_lru_, host_, admission);
    remove(device_lru_, block);
    Block& b = blocks_[usize(block)];
    std::vector<std::int32_t> host_pages(usize(n));
    host_.take(host_pages);
    admission.evicted.blocks.push_back(
        {block, static_cast<std::int32_t>(admission.evicted.pages.size()), static_cast<std::int32_t>(n)});
    for (std::size_t i = 0; i < host_pages.size(); ++i) {
      admission.evicted.pages.push_back({b.pages[i], host_pages[i]});
    }
    device_.give(b.pages);
    b.pages = std::move(host_pages);
    b.tier = Tier::kHost;
    append(host_lru_, block);
    leaving -= n;
  }
}

bool TieredCache::admit(std::span<const std::int32_t> chain, std::span<std::int32_t> table,
                        Admission& admission) {
  admission.hit_blocks = admission.device_hit_pages = admission.host_hit_pages = 0;
  admission.dropped_blocks = admission.dropped_pages = 0;
  admission.evicted.clear();
  admission.fetched.clear();

  std::int64_t idle_hit_pages = 0;  // of hits that could be evicted now
  for (const std::int32_t block : chain) {
    const Block& b = blocks_[usize(block)];
    if (b.tier == Tier::kNowhere) break;
    ++admission.hit_blocks;
    const std::int64_t n = std::ssize(b.pages);
    (b.tier == Tier::kDevice ? admission.device_hit_pages : admission.host_hit_pages) += n;
    if (b.tier == Tier::kDevice && b.references == 0) idle_hit_pages += n;
  }
  const std::int64_t needed = std::ssize(table) - admission.device_hit_pages;
  if (needed > device_.free_pages() + device_lru_.pages - idle_hit_pages) return false;

  // Out of the lists first, so that making room cannot evict or drop what was hit.
  const auto hits = chain.first(usize(admission.hit_blocks));
  for (const std::int32_t block : hits) {
    if (tier(block) == Tier::kDevice) {
      reference(block);
    } else {
      remove(host_lru_, block);
    }
  }
  if (needed > device_.free_pages()) evict(needed - device_.free_pages(), admission);

  std::size_t at = 0;
  for (const std::int32_t block : hits) {
    Block& b = blocks_[usize(block)];
    const auto slots = table.subspan(at, b.pages.size());
    at += b.pages.size();
    if (b.tier == Tier::kDevice) {
      std::copy(b.pages.begin(), b.pages.end(), slots.begin());
      continue;
    }
    device_.take(slots);
    admission.fetched.blocks.push_back({block, static_cast<std::int32_t>(admission.fetched.pages.size()),
                                        static_cast<std::int32_t>(slots.size())});
    for (std::size_t i = 0; i < slots.size(); ++i) admission.fetched.pages.push_back({b.pages[i], slots[i]});
    host_.give(b.pages);
    b.pages.assign(slots.begin(), slots.end());
    b.tier = Tier::kDevice;
    b.references = 1;
  }
  device_.take(table.subspan(at));
  return true;
}

TieredCache::Completion TieredCache::complete(std::int32_t block, std::span<std::int32_t> table) {
  Block& b = blocks_[usize(block)];
  const auto own = table.subspan(usize(prefix_pages(tree_.depth(block))), usize(page_count(block)));
  if (b.tier == Tier::kDevice) {
    reference(block);
    device_.give(own);
    std::copy(b.pages.begin(), b.pages.end(), own.begin());
    return Completion::kShared;
  }
  const Completion completion = b.tier == Tier::kHost ? Completion::kPromoted : Completion::kNew;
  if (b.tier == Tier::kHost) {
    remove(host_lru_, block);
    host_.give(b.pages);
  }
  b.tier = Tier::kDevice;
  b.references = 1;
  b.pages.assign(own.begin(), own.end());
  return completion;
}

void TieredCache::release(std::span<const std::int32_t> held, std::span<const std::int32_t> table) {
  // The end of the prefix first: it is evicted first.
  for (std::size_t j = held.size(); j-- > 0;) {
    if (--blocks_[usize(held[j])].references == 0) append(device_lru_, held[j]);
  }
  device_.give(table.subspan(usize(prefix_pages(std::ssize(held)))));
}

std::string TieredCache::audit(std::span<const Holder> running) const {
  std::vector<int> device_owners(usize(device_.size()));
  std::vector<int> host_owners(usize(host_.size()));
  std::vector<std::int32_t> references(blocks_.size());
  for (const Holder& r : running) {
    for (std::size_t j = 0; j < r.held.size(); ++j) {
      const std::int32_t block = r.held[j];
      ++references[usize(block)];
      const auto named =
          r.table.subspan(usize(prefix_pages(std::ssize(r.held.first(j)))), usize(page_count(block)));
      if (!std::equal(named.begin(), named.end(), blocks_[usize(block)].pages.begin(),
                      blocks_[usize(block)].pages.end())) {
        return fmt::format("block {}: a running request names other pages", block);
      }
    }
    for (const std::int32_t p : r.table.subspan(usize(prefix_pages(std::ssize(r.held)))))
      ++device_owners[usize(p)];
  }
  std::int64_t idle = 0, on_host = 0;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& b = blocks_[i];
    const auto n = static_cast<std::int64_t>(b.pages.size());
    if (b.references != references[i]) return fmt::format("block {}: {} references", i, b.references);
    if (b.references > 0 && b.tier != Tier::kDevice)
      return fmt::format("block {}: referenced, not on device", i);
    const std::int64_t expected = b.tier == Tier::kNowhere ? 0 : page_count(static_cast<std::int32_t>(i));
    if (n != expected) return fmt::format("block {}: {} pages, expected {}", i, n, expected);
    for (const std::int32_t p : b.pages) ++(b.tier == Tier::kHost ? host_owners : device_owners)[usize(p)];
    // A block whose predecessor is gone, or on the slower tier, is out of reach.
    const std::int32_t parent = tree_.parent(static_cast<std::int32_t>(i));
    if (b.tier != Tier::kNowhere && parent != kNone &&
        (tier(parent) == Tier::kNowhere || (b.tier == Tier::kDevice && tier(parent) == Tier::kHost))) {
      return fmt::format("block {} outlives block {} before it", i, parent);
    }
    const bool is_idle = b.tier == Tier::kDevice && b.references == 0;
    idle += is_idle;
    on_host += b.tier == Tier::kHost;
  }
  for (const auto& [pool, owners, what] :
       {std::tuple{&device_, &device_owners, "device"}, std::tuple{&host_, &host_owners, "host"}}) {
    for (std::size_t p = 0; p < owners->size(); ++p) {
      const int places = (*owners)[p] + (pool->is_free(static_cast<std::int32_t>(p)) ? 1 : 0);
      if (places != 1) return fmt::format("{} page {} is in {} places", what, p, places);
    }
    const auto taken = std::count_if(owners->begin(), owners->end(), [](int n) { return n > 0; });
    if (taken != pool->used_pages())
      return fmt::format("{}: {} pages counted as used", what, pool->used_pages());
  }
  for (const auto& [list, tier, count, what] : {std::tuple{&device_lru_, Tier::kDevice, idle, "device"},
                                                std::tuple{&host_lru_, Tier::kHost, on_host, "host"}}) {
    std::int64_t length = 0, pages = 0;
    std::vector<bool> seen(blocks_.size());
    for (std::int32_t i = list->oldest, older = kNone; i != kNone; older = i, i = blocks_[usize(i)].newer) {
      const Block& b = blocks_[usize(i)];
      if (b.older != older || b.tier != tier || b.references != 0 || seen[usize(i)]) {
        return fmt::format("{} list: block {} does not belong", what, i);
      }
      seen[usize(i)] = true;
      ++length;
      pages += std::ssize(b.pages);
    }
    if (length != count) return fmt::format("{} list: {} blocks, expected {}", what, length, count);
    if (pages != list->pages) return fmt::format("{} list: {} pages counted", what, list->pages);
  }
  return {};
}

}  // namespace kvferry::replay
