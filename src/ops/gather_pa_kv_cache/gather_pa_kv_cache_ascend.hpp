// SPDX-License-Identifier: Apache-2.0
//
// What CANN would do with the same call: for people who port from or to it.
#pragma once

#include <cstdint>
#include <string>

#include "kvferry/ops/gather_pa_kv_cache.hpp"

namespace kvferry::internal {

// Why a product does not take a call; empty: it does. REQUIRE args that plan() accepted.
std::string why_not_950(const GatherPaKvCacheArgs& args);
std::string why_not_a2(const GatherPaKvCacheArgs& args);
// The dtypes of caches of A2 / A3, whatever the operator.
bool is_a2_cache_dtype(DType dtype) noexcept;

// Bit 0 key_cache, 1 value_cache, 2 key, 3 value: not dense. With CacheMode::kNorm also 4 / 5 slot / head
// axis of key_cache, 6 / 7 of value_cache, 8 head axis of key, 9 of value: stride differs from the dense one.
std::uint32_t ascend_noncontiguous_flag(const GatherPaKvCacheArgs& args);

// Lines of Plan::describe(): tiling key and flag on Ascend 950, tiling key on A2 / A3, or why they refuse the
// call. REQUIRES args that plan() accepted.
std::string describe_ascend(const GatherPaKvCacheArgs& args);

}  // namespace kvferry::internal
