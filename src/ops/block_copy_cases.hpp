// SPDX-License-Identifier: Apache-2.0
//
// Cases of copy_blocks and swap_blocks: they differ in the second pool and in what they call.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/harness.hpp"

namespace kvferry::harness {

// The arguments of either operator.
struct BlockCopyCall {
  std::vector<TensorView> src;  // empty for copy_blocks
  std::vector<TensorView> dst;
  TensorView mapping;
  std::optional<TensorView> count;
  IndexPolicy policy = IndexPolicy::kDefault;
};

// One broken rule of plan().
struct BlockCopyBreaker {
  const char* name;
  StatusCode code;
  void (*apply)(BlockCopyCall& call, std::vector<std::string>& words);
};

// One of the two operators.
struct BlockCopyFront {
  Operator op;
  bool one_pool;
  std::span<const BlockCopyBreaker> breakers;  // beside the common ones
  // Sets the instance's plan, run and call.
  void (*connect)(Instance& instance, const std::shared_ptr<const BlockCopyCall>& call);
};

std::span<const KeyHelp> block_copy_keys();
std::unique_ptr<Instance> make_block_copy(const BlockCopyFront& front, const Case& from);
Case block_copy_random_case(const BlockCopyFront& front, std::uint64_t seed);

// The rules that both have; "[1]" in what a message must name is element 1 of caches or dst.
std::span<const BlockCopyBreaker> block_copy_breakers();
std::vector<BlockCopyBreaker> breakers_of(const BlockCopyFront& front);

}  // namespace kvferry::harness
