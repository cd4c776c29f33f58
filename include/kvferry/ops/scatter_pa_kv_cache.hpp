// SPDX-License-Identifier: Apache-2.0
//
// scatter_pa_kv_cache: new K and V tokens into the slots of paged caches ("reshape and cache"). The inverse
// of gather_pa_kv_cache.
//
// Inputs. T slots, Tk >= T and Tv >= T rows (engines pad them), H heads, Dk / Dv head sizes, NBk / NBv blocks
// of bs tokens, e = 32 / sizeof(element).
//
//   key              [Tk, H, Dk]
//   value            [Tv, H, Dv]              optional together with value_cache
//   slot_mapping     [T]  int32 or int64      slot = block * bs + position
//   key_cache (in/out), value_cache (in/out), by mode:
//     CacheMode::kNorm, ScatterMode::kNone    [NB, bs, H, D]
//     CacheMode::kNorm, ScatterMode::kNhsd    [NB, H, bs, D]
//     CacheMode::kNorm, ScatterMode::kNct     [NB, bs, H, D]; see below
//     CacheMode::kPaNz, ScatterMode::kNone    [NB, H*D/e, bs, e], or [NB, H, D/e, bs, e] (needs D % e == 0)
//
// kNct reads token t of key as H*Dk dense elements from element nct_offsets[0] + t * nct_strides[0] of the
// storage (key.data), whatever key's own strides and offset say; value likewise with [1]. stride >= 1, offset
// >= 0, and offset + (T-1) * stride + H*D <= storage_elements, which must be known. (CANN's way to pass a
// strided view; the other modes honour any strides anyway.)
//
// K/V dtypes as for the gather; key and key_cache, value and value_cache share one each. Any strides and
// offsets.
//
// Semantics:
//
//   for t in 0 .. T-1, s = slot_mapping[t]:
//     if 0 <= s < NBk*bs: token (s / bs, s % bs) of key_cache   = key[t]
//     if 0 <= s < NBv*bs: token (s / bs, s % bs) of value_cache = value[t]
//
//   A negative slot is skipped under every policy: it is how engines pad. All other bytes of the caches stay.
//
// Bad entries: a slot >= NBk*bs (NBv*bs), and a slot that an earlier t already named (its token's bytes are
// unspecified, every other token is right).
//   kDefault  out of range: skipped.
//   kReport   the same; the record counts (entry, K | V) pairs: batch = t, column = 0, id = slot; which has
//             kBadDuplicate for a repeated slot (counted for the caches in which it is in range).
//   kReject   refuses, in this order: any slot out of range for a non-empty cache, any repeated slot.
//
// Empty operands. Value is absent if value and value_cache are both nullopt, rank 0, or without elements. A
// pair without elements is skipped, the other is written. T = 0: success, nothing is written. bs = 0 is
// refused.
//
// Aliasing. Two elements of one cache at one address are refused. Inputs and caches must not overlap.
//
// Memory. Workspace: 16 bytes a token (32 on a CUDA device) and 64 more for kReport and kReject, which look
// for repeated slots, else none. A run allocates nothing else.
//
// On a CUDA device kReject is kUnimplemented, and the record and the workspace are device memory. A run only
// launches: it can be captured, and slots are read when the graph runs.
//
// Stream and lifetime: context.hpp. Errors as for the gather; on any error nothing is written.
//
// Source: aclnnScatterPaKvCache of CANN ops-transformer; vLLM's reshape_and_cache. Its Alibi, Omni and Rope
// modes are not implemented.
#pragma once

#include <array>
#include <optional>

#include "kvferry/context.hpp"
#include "kvferry/plan.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry {

enum class ScatterMode : std::uint8_t { kNone, kNhsd, kNct };

struct ScatterPaKvCacheArgs {
  TensorView key;
  TensorView key_cache;
  TensorView slot_mapping;
  std::optional<TensorView> value;
  std::optional<TensorView> value_cache;
  CacheMode cache_mode = CacheMode::kNorm;
  ScatterMode scatter_mode = ScatterMode::kNone;
  std::array<std::int64_t, 2> nct_strides{};  // elements, kNct only
  std::array<std::int64_t, 2> nct_offsets{};
  IndexPolicy index_policy = IndexPolicy::kDefault;
};

struct ScatterPaKvCacheBuffers {
  const void* key = nullptr;
  void* key_cache = nullptr;
  const void* slot_mapping = nullptr;
  const void* value = nullptr;
  void* value_cache = nullptr;
  Workspace workspace;                  // >= plan.workspace_bytes()
  ErrorRecord* error_record = nullptr;  // kReport: optional
};
KVFERRY_EXPORT ScatterPaKvCacheBuffers buffers(const ScatterPaKvCacheArgs& args) noexcept;

KVFERRY_EXPORT Result<Plan> plan(const ScatterPaKvCacheArgs& args, const Context& context) noexcept;
KVFERRY_EXPORT Status run(const Plan& plan, const ScatterPaKvCacheBuffers& buffers,
                          const Context& context) noexcept;
KVFERRY_EXPORT Status scatter_pa_kv_cache(const ScatterPaKvCacheArgs& args, const Context& context,
                                          ErrorRecord* error_record = nullptr) noexcept;

}  // namespace kvferry
