// SPDX-License-Identifier: Apache-2.0
//
// Every case of every operator through the CUDA backend: its plans, its launches and its kernels, these
// thread by thread with every access checked.
#include <gtest/gtest.h>

#include <string>

#include "harness/testing.hpp"
#include "tests/cuda_emulation/queue.hpp"

namespace kvferry::emulation {
namespace {

using harness::Case;
using harness::OperatorInfo;

class EmulatedOperator : public testing::TestWithParam<const OperatorInfo*> {
 protected:
  // Three failures say enough.
  void check(const Case& what) {
    if (failures_ == 3) return;
    const harness::Report report = runner_.run(*GetParam(), what);
    if (report.ok()) return;
    ADD_FAILURE() << report.to_string();
    ++failures_;
  }
  void TearDown() override { std::printf("%s: %s\n", GetParam()->name, runner_.summary().c_str()); }

  EmulatedDevice device_;
  harness::Runner runner_{device_};
  int failures_ = 0;
};

TEST_P(EmulatedOperator, RegisteredCases) {
  for (const harness::RegisteredCase& one : GetParam()->cases) {
    if (one.slow) continue;
    for (const auto& [info, what] : harness::resolve(one.name)) check(what);
  }
  EXPECT_GT(device_.launches(), 0U);
}

TEST_P(EmulatedOperator, RandomCases) {
  for (std::int64_t seed = 0; seed < harness::random_cases(500); ++seed) {
    Case what = GetParam()->random_case(static_cast<std::uint64_t>(seed) + 5'000'000);
    if (seed % 2 == 1) what.set("pinned", seed % 16 == 1 ? "all" : "some");
    check(what);
  }
  EXPECT_GT(device_.launches(), 0U);
}

std::vector<const OperatorInfo*> all_operators() {
  std::vector<const OperatorInfo*> all;
  for (const OperatorInfo& info : harness::operators()) all.push_back(&info);
  return all;
}
std::string operator_name(const testing::TestParamInfo<const OperatorInfo*>& of) {
  return of.param->name;
}
INSTANTIATE_TEST_SUITE_P(, EmulatedOperator, testing::ValuesIn(all_operators()), operator_name);

}  // namespace
}  // namespace kvferry::emulation
