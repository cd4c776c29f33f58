// SPDX-License-Identifier: Apache-2.0
//
// TieredCache: where every page of the device pool and of the host pool is, and
// which prefix blocks can be reused.
//
// A prefix block (512 tokens, full) owns the pages that end inside it, so the first k blocks of a prompt
// own the pages that lie wholly inside its first 512 k tokens, also when the page size does not divide
// 512. It is in one place at a time:
//   device, referenced    by the running requests whose table names its pages
//   device, unreferenced  in the device's LRU list: evicted when a request needs its pages
//   host                  in the host's LRU list: dropped when an evicted block needs its pages
//   nowhere
// A hit on the host tier moves the block back to the device; its host pages are free afterwards. All other
// pages of a running request (partial last block, generated tokens) are private and free when it ends.
//
// A request holds a reference on every full block of its prompt that is computed, so no block in an LRU list
// was used later than the one before it in the prompt: what is evicted or dropped is the end of a prefix.
//
// No bytes move here: the caller carries out what the admission lists, evictions first. Every operation
// costs O(1) a page or block that it changes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/replay/numbers.hpp"
#include "tools/replay/page_pool.hpp"
#include "tools/replay/trace.hpp"

namespace kvferry::replay {

struct PagePair {
  std::int32_t src;
  std::int32_t dst;
};

// Blocks that go from one tier to the other. The pages of a block follow one
// another, in the order of its tokens.
struct Moves {
  struct Block {
    std::int32_t block;
    std::int32_t first;  // of its pages, in `pages`
    std::int32_t count;
  };
  std::vector<Block> blocks;
  std::vector<PagePair> pages;

  bool empty() const { return pages.empty(); }
  void clear() {
    blocks.clear();
    pages.clear();
  }
};

struct Admission {
  std::int64_t hit_blocks = 0;
  std::int64_t device_hit_pages = 0;
  std::int64_t host_hit_pages = 0;
  std::int64_t dropped_blocks =
      0;  // of the host tier, or of the device when the host tier could not take them
  std::int64_t dropped_pages = 0;
  Moves evicted;  // device to host; to be carried out first
  Moves fetched;  // host to device
};

class TieredCache {
 public:
  enum class Tier : std::uint8_t { kNowhere, kDevice, kHost };
  enum class Completion : std::uint8_t {
    kNew,       // the request's pages are the block's pages now
    kShared,    // another request was first: the table names its pages now and the copy is free
    kPromoted,  // the block was on the host: the request's copy replaces that one
  };

  // The tree must outlive the cache.
  TieredCache(const PrefixTree& tree, std::int64_t page_tokens, std::int64_t device_pages,
              std::int64_t host_pages);

  std::int64_t page_tokens() const { return page_tokens_; }
  // Pages wholly inside the first `blocks` blocks of a prompt.
  std::int64_t prefix_pages(std::int64_t blocks) const { return blocks * kHashBlock / page_tokens_; }
  const PagePool& device() const { return device_; }
  const PagePool& host() const { return host_; }
  // Pages of unreferenced blocks on the device.
  std::int64_t evictable_pages() const { return device_lru_.pages; }

  // Gives a request table.size() pages, of which the first ones are those of the longest cached prefix of
  // `chain`. False, and nothing changed, if they do not fit. `admission` is overwritten.
  bool admit(std::span<const std::int32_t> chain, std::span<std::int32_t> table, Admission& admission);
  // Block `block` of a running request holds its tokens and can be shared from now on. The request then holds
  // a reference. REQUIRES that it holds one on the block before.
  Completion complete(std::int32_t block, std::span<std::int32_t> table);
  // The request ends: `held` are the blocks that it holds a reference on, from the first of its prompt.
  void release(std::span<const std::int32_t> held, std::span<const std::int32_t> table);

  Tier tier(std::int32_t block) const { return blocks_[usize(block)].tier; }
  std::int32_t references(std::int32_t block) const { return blocks_[usize(block)].references; }

  // For tests: checks that every page is in exactly one place, that references are those of `running` and
  // that the lists hold what they should. Empty, or what is wrong.
  struct Holder {
    std::span<const std::int32_t> held;
    std::span<const std::int32_t> table;
  };
  std::string audit(std::span<const Holder> running) const;

 private:
  static constexpr std::int32_t kNone = -1;

  struct Block {
    Tier tier = Tier::kNowhere;
    std::int32_t references = 0;
    std::int32_t older = kNone;
    std::int32_t newer = kNone;
    std::vector<std::int32_t> pages;  // of its tier
  };
  // Oldest first; links are in the blocks.
  struct LruList {
    std::int32_t oldest = kNone;
    std::int32_t newest = kNone;
    std::int64_t pages = 0;
  };

  std::int64_t page_count(std::int32_t block) const;
  void append(LruList& list, std::int32_t block);
  void remove(LruList& list, std::int32_t block);
  void reference(std::int32_t block);
  void evict(std::int64_t pages, Admission& admission);
  void drop(LruList& list, PagePool& pool, Admission& admission);

  const PrefixTree& tree_;
  std::int64_t page_tokens_;
  PagePool device_;
  PagePool host_;
  LruList device_lru_;
  LruList host_lru_;
  std::vector<Block> blocks_;
};

}  // namespace kvferry::replay
