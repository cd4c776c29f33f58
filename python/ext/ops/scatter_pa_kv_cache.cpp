// SPDX-License-Identifier: Apache-2.0
#include "kvferry/ops/scatter_pa_kv_cache.hpp"

#include "binding.hpp"
#include "ops/operators.hpp"

namespace kvferry::python {
namespace {

constexpr const char* kScatterModes[] = {"None", "Nhsd", "Nct"};

// Elements from the first to the last, which are the tensor's for sure; -1 if they cannot be told.
std::int64_t span_of(const TensorView& view) {
  std::int64_t last = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.dim(axis) == 0) return 0;
    std::int64_t reach = 0;
    if (view.stride(axis) < 0 || __builtin_mul_overflow(view.dim(axis) - 1, view.stride(axis), &reach) ||
        __builtin_add_overflow(last, reach, &last))
      return -1;
  }
  return last + 1;
}

struct ScatterPaKvCache {
  using Args = ScatterPaKvCacheArgs;
  static constexpr Operator kOp = Operator::kScatterPaKvCache;
  static constexpr const char* kName = "scatter_pa_kv_cache";
  static constexpr const char* kPlanName = "ScatterPaKvCachePlan";
  static constexpr std::size_t kPositional = 5;
  static constexpr std::tuple kFields{
      in("key", &Args::key),
      in("value", &Args::value),
      out("key_cache", &Args::key_cache),
      out("value_cache", &Args::value_cache),
      in("slot_mapping", &Args::slot_mapping),
      choice("cache_mode", &Args::cache_mode, kCacheModes),
      choice("scatter_mode", &Args::scatter_mode, kScatterModes),
      value("nct_strides", &Args::nct_strides, {}, "collections.abc.Sequence[int] = (0, 0)"),
      value("nct_offsets", &Args::nct_offsets, {}, "collections.abc.Sequence[int] = (0, 0)"),
      index_policy<Args>(),
      RecordField<Args>{},
  };
  static constexpr const char* kDoc = R"(New K and V tokens into the slots of paged caches, in place.

key, value:   [tokens or more, heads, head_size]; value and value_cache may both be None
key_cache:    written, by cache_mode and scatter_mode: "Norm" [blocks, block_size, heads, head_size]; "Norm" with
              "Nhsd" [blocks, heads, block_size, head_size]; "PA_NZ" [blocks, heads*head_size/e, block_size, e] or
              [blocks, heads, head_size/e, block_size, e], e = 32 bytes of elements; value_cache alike
slot_mapping: [tokens], int32 or int64: block * block_size + position; negative slots are skipped, as padding
nct_strides:  with "Nct" only, for key and value: token t begins nct_offsets + t * nct_strides elements behind the
              tensor's first element, whatever its strides are, and ends within what the tensor spans

Dtypes: as for gather_pa_kv_cache; a cache has its tokens'. Any strides.

A slot beyond its cache is skipped, and of a slot that an earlier token has the bytes are unspecified. "report"
also counts both in error_record (batch = token, id = slot, BAD_DUPLICATE); "reject" raises IndexError before
anything is written.

Inputs and caches may not overlap.)";

  static void complete(Args& args) {
    if (args.scatter_mode != ScatterMode::kNct) return;
    args.key.storage_elements = span_of(args.key);
    if (args.value) args.value->storage_elements = span_of(*args.value);
  }
};

}  // namespace

void define_scatter_pa_kv_cache(nb::module_& module) {
  define_operator<ScatterPaKvCache>(module);
}

}  // namespace kvferry::python
