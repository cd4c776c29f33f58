// SPDX-License-Identifier: Apache-2.0
#include "kvferry/backend.hpp"

#include "backends/cpu/kernels.hpp"
#include "core/device_queue.hpp"

namespace kvferry {

std::vector<BackendInfo> backends() {
  BackendInfo cpu{"cpu", true, {}};
  for (const internal::cpu::InstructionSet& set : internal::cpu::instruction_sets()) {
    if (set.why_not().empty()) cpu.detail += (cpu.detail.empty() ? "" : ", ") + std::string(set.name);
  }
  const Result<std::string> devices = internal::describe_cuda();
  const BackendInfo cuda{"cuda", devices.ok(), devices.ok() ? devices.value() : devices.status().message()};
  return {cpu, cuda};
}

}  // namespace kvferry
