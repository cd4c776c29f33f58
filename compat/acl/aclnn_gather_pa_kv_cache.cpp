// SPDX-License-Identifier: Apache-2.0
#include "aclnnop/aclnn_gather_pa_kv_cache.h"

#include "acl_cache_modes.hpp"
#include "acl_phase_one.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"
// Internal: `explain` says what the products take, and two lists of that would drift apart.
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_ascend.hpp"

namespace kvferry::acl {
namespace {

using B = GatherPaKvCacheBuffers;
constexpr std::array<Operand<B>, 7> kOperands = {{
    operand<&B::key_cache, B>(false),
    operand<&B::value_cache, B>(false),
    operand<&B::block_tables, B>(false),
    operand<&B::seq_lens, B>(false),
    operand<&B::key, B>(true),
    operand<&B::value, B>(true),
    operand<&B::seq_offset, B>(false),
}};

std::string why_not(Profile profile, const GatherPaKvCacheArgs& args) {
  return profile == Profile::kA2 ? internal::why_not_a2(args) : internal::why_not_950(args);
}

}  // namespace
}  // namespace kvferry::acl

using namespace kvferry::acl;

aclnnStatus aclnnGatherPaKvCacheGetWorkspaceSize(const aclTensor* keyCache, const aclTensor* valueCache,
                                                 const aclTensor* blockTables, const aclTensor* seqLens,
                                                 aclTensor* keyRef, aclTensor* valueRef,
                                                 const aclTensor* seqOffsetOptional, char* cacheMode,
                                                 bool isSeqLensCumsum, uint64_t* workspaceSize,
                                                 aclOpExecutor** executor) {
  return guarded(ACLNN_ERR_INNER, [&] {
    PhaseOne phase(kvferry::Operator::kGatherPaKvCache, workspaceSize, executor);
    kvferry::GatherPaKvCacheArgs args;
    args.cache_mode = phase.choice("cacheMode", cacheMode, kCacheModes);
    const bool nz = args.cache_mode == kvferry::CacheMode::kPaNz;
    args.key_cache = phase.tensor("keyCache", keyCache, nz);
    args.value_cache = phase.tensor("valueCache", valueCache, nz);
    args.block_tables = phase.tensor("blockTables", blockTables);
    args.seq_lens = phase.tensor("seqLens", seqLens);
    args.key = phase.tensor("keyRef", keyRef);
    args.value = phase.tensor("valueRef", valueRef);
    args.seq_offset = phase.optional("seqOffsetOptional", seqOffsetOptional);
    args.is_seq_lens_cumsum = isSeqLensCumsum;
    args.index_policy = phase.setting(settings().index_policy);
    return phase.finish(args, kOperands, why_not);
  });
}

aclnnStatus aclnnGatherPaKvCache(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                 aclrtStream stream) {
  return guarded(ACLNN_ERR_INNER, [&] {
    return executors().launch(kvferry::Operator::kGatherPaKvCache, executor, workspace, workspaceSize,
                              stream);
  });
}
