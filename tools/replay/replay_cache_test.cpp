// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "tools/replay/page_pool.hpp"
#include "tools/replay/replay_testing.hpp"
#include "tools/replay/tiered_cache.hpp"

namespace kvferry::replay {
namespace {

TEST(ReplayPagePool, LowestFreePagesFirst) {
  for (const std::int64_t size : {1, 63, 64, 65, 4096, 5000}) {
    PagePool pool(size);
    std::set<std::int32_t> free;
    for (std::int32_t p = 0; p < size; ++p) free.insert(p);
    std::vector<std::int32_t> taken;
    harness::Random random(3);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::int32_t> pages(usize(random.between(0, pool.free_pages())));
      pool.take(pages);
      for (const std::int32_t p : pages) {
        ASSERT_EQ(p, *free.begin());
        ASSERT_FALSE(pool.is_free(p));
        free.erase(p);
        taken.push_back(p);
      }
      random.shuffle(taken);
      const auto kept = random.between(0, std::ssize(taken));
      const std::vector<std::int32_t> given(taken.begin() + kept, taken.end());
      taken.resize(usize(kept));
      pool.give(given);
      free.insert(given.begin(), given.end());
      ASSERT_EQ(pool.free_pages(), std::ssize(free));
    }
  }
  EXPECT_EQ(PagePool(0).free_pages(), 0);
}

// A trace of prompts out of blocks; every prompt ends with 10 private tokens.
struct Prompts {
  Trace trace;
  std::unique_ptr<PrefixTree> tree;

  explicit Prompts(const std::vector<std::vector<std::int64_t>>& prompts) {
    for (const auto& ids : prompts) {
      Request r;
      r.input_length = static_cast<std::int32_t>(ids.size() * usize(kHashBlock) + 10);
      r.first_id = trace.hash_ids.size();
      trace.hash_ids.insert(trace.hash_ids.end(), ids.begin(), ids.end());
      trace.hash_ids.push_back(1'000'000);
      trace.requests.push_back(r);
    }
    tree = std::make_unique<PrefixTree>(trace);
  }
};

// Runs one prompt alone: admit, complete all its blocks, release.
Admission run_prompt(TieredCache& cache, const Prompts& prompts, std::size_t request) {
  const auto chain = prompts.tree->chain(request);
  std::vector<std::int32_t> table(usize((prompts.trace.requests[request].input_length + 511) / 512));
  Admission a;
  EXPECT_TRUE(cache.admit(chain, table, a));
  for (std::size_t j = usize(a.hit_blocks); j < chain.size(); ++j) cache.complete(chain[j], table);
  const TieredCache::Holder holder{chain, table};
  EXPECT_EQ(cache.audit({&holder, 1}), "");
  cache.release(chain, table);
  EXPECT_EQ(cache.audit({}), "");
  return a;
}

TEST(ReplayTieredCache, EvictsTheEndOfTheLeastRecentPrefixThenDrops) {
  // Pages of 512: a block is a page. Device 4 pages, host 2.
  const Prompts prompts({{1, 2}, {3}, {1, 2, 4}});
  const std::int32_t b1 = prompts.tree->chain(0)[0], b2 = prompts.tree->chain(0)[1];
  const std::int32_t b3 = prompts.tree->chain(1)[0], b4 = prompts.tree->chain(2)[2];
  TieredCache cache(*prompts.tree, 512, 4, 2);
  using Tier = TieredCache::Tier;

  Admission a = run_prompt(cache, prompts, 0);  // 1 2 cached
  EXPECT_EQ(a.hit_blocks, 0);
  a = run_prompt(cache, prompts, 1);  // 1 2 3 cached
  EXPECT_TRUE(a.evicted.empty());
  EXPECT_EQ(cache.evictable_pages(), 3);
  EXPECT_EQ(cache.device().free_pages(), 1);

  // Hits 1 and 2, needs two more pages: 3 leaves.
  a = run_prompt(cache, prompts, 2);
  EXPECT_EQ(a.hit_blocks, 2);
  EXPECT_EQ(a.device_hit_pages, 2);
  ASSERT_EQ(a.evicted.blocks.size(), 1U);
  EXPECT_EQ(a.evicted.blocks[0].block, b3);
  EXPECT_EQ(cache.tier(b3), Tier::kHost);

  // 3 is fetched back; it and its private page need one more than is free: 4, the end of the chain, leaves.
  a = run_prompt(cache, prompts, 1);
  EXPECT_EQ(a.host_hit_pages, 1);
  ASSERT_EQ(a.fetched.blocks.size(), 1U);
  EXPECT_EQ(a.fetched.blocks[0].block, b3);
  ASSERT_EQ(a.evicted.blocks.size(), 1U);
  EXPECT_EQ(a.evicted.blocks[0].block, b4);
  // The destination of the fetch is the page that the eviction freed, its source is not yet overwritten.
  EXPECT_NE(a.fetched.pages[0].src, a.evicted.pages[0].dst);
  EXPECT_EQ(cache.host().used_pages(), 1);
  EXPECT_EQ(cache.tier(b1), Tier::kDevice);
  EXPECT_EQ(cache.tier(b2), Tier::kDevice);
}

TEST(ReplayTieredCache, HostTierTooSmallForAnEvictionDropsTheOldest) {
  const Prompts prompts({{1, 2, 3}, {5, 6, 7}});
  for (const std::int64_t host : {0, 1, 2, 3}) {
    TieredCache cache(*prompts.tree, 512, 4, host);
    run_prompt(cache, prompts, 0);
    const Admission a = run_prompt(cache, prompts, 1);
    ASSERT_EQ(a.evicted.blocks.size(), usize(host));
    EXPECT_EQ(a.dropped_blocks, 3 - host);
    // The front of the prefix is worth most: the blocks leave from the end, and the
    // last to leave stay on the host.
    for (std::int64_t j = 0; j < host; ++j) {
      EXPECT_EQ(a.evicted.blocks[usize(j)].block, prompts.tree->chain(0)[usize(host - 1 - j)]);
    }
    std::set<std::int32_t> destinations;
    for (const PagePair& p : a.evicted.pages) destinations.insert(p.dst);
    EXPECT_EQ(destinations.size(), a.evicted.pages.size());
  }
}

TEST(ReplayTieredCache, RefusesWithoutChangingAnything) {
  const Prompts prompts({{1, 2}, {1, 2, 3, 4}});
  TieredCache cache(*prompts.tree, 512, 5, 4);
  const auto chain = prompts.tree->chain(0);
  std::vector<std::int32_t> running(3);
  Admission a;
  ASSERT_TRUE(cache.admit(chain, running, a));
  cache.complete(chain[0], running);
  cache.complete(chain[1], running);
  std::vector<std::int32_t> table(6);
  // Two of the six pages are hits, four are needed, two are free.
  EXPECT_FALSE(cache.admit(prompts.tree->chain(1), table, a));
  EXPECT_EQ(cache.references(chain[0]), 1);
  const TieredCache::Holder holder{chain, running};
  EXPECT_EQ(cache.audit({&holder, 1}), "");
  table.resize(4);
  EXPECT_TRUE(cache.admit(prompts.tree->chain(1), table, a));
  EXPECT_EQ(cache.references(chain[0]), 2);
}

TEST(ReplayTieredCache, TheLaterOfTwoCopiesIsFreed) {
  const Prompts prompts({{1}, {1}, {2}});
  const std::int32_t block = prompts.tree->chain(0)[0];
  TieredCache cache(*prompts.tree, 512, 4, 4);
  std::vector<std::int32_t> first(2), second(2), third(4);
  Admission a;
  ASSERT_TRUE(cache.admit(prompts.tree->chain(0), first, a));
  ASSERT_TRUE(cache.admit(prompts.tree->chain(1), second, a));
  EXPECT_EQ(a.hit_blocks, 0);
  const std::int32_t copy = second[0];
  EXPECT_EQ(cache.complete(block, first), TieredCache::Completion::kNew);
  EXPECT_EQ(cache.complete(block, second), TieredCache::Completion::kShared);
  EXPECT_EQ(second[0], first[0]);
  EXPECT_TRUE(cache.device().is_free(copy));
  EXPECT_EQ(cache.references(block), 2);
  cache.release(prompts.tree->chain(0), first);
  // The block goes to the host while a third request computes it again.
  cache.release(prompts.tree->chain(1), second);
  ASSERT_TRUE(cache.admit({}, third, a));
  EXPECT_EQ(cache.tier(block), TieredCache::Tier::kHost);
  EXPECT_EQ(cache.complete(block, third), TieredCache::Completion::kPromoted);
  EXPECT_EQ(cache.tier(block), TieredCache::Tier::kDevice);
  EXPECT_EQ(cache.host().used_pages(), 0);
  const TieredCache::Holder holder{prompts.tree->chain(0), third};
  EXPECT_EQ(cache.audit({&holder, 1}), "");
}

TEST(ReplayTieredCache, InvariantsHoldUnderRandomOperations) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    harness::Random random(seed);
    const Trace trace = random_trace(random, 40, 6);
    const PrefixTree tree(trace);
    const std::int64_t page = std::vector<std::int64_t>{16, 48, 512, 1000, 512, 100}[seed % 6];
    const std::int64_t device = 12 * kHashBlock / page + random.between(0, 8192 / page);
    TieredCache cache(tree, page, device, random.between(0, 8192 / page));
    struct Running {
      std::size_t request;
      std::size_t held;
      std::vector<std::int32_t> table;
    };
    std::vector<Running> running;
    std::set<std::pair<std::int32_t, std::int32_t>> told;
    Admission a;
    for (int step = 0; step < 400; ++step) {
      const std::int64_t what = random.between(0, 3);
      if (what == 0) {
        const auto i = usize(random.between(0, std::ssize(trace.requests) - 1));
        const Request& r = trace.requests[i];
        Running run{i, 0, std::vector<std::int32_t>(usize((r.tokens() + page - 1) / page))};
        const auto chain = tree.chain(i);
        const auto reusable = std::min(chain.size(), usize((r.input_length - 1) / kHashBlock));
        if (cache.admit(chain.first(reusable), run.table, a)) {
          run.held = usize(a.hit_blocks);
          for (const Moves* moves : {&a.evicted, &a.fetched}) {
            std::set<std::int32_t> sources, destinations;
            for (const PagePair& p : moves->pages) {
              sources.insert(p.src);
              destinations.insert(p.dst);
            }
            ASSERT_EQ(sources.size(), moves->pages.size());
            ASSERT_EQ(destinations.size(), moves->pages.size());
          }
          running.push_back(std::move(run));
        }
      } else if (!running.empty()) {
        const auto i = usize(random.between(0, std::ssize(running) - 1));
        Running& run = running[i];
        const auto chain = tree.chain(run.request);
        if (what < 3 && run.held < chain.size()) {
          cache.complete(chain[run.held++], run.table);
        } else if (what == 3) {
          cache.release(chain.first(run.held), run.table);
          running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
      std::vector<TieredCache::Holder> holders;
      holders.reserve(running.size());
      for (const Running& run : running)
        holders.push_back({tree.chain(run.request).first(run.held), run.table});
      ASSERT_EQ(cache.audit(holders), "") << "seed " << seed << " step " << step;
    }
  }
}

TEST(ReplayTieredCache, AuditSeesALostReference) {
  const Prompts prompts({{1}, {2}});
  TieredCache cache(*prompts.tree, 512, 4, 4);
  std::vector<std::int32_t> table(2);
  Admission a;
  ASSERT_TRUE(cache.admit(prompts.tree->chain(0), table, a));
  EXPECT_NE(cache.audit({}), "");  // nobody holds the two pages
  const TieredCache::Holder holder{{}, table};
  EXPECT_EQ(cache.audit({&holder, 1}), "");
  const TieredCache::Holder early{prompts.tree->chain(0), table};
  EXPECT_NE(cache.audit({&early, 1}), "");  // the block is not complete
}

}  // namespace
}  // namespace kvferry::replay
