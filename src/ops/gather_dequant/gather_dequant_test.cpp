// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cfenv>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "harness/random.hpp"
#include "harness/testing.hpp"
#include "ops/gather_dequant/gather_dequant_cases.hpp"
#include "ops/gather_dequant/gather_dequant_oracle.hpp"

namespace kvferry::harness {
namespace {

TEST(GatherDequantOracle, Codes) {
  EXPECT_EQ(e4m3fn_value(0x00), 0.0);
  EXPECT_TRUE(std::signbit(e4m3fn_value(0x80)));
  EXPECT_EQ(e4m3fn_value(0x01), 0x1p-9);
  EXPECT_EQ(e4m3fn_value(0x07), 7 * 0x1p-9);
  EXPECT_EQ(e4m3fn_value(0x08), 0x1p-6);
  EXPECT_EQ(e4m3fn_value(0x38), 1.0);
  EXPECT_EQ(e4m3fn_value(0xb9), -1.125);
  EXPECT_EQ(e4m3fn_value(0x7e), 448.0);
  EXPECT_TRUE(std::isnan(e4m3fn_value(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3fn_value(0xff)));
}

TEST(GatherDequantOracle, Products) {
  EXPECT_EQ(dequantised(0x38, 0x3f800000), 0x3f80);  // 1 * 1
  EXPECT_EQ(dequantised(0xb8, 0x3f800000), 0xbf80);
  EXPECT_EQ(dequantised(0x38, 0x3f808000), 0x3f80);  // 1 + 2^-8: a tie, down to even
  EXPECT_EQ(dequantised(0x38, 0x3f808001), 0x3f81);
  EXPECT_EQ(dequantised(0x38, 0x3f818000), 0x3f82);  // 1 + 3 * 2^-8: a tie, up to even
  EXPECT_EQ(dequantised(0x38, 0x00000001), 0x0000);  // 2^-149 is less than half of 2^-133
  EXPECT_EQ(dequantised(0x38, 0x00010000), 0x0001);  // 2^-133
  EXPECT_EQ(dequantised(0x38, 0x00018000), 0x0002);  // 1.5 * 2^-133: a tie
  EXPECT_EQ(dequantised(0x38, 0x007fffff), 0x0080);  // the largest subnormal rounds to a normal number
  EXPECT_EQ(dequantised(0x01, 0x3f800000), 0x3b00);  // 2^-9
  EXPECT_EQ(dequantised(0x80, 0x3f800000), 0x8000);  // -0
  EXPECT_EQ(dequantised(0x38, 0x7f7fffff), 0x7f80);  // rounds up to infinity
  EXPECT_EQ(dequantised(0xb8, 0x7f7fffff), 0xff80);
  EXPECT_EQ(dequantised(0x38, 0x7f7f0000), 0x7f7f);  // the largest bfloat16
  EXPECT_EQ(dequantised(0x7e, 0x7f000000), 0x7f80);  // overflows float32
  EXPECT_EQ(dequantised(0x00, 0x7f800000), 0x7fc0);  // 0 * infinity
  EXPECT_EQ(dequantised(0xff, 0x3f800000), 0x7fc0);
  EXPECT_EQ(dequantised(0x38, 0xffc12345), 0x7fc0);
}

TEST_P(RegisteredCaseTest, GatherDequant) {
  EXPECT_GT(check_cases(GetParam().name), 0);
}
INSTANTIATE_TEST_SUITE_P(, RegisteredCaseTest, registered(gather_dequant_info(), false), test_name);

TEST(GatherDequant, EveryRuleOfPlan) {
  for (const GatherDequantBreaker& rule : gather_dequant_breakers()) {
    check_cases(
        "gather_dequant:lens=5;3,offset=4;0,w=3,cumsum={0|1},idx={i32|i64},policy={default|reject},break=" +
        std::string(rule.name));
  }
}

TEST(GatherDequant, Random) {
  check_random_cases(gather_dequant_info(), 1, random_cases(3000));
}
TEST(GatherDequantLong, Random) {
  check_random_cases(gather_dequant_info(), 1'000'000, random_cases(100'000));
}

// Rows of all 256 codes with the scales first, first + step, ... (as bits), each for half a row.
struct Problem {
  Problem(std::uint32_t first, std::uint32_t step, std::size_t count)
      : cache(count * 656),
        scales(2 * count),
        out(count * 576, 0x1234),
        rows(static_cast<std::int64_t>(count)) {
    for (std::size_t row = 0; row < count; ++row) {
      std::uint8_t* const bytes = cache.data() + row * 656;
      for (std::size_t i = 0; i < 512; ++i) bytes[i] = static_cast<std::uint8_t>(i & 255);
      for (std::size_t group = 0; group < 4; ++group) {
        const std::size_t i = 2 * row + group / 2;
        scales[i] = first + step * static_cast<std::uint32_t>(i);
        std::memcpy(bytes + 512 + 4 * group, &scales[i], 4);
      }
    }
    args.cache = contiguous(cache.data(), DType::kUInt8, {1, rows, 656});
    args.block_tables = contiguous(&zero, DType::kInt64, {1, 1});
    args.seq_lens = contiguous(&rows, DType::kInt64, {1});
    args.is_seq_lens_cumsum = false;
    args.out = contiguous(out.data(), DType::kBFloat16, {rows, 576});
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  void check() const {
    for (std::size_t i = 0; i < 512 * static_cast<std::size_t>(rows); ++i) {
      const std::size_t row = i / 512, j = i % 512;
      const std::uint32_t scale = scales[2 * row + j / 256];
      ASSERT_EQ(out[row * 576 + j], dequantised(static_cast<std::uint8_t>(j & 255), scale))
          << std::hex << "code 0x" << (j & 255) << " scale 0x" << scale;
    }
  }

  std::vector<std::uint8_t> cache;
  std::vector<std::uint32_t> scales;
  std::vector<std::uint16_t> out;
  std::int64_t rows;
  std::int64_t zero = 0;
  GatherDequantArgs args;
};

// With every implementation; EveryImplementationRuns names those that this machine cannot run.
void check_scales(std::uint32_t first, std::uint32_t step, std::size_t count) {
  for (const std::string& name : gather_dequant_info().implementations()) {
    ContextOptions options;
    options.threads = 1;
    options.implementation = name;
    Problem problem(first, step, count);
    const Status status = gather_dequant(problem.args, Context(options));
    if (status.code() == StatusCode::kUnavailable) continue;
    ASSERT_TRUE(status.ok()) << status.message();
    SCOPED_TRACE(name);
    problem.check();
  }
}

TEST(GatherDequant, AllCodesWithScalesOfEveryKind) {
  // Every exponent and sign, with mantissas spread over it.
  check_scales(0, 0x000fffffU, 2048);
  check_scales(7, 0x00133337U, 2048);
  // Around each edge: zero, the least bfloat16, normal numbers, ties at 1, the largest, infinity, NaN.
  for (const std::uint32_t edge :
       {0x00000000U, 0x00008000U, 0x00010000U, 0x00018000U, 0x00800000U, 0x01000000U, 0x3f800000U,
        0x3f808000U, 0x3f818000U, 0x7b800000U, 0x7f7f8000U, 0x7f800000U, 0x7fc00000U, 0x80000000U,
        0xbf808000U, 0xff800000U}) {
    check_scales(edge - 32, 1, 32);
  }
}

TEST(GatherDequantLong, AllCodesWithManyScales) {
  for (std::uint32_t i = 0; i < 64; ++i) check_scales(i * 0x9e3779b9U, 0x00001235U + 2 * i, 4096);
}

// Engines round otherwise, or flush subnormals to zero.
TEST(GatherDequant, IgnoresTheCallersFloatEnvironment) {
  std::fenv_t usual;
  std::fegetenv(&usual);
  const auto check_here = [&](const char* environment) {
    std::fenv_t callers;
    std::fegetenv(&callers);
    for (const std::string& name : gather_dequant_info().implementations()) {
      for (const std::uint32_t first : {0x00000001U, 0x00018000U, 0x3f808000U, 0x7f7f8000U}) {
        std::fesetenv(&usual);
        SCOPED_TRACE(name + " " + environment);
        Problem problem(first, 0, 1);
        ContextOptions options;
        options.threads = 1;
        options.implementation = name;
        const Context context(options);
        std::fesetenv(&callers);
        const int before = std::fegetround();
        const Status status = gather_dequant(problem.args, context);
        const int after = std::fegetround();
        std::fesetenv(&usual);
        EXPECT_EQ(before, after);
        if (status.ok()) problem.check();
      }
    }
  };
  for (const int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(rounding);
    check_here("rounding");
    std::fesetenv(&usual);
  }
#if defined(__SSE__)
  constexpr unsigned kFlushToZero = 0x8040;  // subnormal results and operands
  _mm_setcsr(_mm_getcsr() | kFlushToZero);
  check_here("flush to zero");
  std::fesetenv(&usual);
#endif
}

TEST(GatherDequant, EveryImplementationRuns) {
  check_that_all_ran(gather_dequant_info());
}

}  // namespace
}  // namespace kvferry::harness
