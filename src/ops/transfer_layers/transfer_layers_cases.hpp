// SPDX-License-Identifier: Apache-2.0
//
// What the case files of transfer_layers share.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "harness/harness.hpp"
#include "kvferry/ops/transfer_layers.hpp"

namespace kvferry::harness {

// Arguments that own their lists of pools, for damage.
struct TransferLayersCall {
  std::vector<TensorView> keys;
  std::vector<TensorView> values;
  TransferLayersArgs rest;  // all but the pools

  TransferLayersArgs args() const {
    TransferLayersArgs all = rest;
    all.key_caches = keys;
    all.value_caches = values;
    return all;
  }
};

// One broken rule of plan(). `directions`: of the case key "dir", those that have it.
struct TransferLayersBreaker {
  const char* name;
  const char* directions;
  StatusCode code;
  void (*apply)(TransferLayersCall& call, std::vector<std::string>& words);
};

std::span<const TransferLayersBreaker> transfer_layers_breakers();
std::span<const RegisteredCase> transfer_layers_registered_cases();
Case transfer_layers_random_case(std::uint64_t seed);

}  // namespace kvferry::harness
