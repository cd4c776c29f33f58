// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/cuda_emulation/fibre_checks.hpp"

namespace kvferry::emulation {
namespace {

TEST(Fibres, KeepWhatIsTheirs) {
  EXPECT_EQ(check_fibres(), "");
}

}  // namespace
}  // namespace kvferry::emulation
