// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "harness/testing.hpp"
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_cases.hpp"

namespace kvferry::harness {
namespace {

TEST_P(RegisteredCaseTest, Selection) {
  EXPECT_GT(check_cases(GetParam().name), 0);
}
INSTANTIATE_TEST_SUITE_P(, RegisteredCaseTest, registered(gather_selection_kv_cache_info(), false),
                         test_name);
TEST_P(RegisteredCaseLong, Selection) {
  EXPECT_GT(check_cases(GetParam().name), 0);
}
INSTANTIATE_TEST_SUITE_P(, RegisteredCaseLong, registered(gather_selection_kv_cache_info(), true), test_name);

TEST(GatherSelectionKvCache, EveryRuleOfPlan) {
  for (const SelectionBreaker& rule : selection_breakers()) {
    for (const std::string& form : split(rule.forms, ' ')) {
      check_cases(
          "gather_selection_kv_cache:b=2,s=2,k=6,bs=2,sblk=4,fblk=6,kv=9;14,srow=3;0;2;1,snb=12,form=" +
          form + ",policy={default|reject},break=" + rule.name);
    }
  }
}

TEST(GatherSelectionKvCache, Random) {
  check_random_cases(gather_selection_kv_cache_info(), 1, random_cases(3000));
}
TEST(GatherSelectionKvCacheLong, Random) {
  check_random_cases(gather_selection_kv_cache_info(), 1'000'000, random_cases(100'000));
}

TEST(GatherSelectionKvCache, EveryImplementationRuns) {
  check_that_all_ran(gather_selection_kv_cache_info());
}

}  // namespace
}  // namespace kvferry::harness
