// SPDX-License-Identifier: Apache-2.0
#include "aclnnop/aclnn_gather_selection_kv_cache.h"

#include <fmt/format.h>

#include "acl_phase_one.hpp"
#include "kvferry/ops/gather_selection_kv_cache.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_ascend.hpp"  // see aclnn_gather_pa_kv_cache.cpp

namespace kvferry::acl {
namespace {

using B = GatherSelectionKvCacheBuffers;
constexpr std::array<Operand<B>, 11> kOperands = {{
    operand<&B::selection_k_rope, B>(true),
    operand<&B::selection_kv_cache, B>(true),
    operand<&B::selection_kv_block_table, B>(true),  // ...Ref, but never written
    operand<&B::selection_kv_block_status, B>(true),
    operand<&B::selection_topk_indices, B>(false),
    operand<&B::full_k_rope, B>(false),
    operand<&B::full_kv_cache, B>(false),
    operand<&B::full_kv_block_table, B>(false),
    operand<&B::full_kv_actual_seq, B>(false),
    operand<&B::full_q_actual_seq, B>(false),
    operand<&B::selection_kv_actual_seq, B>(true),
}};

std::string why_not(Profile profile, const GatherSelectionKvCacheArgs& args) {
  if (profile != Profile::kA2 || internal::is_a2_cache_dtype(args.selection_kv_cache.dtype)) return {};
  return fmt::format("selection_kv_cache {}", to_string(args.selection_kv_cache.dtype));
}

}  // namespace
}  // namespace kvferry::acl

using namespace kvferry::acl;

aclnnStatus aclnnGatherSelectionKvCacheGetWorkspaceSize(
    aclTensor* selectionKRopeRef, aclTensor* selectionKvCacheRef, aclTensor* selectionKvBlockTableRef,
    aclTensor* selectionKvBlockStatusRef, const aclTensor* selectionTopkIndices, const aclTensor* fullKRope,
    const aclTensor* fullKvCache, const aclTensor* fullKvBlockTable, const aclTensor* fullKvActualSeq,
    const aclTensor* fullQActualSeq, int64_t selectionTopkBlockSize, aclTensor* selectionKvActualSeqOut,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  return guarded(ACLNN_ERR_INNER, [&] {
    PhaseOne phase(kvferry::Operator::kGatherSelectionKvCache, workspaceSize, executor);
    kvferry::GatherSelectionKvCacheArgs args;
    args.q_len_mode = phase.setting(settings().selection_q_len);
    args.selection_k_rope = phase.tensor("selectionKRopeRef", selectionKRopeRef);
    args.selection_kv_cache = phase.tensor("selectionKvCacheRef", selectionKvCacheRef);
    args.selection_kv_block_table = phase.tensor("selectionKvBlockTableRef", selectionKvBlockTableRef);
    args.selection_kv_block_status = phase.tensor("selectionKvBlockStatusRef", selectionKvBlockStatusRef);
    args.selection_topk_indices = phase.tensor("selectionTopkIndices", selectionTopkIndices);
    args.full_k_rope = phase.tensor("fullKRope", fullKRope);
    args.full_kv_cache = phase.tensor("fullKvCache", fullKvCache);
    args.full_kv_block_table = phase.tensor("fullKvBlockTable", fullKvBlockTable);
    args.full_kv_actual_seq = phase.tensor("fullKvActualSeq", fullKvActualSeq);
    args.full_q_actual_seq = phase.optional("fullQActualSeq", fullQActualSeq);
    if (fullQActualSeq == nullptr && args.q_len_mode != kvferry::QLenMode::kAllRows)
      phase.null("fullQActualSeq");
    args.selection_kv_actual_seq = phase.tensor("selectionKvActualSeqOut", selectionKvActualSeqOut);
    args.selection_topk_block_size = selectionTopkBlockSize;
    args.index_policy = phase.setting(settings().index_policy);
    return phase.finish(args, kOperands, why_not);
  });
}

aclnnStatus aclnnGatherSelectionKvCache(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                        aclrtStream stream) {
  return guarded(ACLNN_ERR_INNER, [&] {
    return executors().launch(kvferry::Operator::kGatherSelectionKvCache, executor, workspace, workspaceSize,
                              stream);
  });
}
