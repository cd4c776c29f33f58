// SPDX-License-Identifier: Apache-2.0
//
// The fibres of the CUDA emulation on aarch64.
#include <cstdio>

#include "tests/cuda_emulation/fibre_checks.hpp"

int main() {
  const std::string problem = kvferry::emulation::check_fibres();
  std::puts(problem.empty() ? "fibres switch on aarch64" : problem.c_str());
  return problem.empty() ? 0 : 1;
}
