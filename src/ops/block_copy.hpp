// SPDX-License-Identifier: Apache-2.0
//
// What copy_blocks and swap_blocks share: all of it but names. copy_blocks is swap_blocks within one pool,
// with a rule about aliasing of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/cpu/copy.hpp"
#include "backends/cuda/block_copy.hpp"
#include "backends/cuda/queue.hpp"
#include "core/checks.hpp"
#include "core/impl.hpp"
#include "core/index_view.hpp"
#include "core/layout.hpp"

namespace kvferry::internal {

// The arguments of both operators. Within one pool, src and dst are the same views.
struct BlockCopyArgs {
  std::span<const TensorView> src, dst;
  const TensorView& mapping;
  const std::optional<TensorView>& count;
  IndexPolicy index_policy;
};

// One cache, in bytes.
struct BlockCopyCache {
  std::size_t index = 0;  // in src and dst
  std::int64_t src_step = 0;
  std::int64_t dst_step = 0;
  std::int64_t bytes = 0;  // of a block
  Nest nest;               // a block
  bool src_pinned = false, dst_pinned = false;
  // Neighbouring blocks join up on both sides.
  bool joined() const { return nest.loop_count == 0 && src_step == bytes && dst_step == bytes; }
};

// What a plan of a CUDA device has besides.
struct BlockCopyCuda {
  // Caches that one launch can take: alike but for their addresses.
  struct Group {
    cuda::BlockShape shape;
    std::vector<std::size_t> caches;  // of BlockCopyPlan::caches
  };
  std::vector<Group> groups;
  std::string cannot;    // why kernels cannot move these blocks, empty if they can
  std::string transfer;  // for describe(): who moves the bytes between host and device, empty if nobody does
  bool host_mapping = false;  // mapping and count are in ordinary host memory
  bool pinned_mapping = false, pinned_count = false;
};

struct BlockCopyPlan : PlanBody {
  using PlanBody::PlanBody;
  std::string describe_problem() const override;
  // With sizes and pointers as in the buffers.
  Status check(const char* src_name, const void* const* src, const char* dst_name, const void* const* dst,
               const void* mapping_data, const void* count_data, const Workspace& workspace) const;
  bool one_pool() const { return op == Operator::kCopyBlocks; }
  bool nothing_to_do() const { return pairs == 0 || !has_bytes; }

  bool has_bytes = false;                // some cache's blocks have bytes
  std::vector<BlockCopyCache> caches;    // those with elements
  std::vector<std::int64_t> first_byte;  // prefix sums of their block bytes, one more than caches
  std::int64_t pairs = 0;
  std::int64_t src_blocks = 0;
  std::int64_t dst_blocks = 0;
  IndexView mapping;
  bool has_count = false;
  IndexView count;
  IndexPolicy policy = IndexPolicy::kDefault;
  BlockCopyCuda cuda;
  // The one-call form's pointers: work on a stream keeps its plan, and so keeps them.
  std::vector<const void*> held_src;
  std::vector<void*> held_dst;
};

std::string name_of(const char* list, std::size_t index);  // "caches[3]"

// The rules of plan() for one list of tensors, and for the rest.
void check_blocks(Checker& check, const char* list, std::span<const TensorView> views, bool written);
void check_pairs(Checker& check, const BlockCopyArgs& args);

// REQUIRES the checks passed. Fills everything but the implementation.
void make_block_copy(BlockCopyPlan& body, const BlockCopyArgs& args, const Context& context);

struct BlockCopyBuffers {
  const void* const* src;
  void* const* dst;
  const void* mapping;
  const void* count;
  const Workspace& workspace;
  ErrorRecord* error_record;
};

struct BlockCopyPair {
  std::int64_t src;
  std::int64_t dst;
};

// A call with its run-time count, for who reads the mapping on the host.
struct BlockCopyCall {
  const BlockCopyPlan& plan;
  const BlockCopyBuffers& buffers;
  std::int64_t pairs;

  BlockCopyCall(const BlockCopyPlan& p, const BlockCopyBuffers& b);
  BlockCopyPair at(std::int64_t p) const noexcept {
    return {plan.mapping.at(buffers.mapping, p, 0), plan.mapping.at(buffers.mapping, p, 1)};
  }
  static bool padding(const BlockCopyPair& pair) noexcept { return pair.src < 0 || pair.dst < 0; }
  std::uint32_t out_of_range(const BlockCopyPair& pair) const noexcept {
    return (pair.src >= plan.src_blocks ? kBadSource : 0) |
           (pair.dst >= plan.dst_blocks ? kBadDestination : 0);
  }
  // Bytes move.
  bool active(const BlockCopyPair& pair) const noexcept {
    return !padding(pair) && out_of_range(pair) == 0 && !(plan.one_pool() && pair.src == pair.dst);
  }
  // Pairs from p on whose blocks follow each other on both sides, at most `most`; all of them are looked at.
  // REQUIRES an active pair p, which is `pair`.
  std::int64_t run_length(std::int64_t p, const BlockCopyPair& pair, std::int64_t most) const;
};

// What the policy asks for before bytes move: kIndex, or the record.
Status judge_block_copy(const BlockCopyCall& call);

Status run_block_copy(const BlockCopyPlan& plan, const BlockCopyBuffers& buffers, ContextState& context,
                      const cpu::CopyKernels& kernels);

// block_copy_cuda.cpp
void make_block_copy_cuda(BlockCopyPlan& body, const BlockCopyArgs& args, cuda::Queue& queue);
Status run_block_copy_cuda(const BlockCopyPlan& plan, const BlockCopyBuffers& buffers, cuda::Queue& queue);

}  // namespace kvferry::internal
