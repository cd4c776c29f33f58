// SPDX-License-Identifier: Apache-2.0
#include "kvferry/ops/gather_pa_kv_cache.hpp"

#include "binding.hpp"
#include "ops/operators.hpp"

namespace kvferry::python {
namespace {

struct GatherPaKvCache {
  using Args = GatherPaKvCacheArgs;
  static constexpr Operator kOp = Operator::kGatherPaKvCache;
  static constexpr const char* kName = "gather_pa_kv_cache";
  static constexpr const char* kPlanName = "GatherPaKvCachePlan";
  static constexpr std::size_t kPositional = 6;
  static constexpr std::tuple kFields{
      in("key_cache", &Args::key_cache),
      in("value_cache", &Args::value_cache),
      in("block_tables", &Args::block_tables),
      in("seq_lens", &Args::seq_lens),
      out("key", &Args::key),
      out("value", &Args::value),
      in("seq_offset", &Args::seq_offset),
      choice("cache_mode", &Args::cache_mode, kCacheModes),
      value("is_seq_lens_cumsum", &Args::is_seq_lens_cumsum, false, "bool = False"),
      index_policy<Args>(),
      RecordField<Args>{},
  };
  static constexpr const char* kDoc =
      R"(The tokens of paged K and V caches to contiguous key and value, in place.

key_cache:    [blocks, block_size, heads, head_size] ("Norm"), [blocks, heads*head_size/e, block_size, e] ("PA_NZ",
              e = 32 bytes of elements); value_cache alike, with heads, head size, blocks of its own
block_tables: [batches, columns], int32 or int64
seq_lens:     [batches] lengths, or [batches + 1] running sums with is_seq_lens_cumsum; dtype of block_tables.
              The default False is that of the published PyTorch binding; in C++ and CANN it is True
key, value:   written, [rows, heads, head_size] ("Norm"), [rows, heads*head_size] ("PA_NZ")
seq_offset:   [batches]; tokens to begin at, of which whole blocks count

Dtypes: float16, bfloat16, float32, (u)int8/16/32, float8; an output has its cache's. Bytes move unchanged. Any
strides. Rows that no sequence reaches keep their contents.

A bad entry, a visited column outside the table or a block id outside its cache, gives zero rows. "report" also
counts it in error_record; "reject" raises IndexError before anything is written.

Outputs may not overlap each other or an input.)";
};

}  // namespace

void define_gather_pa_kv_cache(nb::module_& module) {
  define_operator<GatherPaKvCache>(module);
}

}  // namespace kvferry::python
