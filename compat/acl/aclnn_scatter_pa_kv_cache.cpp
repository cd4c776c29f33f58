// SPDX-License-Identifier: Apache-2.0
#include "aclnnop/aclnn_scatter_pa_kv_cache.h"

#include <fmt/format.h>

#include "acl_cache_modes.hpp"
#include "acl_phase_one.hpp"
#include "acl_tensors.hpp"
#include "kvferry/ops/scatter_pa_kv_cache.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_ascend.hpp"  // see aclnn_gather_pa_kv_cache.cpp

namespace kvferry::acl {
namespace {

using B = ScatterPaKvCacheBuffers;
constexpr std::array<Operand<B>, 8> kOperands = {{
    operand<&B::key, B>(false),
    operand<&B::key_cache, B>(true),
    operand<&B::slot_mapping, B>(false),
    operand<&B::value, B>(false),
    operand<&B::value_cache, B>(true),
    {},  // compressLensOptional, compressSeqOffsetOptional, seqLensOptional: never there
    {},
    {},
}};

// CANN's modes that the library does not have are "we cannot"; other names are "you are wrong".
constexpr Names<std::optional<ScatterMode>, 6> kScatterModes = {{
    {"None", ScatterMode::kNone},
    {"NHSD", ScatterMode::kNhsd},
    {"Nct", ScatterMode::kNct},
    {"Alibi", std::nullopt},
    {"Rope", std::nullopt},
    {"Omni", std::nullopt},
}};

void read_pair(PhaseOne& phase, const char* name, const aclIntArray* from, std::array<std::int64_t, 2>& to) {
  if (from == nullptr) return phase.null(name);
  if (from->values.size() == 2) {
    to = {from->values[0], from->values[1]};
    return;
  }
  phase.refuse({StatusCode::kInvalidArgument,
                fmt::format("{}: {} values, expected 2 (key, value)", name, from->values.size())});
}

std::string why_not(Profile profile, const ScatterPaKvCacheArgs& args) {
  if (profile != Profile::kA2) return {};
  if (!internal::is_a2_cache_dtype(args.key_cache.dtype))
    return fmt::format("key_cache {}", to_string(args.key_cache.dtype));
  if (args.value_cache && !internal::is_a2_cache_dtype(args.value_cache->dtype))
    return fmt::format("value_cache {}", to_string(args.value_cache->dtype));
  if (args.slot_mapping.dtype != DType::kInt32)
    return fmt::format("slot_mapping {}", to_string(args.slot_mapping.dtype));
  return {};
}

}  // namespace
}  // namespace kvferry::acl

using namespace kvferry::acl;

aclnnStatus aclnnScatterPaKvCacheGetWorkspaceSize(
    const aclTensor* key, aclTensor* keyCacheRef, const aclTensor* slotMapping, const aclTensor* value,
    aclTensor* valueCacheRef, const aclTensor* compressLensOptional,
    const aclTensor* compressSeqOffsetOptional, const aclTensor* seqLensOptional, char* cacheModeOptional,
    char* scatterModeOptional, const aclIntArray* stridesOptional, const aclIntArray* offsetsOptional,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  return guarded(ACLNN_ERR_INNER, [&] {
    PhaseOne phase(kvferry::Operator::kScatterPaKvCache, workspaceSize, executor);
    kvferry::ScatterPaKvCacheArgs args;
    args.cache_mode = phase.choice("cacheModeOptional", cacheModeOptional, kCacheModes);
    const bool nz = args.cache_mode == kvferry::CacheMode::kPaNz;
    const auto mode = phase.choice("scatterModeOptional", scatterModeOptional, kScatterModes);
    if (!mode)
      phase.refuse({kvferry::StatusCode::kUnimplemented,
                    fmt::format("scatterModeOptional: '{}' is not implemented", scatterModeOptional)});
    args.scatter_mode = mode.value_or(kvferry::ScatterMode::kNone);
    args.key = phase.tensor("key", key);
    args.key_cache = phase.tensor("keyCacheRef", keyCacheRef, nz);
    args.slot_mapping = phase.tensor("slotMapping", slotMapping);
    args.value = phase.optional("value", value);
    args.value_cache = phase.optional("valueCacheRef", valueCacheRef, nz);
    phase.unimplemented("compressLensOptional", compressLensOptional);
    phase.unimplemented("compressSeqOffsetOptional", compressSeqOffsetOptional);
    phase.unimplemented("seqLensOptional", seqLensOptional);
    if (args.scatter_mode == kvferry::ScatterMode::kNct) {
      read_pair(phase, "stridesOptional", stridesOptional, args.nct_strides);
      read_pair(phase, "offsetsOptional", offsetsOptional, args.nct_offsets);
    }
    args.index_policy = phase.setting(settings().index_policy);
    return phase.finish(args, kOperands, why_not);
  });
}

aclnnStatus aclnnScatterPaKvCache(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                  aclrtStream stream) {
  return guarded(ACLNN_ERR_INNER, [&] {
    return executors().launch(kvferry::Operator::kScatterPaKvCache, executor, workspace, workspaceSize,
                              stream);
  });
}
