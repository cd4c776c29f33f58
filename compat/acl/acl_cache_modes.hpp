// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acl_names.hpp"
#include "kvferry/plan.hpp"

namespace kvferry::acl {

inline constexpr Names<CacheMode, 2> kCacheModes = {
    {{"Norm", CacheMode::kNorm}, {"PA_NZ", CacheMode::kPaNz}}};

}  // namespace kvferry::acl
