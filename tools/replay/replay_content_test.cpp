// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "harness/random.hpp"
#include "tools/replay/content.hpp"
#include "tools/replay/rows.hpp"
#include "tools/replay/stats.hpp"

namespace kvferry::replay {
namespace {

class ReplayContent : public testing::TestWithParam<std::int64_t> {
 protected:
  std::int64_t bytes() const { return GetParam(); }
  std::vector<std::byte> filled(std::uint64_t stream, std::int64_t first, std::int64_t rows) const {
    std::vector<std::byte> data(usize(rows * bytes()));
    fill_rows(data.data(), bytes(), stream, first, rows);
    return data;
  }
  std::int64_t good(const std::vector<std::byte>& data, std::uint64_t stream, std::int64_t first) const {
    return good_rows(data.data(), bytes(), stream, first, std::ssize(data) / bytes());
  }
};

INSTANTIATE_TEST_SUITE_P(RowBytes, ReplayContent,
                         testing::Values(16, 32, 48, 256, 656, 1024, 1152, 2048, 4096));

TEST_P(ReplayContent, RowsAreWhatTheFormulaSays) {
  const std::vector<std::byte> data = filled(7, 100, 5);
  for (std::int64_t r = 0; r < 5; ++r) {
    std::vector<std::byte> row(usize(bytes()));
    expected_row(row.data(), bytes(), 7, 100 + r);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), data.begin() + r * bytes()));
  }
  EXPECT_EQ(good(data, 7, 100), 5);
  EXPECT_EQ(good_rows(data.data(), bytes(), 7, 100, 0), 0);
}

TEST_P(ReplayContent, EveryFlippedByteIsSeen) {
  std::vector<std::byte> data = filled(7, 100, 3);
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] ^= std::byte{0x10};
    EXPECT_EQ(good(data, 7, 100), static_cast<std::int64_t>(i) / bytes()) << "byte " << i;
    data[i] ^= std::byte{0x10};
  }
}

TEST_P(ReplayContent, EveryMixUpIsSeen) {
  const std::vector<std::byte> data = filled(7, 100, 4);
  EXPECT_EQ(good(data, 7, 101), 0);
  EXPECT_EQ(good(data, 8, 100), 0);
  // Two rows, and two words of a row, swapped; a row moved by any multiple of a word, and by bytes.
  std::vector<std::byte> other = data;
  std::swap_ranges(other.begin() + bytes(), other.begin() + 2 * bytes(), other.begin() + 2 * bytes());
  EXPECT_EQ(good(other, 7, 100), 1);
  for (std::int64_t w = 8; w < bytes(); w += 8) {
    other = data;
    std::swap_ranges(other.begin(), other.begin() + 8, other.begin() + w);
    EXPECT_EQ(good(other, 7, 100), 0) << "word " << w / 8;
  }
  for (std::int64_t shift = 1; shift < bytes(); ++shift) {
    other = data;
    std::rotate(other.begin(), other.begin() + shift, other.begin() + bytes());
    EXPECT_EQ(good(other, 7, 100), 0) << "shift " << shift;
  }
  std::fill(other.begin(), other.end(), std::byte{});
  EXPECT_EQ(good(other, 7, 100), 0);
}

TEST(ReplayContentSeeds, DifferForEveryCoordinate) {
  std::vector<std::uint64_t> seeds;
  for (std::int64_t who = 0; who < 8; ++who) {
    for (const std::uint64_t identity : {block_identity(who), request_identity(who)}) {
      for (std::int64_t layer = 0; layer < 8; ++layer) {
        for (const Part part : {Part::kKey, Part::kValue}) {
          for (std::int64_t position = 0; position < 64; ++position) {
            seeds.push_back(row_seed(stream_of(identity, layer, part), position));
          }
        }
      }
    }
  }
  std::sort(seeds.begin(), seeds.end());
  EXPECT_EQ(std::adjacent_find(seeds.begin(), seeds.end()), seeds.end());
}

TEST(ReplayRows, ChecksOnAllThreadsAndNamesTheFirstBadRow) {
  for (const int threads : {1, 3}) {
    ContextOptions options;
    options.threads = threads;
    const Context context(options);
    const RowChecker rows(context, 64, 32);
    std::vector<std::byte> key(320'000), value(160'000);
    std::vector<RowSpan> spans;
    for (std::int64_t at = 0; at < 5000; at += 100) {
      spans.push_back({key.data() + 64 * at, at == 0 ? -1 : at, 7, 1, at, 100, Part::kKey});
      spans.push_back({value.data() + 32 * at, at == 0 ? -1 : at, 7, 1, at, 100, Part::kValue});
    }
    rows.fill(spans);
    RowChecker::Outcome outcome = rows.check(spans);
    EXPECT_EQ(outcome.bytes, 96 * 5000);
    EXPECT_EQ(outcome.bad_rows, 0);
    EXPECT_FALSE(outcome.first.has_value());

    std::byte& flipped = value[usize(32L * 4321 + 9)];
    const std::byte before = flipped;
    flipped ^= std::byte{0xff};
    key[usize(64L * 4999)] ^= std::byte{1};
    key.back() ^= std::byte{1};
    outcome = rows.check(spans);
    EXPECT_EQ(outcome.bad_rows, 2);
    ASSERT_TRUE(outcome.first.has_value());
    EXPECT_EQ(outcome.first->position, 4321);
    EXPECT_EQ(outcome.first->byte, 9);
    EXPECT_EQ(outcome.first->part, Part::kValue);
    EXPECT_EQ(outcome.first->hash_id, 4300);
    EXPECT_EQ(outcome.first->layer, 1);
    EXPECT_EQ(outcome.first->request, 7);
    EXPECT_EQ(outcome.first->expected, static_cast<std::uint8_t>(before));
    EXPECT_EQ(outcome.first->seen, static_cast<std::uint8_t>(~before));
  }
}

TEST(ReplayStats, QuantilesAreRightToOnePercent) {
  harness::Random random(1);
  for (const std::int64_t most : {10LL, 300LL, 100'000LL, 4'000'000'000LL, 1LL << 60}) {
    LatencyHistogram histogram;
    EXPECT_EQ(histogram.quantile_ns(0.5), 0);
    std::vector<std::int64_t> values;
    for (int i = 0; i < 1001; ++i) {
      // Spread over the powers of two.
      values.push_back(random.between(0, most) >> random.between(0, 8));
      histogram.add(values.back());
    }
    std::sort(values.begin(), values.end());
    for (const double q : {0.001, 0.25, 0.5, 0.9, 0.99, 1.0}) {
      const auto exact = static_cast<double>(values[static_cast<std::size_t>(std::ceil(q * 1001)) - 1]);
      EXPECT_NEAR(histogram.quantile_ns(q), exact, exact * 0.004) << most << " " << q;
    }
  }
}

TEST(ReplayStats, BinsHoldEveryLatencyOnce) {
  harness::Random random(2);
  LatencyHistogram histogram;
  EXPECT_TRUE(histogram.bins().empty());
  std::vector<std::int64_t> values{0, 1, 2, 3, 7, 8, 9, 255, 256, 1'000'000'000};
  for (int i = 0; i < 1000; ++i) values.push_back(random.between(0, 1 << 30) >> random.between(0, 30));
  for (const std::int64_t v : values) histogram.add(v);
  std::int64_t end = 0;
  for (const LatencyHistogram::Bin& bin : histogram.bins()) {
    EXPECT_GE(bin.from, end);
    end = bin.to;
    EXPECT_GT(bin.count, 0);
    EXPECT_EQ(bin.count,
              std::ranges::count_if(values, [&](std::int64_t v) { return v >= bin.from && v < bin.to; }))
        << bin.from;
    // Never wider than a quarter of a power of two.
    EXPECT_LE(bin.to - bin.from, std::max<std::int64_t>(1, bin.from / 4));
  }
  EXPECT_GT(end, 1'000'000'000);
}

TEST(ReplayStats, SamplerTakesExactlyWhatIsWanted) {
  for (const auto& [total, wanted] :
       {std::pair{1000, 50}, {10, 10}, {10, 0}, {1, 1}, {0, 0}, {100'000, 1000}}) {
    CallSampler sampler(total, wanted, 9), same(total, wanted, 9), other(total, wanted, 10);
    std::int64_t taken = 0, differ = 0;
    for (int i = 0; i < total; ++i) {
      const bool t = sampler.take();
      taken += t;
      EXPECT_EQ(same.take(), t);
      differ += other.take() != t;
    }
    EXPECT_EQ(taken, wanted);
    EXPECT_FALSE(sampler.take());
    EXPECT_EQ(differ > 0, wanted > 0 && wanted < total);
  }
}

}  // namespace
}  // namespace kvferry::replay
