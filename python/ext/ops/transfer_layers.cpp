// SPDX-License-Identifier: Apache-2.0
#include "kvferry/ops/transfer_layers.hpp"

#include "binding.hpp"
#include "ops/operators.hpp"

namespace kvferry::python {
namespace {

constexpr const char* kChunkLayouts[] = {"layer_first", "page_first"};
constexpr const char* kDirections[] = {"pools_to_chunk", "chunk_to_pools"};

struct TransferLayers {
  using Args = TransferLayersArgs;
  static constexpr Operator kOp = Operator::kTransferLayers;
  static constexpr const char* kName = "transfer_layers";
  static constexpr const char* kPlanName = "TransferLayersPlan";
  static constexpr bool to_chunk(const Args& args) {
    return args.direction == TransferDirection::kPoolsToChunk;
  }
  static constexpr bool to_pools(const Args& args) { return !to_chunk(args); }

  static constexpr std::size_t kPositional = 4;
  static constexpr std::tuple kFields{
      list("key_caches", &Args::key_caches, 0, &to_pools),
      list("value_caches", &Args::value_caches, 1, &to_pools, true),
      tensor("chunk", &Args::chunk, &to_chunk),
      in("block_ids", &Args::block_ids),
      choice("chunk_layout", &Args::chunk_layout, kChunkLayouts),
      choice("direction", &Args::direction, kDirections),
      index_policy<Args>(),
      RecordField<Args>{},
  };
  static constexpr const char* kDoc =
      R"(Blocks of many layers between per-layer pools and one chunk, in place.

key_caches:   one pool [blocks, block_size, heads, head_size] a layer
value_caches: the same, or None: P = 2 or 1 of them
chunk:        "layer_first" [layers, ids, P, block_size, heads, head_size],
              "page_first" [ids, layers, P, block_size, heads, head_size]
block_ids:    [ids], int32 or int64
direction:    which side is written

Dtypes: as for gather_pa_kv_cache, one for all. Any strides, each tensor its own.

"pools_to_chunk": an id outside the pools is bad and gives zeros. "chunk_to_pools": a negative id is skipped, one
beyond the pools is bad and skipped, and of a repeated one the bytes are unspecified. "report" also counts bad ids
in error_record (batch = place in block_ids; BAD_SOURCE, or BAD_DESTINATION, BAD_DUPLICATE); "reject" raises
IndexError before anything is written.

What is written may not overlap anything else.)";

  static TransferLayersBuffers make_buffers(const Args& args, std::vector<void*>& pointers) {
    pointers.resize(args.key_caches.size() + args.value_caches.size());
    return buffers(args, pointers);
  }
};

}  // namespace

void define_transfer_layers(nb::module_& module) {
  define_operator<TransferLayers>(module);
}

}  // namespace kvferry::python
