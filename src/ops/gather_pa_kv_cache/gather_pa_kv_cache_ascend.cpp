// SPDX-License-Identifier: Apache-2.0
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_ascend.hpp"

#include <fmt/format.h>

namespace kvferry::internal {
namespace {

// A2's PA_NZ kernel holds one token in a buffer of this many bytes.
constexpr std::int64_t kA2MaxNzTokenBytes = 151552;

bool axis_differs(const TensorView& view, int axis) {
  std::int64_t dense = 1;
  for (int inner = axis + 1; inner < view.rank; ++inner) dense *= view.dim(inner);
  return dense > 0 && view.dim(axis) > 1 && view.stride(axis) != dense;
}

}  // namespace

bool is_a2_cache_dtype(DType dtype) noexcept {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kInt8;
}

std::string why_not_950(const GatherPaKvCacheArgs& args) {
  const bool mixed =
      args.key_cache.dtype == DType::kFloat8E4M3FN &&
      (args.value_cache.dtype == DType::kFloat16 || args.value_cache.dtype == DType::kBFloat16);
  if (args.key_cache.dtype != args.value_cache.dtype && !mixed) {
    return fmt::format("key_cache {} with value_cache {}", to_string(args.key_cache.dtype),
                       to_string(args.value_cache.dtype));
  }
  if (args.cache_mode == CacheMode::kNorm && args.key_cache.dim(2) != args.value_cache.dim(2)) {
    return fmt::format("{} heads of key_cache with {} of value_cache", args.key_cache.dim(2),
                       args.value_cache.dim(2));
  }
  return {};
}

std::string why_not_a2(const GatherPaKvCacheArgs& args) {
  const DType dtype = args.key_cache.dtype;
  if (!is_a2_cache_dtype(dtype)) return fmt::format("key_cache {}", to_string(dtype));
  if (args.value_cache.dtype != dtype) {
    return fmt::format("key_cache {} with value_cache {}", to_string(dtype),
                       to_string(args.value_cache.dtype));
  }
  if (args.block_tables.dtype != DType::kInt32)
    return fmt::format("block_tables {}", to_string(args.block_tables.dtype));
  if (args.cache_mode == CacheMode::kPaNz) {
    for (const TensorView* rows : {&args.key, &args.value}) {
      const std::int64_t bytes = rows->dim(1) * size_of(rows->dtype);
      if (bytes > kA2MaxNzTokenBytes)
        return fmt::format("{} bytes a token, limit {}", bytes, kA2MaxNzTokenBytes);
    }
  }
  return {};
}

std::uint32_t ascend_noncontiguous_flag(const GatherPaKvCacheArgs& args) {
  std::uint32_t flag = 0;
  const auto set = [&flag](int bit, bool on) { flag |= on ? 1U << bit : 0U; };
  set(0, !is_contiguous(args.key_cache));
  set(1, !is_contiguous(args.value_cache));
  set(2, !is_contiguous(args.key));
  set(3, !is_contiguous(args.value));
  if (args.cache_mode == CacheMode::kPaNz) return flag;
  set(4, axis_differs(args.key_cache, 1));
  set(5, axis_differs(args.key_cache, 2));
  set(6, axis_differs(args.value_cache, 1));
  set(7, axis_differs(args.value_cache, 2));
  set(8, axis_differs(args.key, 1));
  set(9, axis_differs(args.value, 1));
  return flag;
}

std::string describe_ascend(const GatherPaKvCacheArgs& args) {
  const bool norm = args.cache_mode == CacheMode::kNorm;
  std::string text;
  if (const std::string refusal = why_not_950(args); refusal.empty()) {
    text += fmt::format("  ascend 950      tiling key 1{}{}{}, nonContiguousFlag {:#x}\n", norm ? 1 : 0,
                        args.is_seq_lens_cumsum ? 1 : 0, args.seq_offset ? 1 : 0,
                        ascend_noncontiguous_flag(args));
  } else {
    text += fmt::format("  ascend 950      refuses: {}\n", refusal);
  }
  if (const std::string refusal = why_not_a2(args); refusal.empty()) {
    const int key = !norm ? 577 : args.key_cache.dtype == DType::kInt8 ? 618 : 619;
    text += fmt::format("  ascend A2 / A3  tiling key {}\n", key);
  } else {
    text += fmt::format("  ascend A2 / A3  refuses: {}\n", refusal);
  }
  return text;
}

}  // namespace kvferry::internal
