// SPDX-License-Identifier: Apache-2.0
//
// Cases in GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "harness/harness.hpp"
#include "ops/registry.hpp"

namespace kvferry::harness {

// What the tests are built with. ThreadSanitizer needs four bytes for each that is touched, and twenty times
// as long.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVFERRY_TSAN 1
#endif
#if __has_feature(address_sanitizer)
#define KVFERRY_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(KVFERRY_TSAN)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(KVFERRY_ASAN)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

// One for the whole test program; its summary comes out at the end, so that skips are seen.
inline Runner& test_runner() {
  static Runner runner(kThreadSanitizer ? std::vector{3} : std::vector{1, 2, 3});
  return runner;
}

// The name is GoogleTest's.
// NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(const RegisteredCase& one, std::ostream* out) {
  *out << one.text;
}

// The registered cases that move gigabytes.
inline bool too_large_here(const RegisteredCase& one) {
  return kThreadSanitizer && std::string_view(one.text).find("fold=") != std::string_view::npos;
}

// Runs everything that the text stands for. Returns the cases that ran.
inline int check_cases(std::string_view text) {
  int n = 0;
  try {
    for (const auto& [info, what] : resolve(text)) {
      const Report report = test_runner().run(*info, what);
      if (!report.ok()) ADD_FAILURE() << report.to_string();
      ++n;
    }
  } catch (const CaseError& error) {
    ADD_FAILURE() << text << ": " << error.what();
  }
  return n;
}

// Every registered case of an operator is a test of its own: its name is in --gtest_filter and in reports.
class RegisteredCaseTest : public testing::TestWithParam<RegisteredCase> {};
class RegisteredCaseLong : public testing::TestWithParam<RegisteredCase> {};
// Not every operator has slow ones.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RegisteredCaseLong);

inline auto registered(const OperatorInfo& info, bool slow) {
  std::vector<RegisteredCase> cases;
  for (const RegisteredCase& one : info.cases) {
    if (one.slow == slow) cases.push_back(one);
  }
  return testing::ValuesIn(cases);
}

inline std::string test_name(const testing::TestParamInfo<RegisteredCase>& info) {
  std::string name = info.param.name;
  name.erase(0, name.find('/') + 1);
  return name;
}

// How often a property is tried: KVFERRY_RANDOM_CASES replaces `usual`.
inline std::int64_t random_cases(std::int64_t usual) {
  const char* wanted = std::getenv("KVFERRY_RANDOM_CASES");
  if (wanted != nullptr) return parse_integer(wanted);
  if (kThreadSanitizer) return usual / 10;
  // A case takes three times as long: thousands become fewer.
  return kAddressSanitizer ? std::min(usual, std::max<std::int64_t>(usual / 4, 500)) : usual;
}

// Random cases with seeds from `first` on; stops at the third failure.
inline void check_random_cases(const OperatorInfo& info, std::uint64_t first, std::int64_t count) {
  int failures = 0;
  for (std::int64_t i = 0; i < count && failures < 3; ++i) {
    const Report report = test_runner().run(info, info.random_case(first + static_cast<std::uint64_t>(i)));
    if (report.ok()) continue;
    ADD_FAILURE() << report.to_string();
    ++failures;
  }
}

// An implementation that this machine cannot run is a skip that must be seen, not a silence.
inline void check_that_all_ran(const OperatorInfo& info) {
  check_cases(std::string(info.name) + ":");
  for (const std::string& name : info.implementations()) {
    if (test_runner().runs_by_implementation().contains(name)) continue;
    const std::string never =
        std::string(info.name) + ": implementation '" + name + "' never ran: " + test_runner().summary();
    // Processors of today may lack AVX-512; what they all have must have run where no skip is allowed.
    if (std::getenv("KVFERRY_NO_SKIPS") != nullptr && name != "avx512") FAIL() << never;
    GTEST_SKIP() << never;
  }
  // Nobody forced anything: the first one must be picked, not one further down.
  check_cases(std::string(info.name) + ":expect_impl=" + info.implementations().front());
}

class PrintSummary : public testing::Environment {
 public:
  void TearDown() override { std::printf("%s\n", test_runner().summary().c_str()); }
};
inline testing::Environment* const kPrintSummary = testing::AddGlobalTestEnvironment(new PrintSummary);

}  // namespace kvferry::harness
