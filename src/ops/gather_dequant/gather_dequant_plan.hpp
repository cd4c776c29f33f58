// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "core/impl.hpp"
#include "kvferry/ops/gather_dequant.hpp"
#include "ops/paged_reads.hpp"

namespace kvferry::internal {

struct GatherDequantPlan final : PlanBody {
  using ImplType = Impl<GatherDequantPlan, GatherDequantBuffers>;

  GatherDequantPlan() : PlanBody(Operator::kGatherDequant) {}
  std::string describe_problem() const override;
  Status check(const GatherDequantBuffers& buffers) const;
  bool nothing_to_do() const { return reads.rows == 0; }

  const ImplType* impl = nullptr;
  PagedReads reads;
  std::int64_t blocks = 0;
  // Bytes.
  std::int64_t cache_base = 0;
  std::int64_t block_step = 0;
  std::int64_t slot_step = 0;
  std::int64_t out_base = 0;
  std::int64_t row_step = 0;
  std::int64_t element_step = 0;
  // On a CUDA device: in pinned host memory.
  struct Pinned {
    bool cache = false, block_tables = false, seq_lens = false, seq_offset = false, out = false;
  } pinned;
};

// Implementations in order of preference.
std::span<const GatherDequantPlan::ImplType> gather_dequant_cpu();
std::span<const GatherDequantPlan::ImplType> gather_dequant_cuda();

}  // namespace kvferry::internal
