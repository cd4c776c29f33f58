// SPDX-License-Identifier: Apache-2.0
#include "capi/operators.hpp"

#include <memory>

#include "capi/handles.hpp"

namespace kvferry::capi {
namespace {

static_assert(KVFERRY_CACHE_MODE_NORM == static_cast<int>(CacheMode::kNorm) &&
              KVFERRY_CACHE_MODE_PA_NZ == static_cast<int>(CacheMode::kPaNz));
static_assert(KVFERRY_INDEX_POLICY_DEFAULT == static_cast<int>(IndexPolicy::kDefault) &&
              KVFERRY_INDEX_POLICY_REPORT == static_cast<int>(IndexPolicy::kReport) &&
              KVFERRY_INDEX_POLICY_REJECT == static_cast<int>(IndexPolicy::kReject));
static_assert(KVFERRY_SCATTER_MODE_NONE == static_cast<int>(ScatterMode::kNone) &&
              KVFERRY_SCATTER_MODE_NHSD == static_cast<int>(ScatterMode::kNhsd) &&
              KVFERRY_SCATTER_MODE_NCT == static_cast<int>(ScatterMode::kNct));
static_assert(KVFERRY_Q_LEN_COUNTS == static_cast<int>(QLenMode::kCounts) &&
              KVFERRY_Q_LEN_PREFIX_SUM == static_cast<int>(QLenMode::kPrefixSum) &&
              KVFERRY_Q_LEN_ALL_ROWS == static_cast<int>(QLenMode::kAllRows));
static_assert(KVFERRY_CHUNK_LAYER_FIRST == static_cast<int>(ChunkLayout::kLayerFirst) &&
              KVFERRY_CHUNK_PAGE_FIRST == static_cast<int>(ChunkLayout::kPageFirst));
static_assert(KVFERRY_POOLS_TO_CHUNK == static_cast<int>(TransferDirection::kPoolsToChunk) &&
              KVFERRY_CHUNK_TO_POOLS == static_cast<int>(TransferDirection::kChunkToPools));
static_assert(KVFERRY_OP_GATHER_PA_KV_CACHE == static_cast<int>(Operator::kGatherPaKvCache) &&
              KVFERRY_OP_SCATTER_PA_KV_CACHE == static_cast<int>(Operator::kScatterPaKvCache) &&
              KVFERRY_OP_GROUP_MEMCPY == static_cast<int>(Operator::kGroupMemcpy) &&
              KVFERRY_OP_GATHER_SELECTION_KV_CACHE == static_cast<int>(Operator::kGatherSelectionKvCache) &&
              KVFERRY_OP_COPY_BLOCKS == static_cast<int>(Operator::kCopyBlocks) &&
              KVFERRY_OP_SWAP_BLOCKS == static_cast<int>(Operator::kSwapBlocks) &&
              KVFERRY_OP_TRANSFER_LAYERS == static_cast<int>(Operator::kTransferLayers) &&
              KVFERRY_OP_GATHER_DEQUANT == static_cast<int>(Operator::kGatherDequant));

// The record is one piece of memory under two names.
static_assert(KVFERRY_BAD_KEY == kBadKey && KVFERRY_BAD_VALUE == kBadValue &&
              KVFERRY_BAD_COLUMN == kBadColumn && KVFERRY_BAD_DUPLICATE == kBadDuplicate &&
              KVFERRY_BAD_SOURCE == kBadSource && KVFERRY_BAD_DESTINATION == kBadDestination);
static_assert(sizeof(kvferry_error_record) == sizeof(ErrorRecord) &&
              alignof(kvferry_error_record) == alignof(ErrorRecord) &&
              offsetof(kvferry_error_record, bad) == offsetof(ErrorRecord, bad) &&
              offsetof(kvferry_error_record, batch) == offsetof(ErrorRecord, batch) &&
              offsetof(kvferry_error_record, column) == offsetof(ErrorRecord, column) &&
              offsetof(kvferry_error_record, id) == offsetof(ErrorRecord, id) &&
              offsetof(kvferry_error_record, which) == offsetof(ErrorRecord, which) &&
              offsetof(kvferry_error_record, op) == offsetof(ErrorRecord, op));

ErrorRecord* record_of(kvferry_error_record* record) noexcept {
  return reinterpret_cast<ErrorRecord*>(record);
}

IndexPolicy read_policy(Reader& reader, std::int64_t value) {
  return reader.choice("index_policy", value, IndexPolicy::kReject);
}

bool read_cumsum(Reader& reader, std::int64_t value) {
  return reader.choice("seq_lens_mode", value, KVFERRY_SEQ_LENS_COUNTS) == KVFERRY_SEQ_LENS_CUMSUM;
}

// kvferry_<operator>_plan
template <class Args>
kvferry_status make_plan(Operator op, const Args* args, const kvferry_context* context,
                         kvferry_plan** plan_out) noexcept {
  return call([&]() -> Status {
    Reader reader(to_string(op));
    reader.need("plan", plan_out);
    if (!reader.ok()) return reader.take();
    *plan_out = nullptr;
    reader.need("context", context);
    const auto read_args = read(reader, reader.structure("args", args));
    if (!reader.ok()) return reader.take();
    Result<Plan> made = plan(read_args, context->context);
    if (!made.ok()) return made.status();
    *plan_out = std::make_unique<kvferry_plan>(std::move(made).value()).release();
    return {};
  });
}

constexpr auto kRun = [](const Plan& plan, const auto& buffers, const Context& context) {
  return run(plan, buffers, context);
};

// kvferry_<operator>_run; `step` is schedule or copy for those of the selection.
template <class Buffers, class Step = decltype(kRun)>
kvferry_status run_plan(Operator op, const kvferry_plan* plan, const Buffers* buffers,
                        const kvferry_context* context, Step step = kRun) noexcept {
  return call([&]() -> Status {
    Reader reader(to_string(op));
    reader.need("plan", plan);
    reader.need("context", context);
    const Buffers known = reader.structure("buffers", buffers);
    return reader.ok() ? step(plan->plan, read(known), context->context) : reader.take();
  });
}

// kvferry_<operator>: `one_call` is the C++ function of its name.
template <class Args, class CxxArgs>
kvferry_status run_once(Operator op,
                        Status (*one_call)(const CxxArgs&, const Context&, ErrorRecord*) noexcept,
                        const Args* args, const kvferry_context* context,
                        kvferry_error_record* error_record) noexcept {
  return call([&]() -> Status {
    Reader reader(to_string(op));
    reader.need("context", context);
    const CxxArgs read_args = read(reader, reader.structure("args", args));
    return reader.ok() ? one_call(read_args, context->context, record_of(error_record)) : reader.take();
  });
}

}  // namespace

GatherPaKvCacheArgs read(Reader& reader, const kvferry_gather_pa_kv_cache_args& from) {
  GatherPaKvCacheArgs to;
  to.key_cache = reader.tensor("key_cache", from.key_cache);
  to.value_cache = reader.tensor("value_cache", from.value_cache);
  to.block_tables = reader.tensor("block_tables", from.block_tables);
  to.seq_lens = reader.tensor("seq_lens", from.seq_lens);
  to.key = reader.tensor("key", from.key);
  to.value = reader.tensor("value", from.value);
  to.seq_offset = reader.optional("seq_offset", from.seq_offset);
  to.cache_mode = reader.choice("cache_mode", from.cache_mode, CacheMode::kPaNz);
  to.is_seq_lens_cumsum = read_cumsum(reader, from.seq_lens_mode);
  to.index_policy = read_policy(reader, from.index_policy);
  return to;
}

GatherPaKvCacheBuffers read(const kvferry_gather_pa_kv_cache_buffers& from) noexcept {
  GatherPaKvCacheBuffers to;
  to.key_cache = from.key_cache;
  to.value_cache = from.value_cache;
  to.block_tables = from.block_tables;
  to.seq_lens = from.seq_lens;
  to.seq_offset = from.seq_offset;
  to.key = from.key;
  to.value = from.value;
  to.workspace = {from.workspace, from.workspace_bytes};
  to.error_record = record_of(from.error_record);
  return to;
}

ScatterPaKvCacheArgs read(Reader& reader, const kvferry_scatter_pa_kv_cache_args& from) {
  ScatterPaKvCacheArgs to;
  to.key = reader.tensor("key", from.key);
  to.key_cache = reader.tensor("key_cache", from.key_cache);
  to.slot_mapping = reader.tensor("slot_mapping", from.slot_mapping);
  to.value = reader.optional("value", from.value);
  to.value_cache = reader.optional("value_cache", from.value_cache);
  to.cache_mode = reader.choice("cache_mode", from.cache_mode, CacheMode::kPaNz);
  to.scatter_mode = reader.choice("scatter_mode", from.scatter_mode, ScatterMode::kNct);
  to.nct_strides = {from.nct_strides[0], from.nct_strides[1]};
  to.nct_offsets = {from.nct_offsets[0], from.nct_offsets[1]};
  if (from.nct_storage_elements[0] != 0) to.key.storage_elements = from.nct_storage_elements[0];
  if (from.nct_storage_elements[1] != 0 && to.value) {
    to.value->storage_elements = from.nct_storage_elements[1];
  }
  to.index_policy = read_policy(reader, from.index_policy);
  return to;
}

ScatterPaKvCacheBuffers read(const kvferry_scatter_pa_kv_cache_buffers& from) noexcept {
  ScatterPaKvCacheBuffers to;
  to.key = from.key;
  to.key_cache = from.key_cache;
  to.slot_mapping = from.slot_mapping;
  to.value = from.value;
  to.value_cache = from.value_cache;
  to.workspace = {from.workspace, from.workspace_bytes};
  to.error_record = record_of(from.error_record);
  return to;
}

GroupMemcpyArgs read(Reader& reader, const kvferry_group_memcpy_args& from) {
  GroupMemcpyArgs to;
  to.addr_table = reader.tensor("addr_table", from.addr_table);
  to.copy_bytes = from.copy_bytes;
  to.sizes = reader.optional("sizes", from.sizes);
  to.count = reader.optional("count", from.count);
  if (from.host_count != nullptr) to.host_count = *from.host_count;
  to.skip_null = reader.flag("skip_null", from.skip_null);
  to.checked = reader.flag("checked", from.checked);
  return to;
}

GroupMemcpyBuffers read(const kvferry_group_memcpy_buffers& from) noexcept {
  GroupMemcpyBuffers to;
  to.addr_table = from.addr_table;
  to.sizes = from.sizes;
  to.count = from.count;
  to.workspace = {from.workspace, from.workspace_bytes};
  return to;
}

GatherSelectionKvCacheArgs read(Reader& reader, const kvferry_gather_selection_kv_cache_args& from) {
  GatherSelectionKvCacheArgs to;
  to.selection_k_rope = reader.optional("selection_k_rope", from.selection_k_rope);
  to.selection_kv_cache = reader.tensor("selection_kv_cache", from.selection_kv_cache);
  to.selection_kv_block_table = reader.tensor("selection_kv_block_table", from.selection_kv_block_table);
  to.selection_kv_block_status = reader.tensor("selection_kv_block_status", from.selection_kv_block_status);
  to.selection_topk_indices = reader.tensor("selection_topk_indices", from.selection_topk_indices);
  to.full_k_rope = reader.optional("full_k_rope", from.full_k_rope);
  to.full_kv_cache = reader.tensor("full_kv_cache", from.full_kv_cache);
  to.full_kv_block_table = reader.tensor("full_kv_block_table", from.full_kv_block_table);
  to.full_kv_actual_seq = reader.tensor("full_kv_actual_seq", from.full_kv_actual_seq);
  to.full_q_actual_seq = reader.optional("full_q_actual_seq", from.full_q_actual_seq);
  to.selection_kv_actual_seq = reader.tensor("selection_kv_actual_seq", from.selection_kv_actual_seq);
  to.status_row = reader.optional("status_row", from.status_row);
  to.counters = reader.optional("counters", from.counters);
  to.fetch_counts = reader.optional("fetch_counts", from.fetch_counts);
  if (from.selection_topk_block_size != 0) to.selection_topk_block_size = from.selection_topk_block_size;
  to.q_len_mode = reader.choice("q_len_mode", from.q_len_mode, QLenMode::kAllRows);
  to.index_policy = read_policy(reader, from.index_policy);
  return to;
}

GatherSelectionKvCacheBuffers read(const kvferry_gather_selection_kv_cache_buffers& from) noexcept {
  GatherSelectionKvCacheBuffers to;
  to.selection_k_rope = from.selection_k_rope;
  to.selection_kv_cache = from.selection_kv_cache;
  to.selection_kv_block_table = from.selection_kv_block_table;
  to.selection_kv_block_status = from.selection_kv_block_status;
  to.selection_topk_indices = from.selection_topk_indices;
  to.full_k_rope = from.full_k_rope;
  to.full_kv_cache = from.full_kv_cache;
  to.full_kv_block_table = from.full_kv_block_table;
  to.full_kv_actual_seq = from.full_kv_actual_seq;
  to.full_q_actual_seq = from.full_q_actual_seq;
  to.selection_kv_actual_seq = from.selection_kv_actual_seq;
  to.status_row = from.status_row;
  to.counters = from.counters;
  to.fetch_counts = from.fetch_counts;
  to.workspace = {from.workspace, from.workspace_bytes};
  to.error_record = record_of(from.error_record);
  return to;
}

CopyBlocksArgs read(Reader& reader, const kvferry_copy_blocks_args& from) {
  CopyBlocksArgs to;
  to.caches = reader.list("caches", from.caches, from.num_caches);
  to.mapping = reader.tensor("mapping", from.mapping);
  to.count = reader.optional("count", from.count);
  to.index_policy = read_policy(reader, from.index_policy);
  return to;
}

CopyBlocksBuffers read(const kvferry_copy_blocks_buffers& from) noexcept {
  CopyBlocksBuffers to;
  to.caches = from.caches;
  to.mapping = from.mapping;
  to.count = from.count;
  to.workspace = {from.workspace, from.workspace_bytes};
  to.error_record = record_of(from.error_record);
  return to;
}

SwapBlocksArgs read(Reader& reader, const kvferry_swap_blocks_args& from) {
  SwapBlocksArgs to;
  to.src = reader.list("src", from.src, from.num_caches);
  to.dst = reader.list("dst", from.dst, from.num_caches);
  to.mapping = reader.tensor("mapping", from.mapping);
  to.count = reader.optional("count", from.count);
  to.index_policy = read_policy(reader, from.index_policy);
  return to;
}

SwapBlocksBuffers read(const kvferry_swap_blocks_buffers& from) noexcept {
  SwapBlocksBuffers to;
  to.src = from.src;
  to.dst = from.dst;
  to.mapping = from.mapping;
  to.count = from.count;
  to.workspace = {from.workspace, from.workspace_bytes};
  to.error_record = record_of(from.error_record);
  return to;
}

TransferLayersArgs read(Reader& reader, const kvferry_transfer_layers_args& from) {
  TransferLayersArgs to;
  to.key_caches = reader.list("key_caches", from.key_caches, from.num_layers);
  if (from.value_caches != nullptr) {
    to.value_caches = reader.list("value_caches", from.value_caches, from.num_layers);
  }
  to.chunk = reader.tensor("chunk", from.chunk);
  to.block_ids = reader.tensor("block_ids", from.block_ids);
  to.chunk_layout = reader.choice("chunk_layout", from.chunk_layout, ChunkLayout::kPageFirst);
  to.direction = reader.choice("direction", from.direction, TransferDirection::kChunkToPools);
  to.index_policy = read_policy(reader, from.index_policy);
  return to;
}

TransferLayersBuffers read(const kvferry_transfer_layers_buffers& from) noexcept {
  TransferLayersBuffers to;
  to.key_caches = from.key_caches;
  to.value_caches = from.value_caches;
  to.chunk = from.chunk;
  to.block_ids = from.block_ids;
  to.workspace = {from.workspace, from.workspace_bytes};
  to.error_record = record_of(from.error_record);
  return to;
}

GatherDequantArgs read(Reader& reader, const kvferry_gather_dequant_args& from) {
  GatherDequantArgs to;
  to.cache = reader.tensor("cache", from.cache);
  to.block_tables = reader.tensor("block_tables", from.block_tables);
  to.seq_lens = reader.tensor("seq_lens", from.seq_lens);
  to.out = reader.tensor("out", from.out);
  to.seq_offset = reader.optional("seq_offset", from.seq_offset);
  to.is_seq_lens_cumsum = read_cumsum(reader, from.seq_lens_mode);
  to.index_policy = read_policy(reader, from.index_policy);
  return to;
}

GatherDequantBuffers read(const kvferry_gather_dequant_buffers& from) noexcept {
  GatherDequantBuffers to;
  to.cache = from.cache;
  to.block_tables = from.block_tables;
  to.seq_lens = from.seq_lens;
  to.seq_offset = from.seq_offset;
  to.out = from.out;
  to.workspace = {from.workspace, from.workspace_bytes};
  to.error_record = record_of(from.error_record);
  return to;
}

}  // namespace kvferry::capi

using namespace kvferry;
using namespace kvferry::capi;

kvferry_status kvferry_gather_pa_kv_cache_plan(const kvferry_gather_pa_kv_cache_args* args,
                                               const kvferry_context* context, kvferry_plan** plan) {
  return make_plan(Operator::kGatherPaKvCache, args, context, plan);
}

kvferry_status kvferry_gather_pa_kv_cache_run(const kvferry_plan* plan,
                                              const kvferry_gather_pa_kv_cache_buffers* buffers,
                                              const kvferry_context* context) {
  return run_plan(Operator::kGatherPaKvCache, plan, buffers, context);
}

kvferry_status kvferry_gather_pa_kv_cache(const kvferry_gather_pa_kv_cache_args* args,
                                          const kvferry_context* context,
                                          kvferry_error_record* error_record) {
  return run_once(Operator::kGatherPaKvCache, gather_pa_kv_cache, args, context, error_record);
}

kvferry_status kvferry_scatter_pa_kv_cache_plan(const kvferry_scatter_pa_kv_cache_args* args,
                                                const kvferry_context* context, kvferry_plan** plan) {
  return make_plan(Operator::kScatterPaKvCache, args, context, plan);
}

kvferry_status kvferry_scatter_pa_kv_cache_run(const kvferry_plan* plan,
                                               const kvferry_scatter_pa_kv_cache_buffers* buffers,
                                               const kvferry_context* context) {
  return run_plan(Operator::kScatterPaKvCache, plan, buffers, context);
}

kvferry_status kvferry_scatter_pa_kv_cache(const kvferry_scatter_pa_kv_cache_args* args,
                                           const kvferry_context* context,
                                           kvferry_error_record* error_record) {
  return run_once(Operator::kScatterPaKvCache, scatter_pa_kv_cache, args, context, error_record);
}

kvferry_status kvferry_group_memcpy_plan(const kvferry_group_memcpy_args* args,
                                         const kvferry_context* context, kvferry_plan** plan) {
  return make_plan(Operator::kGroupMemcpy, args, context, plan);
}

kvferry_status kvferry_group_memcpy_run(const kvferry_plan* plan, const kvferry_group_memcpy_buffers* buffers,
                                        const kvferry_context* context) {
  return run_plan(Operator::kGroupMemcpy, plan, buffers, context);
}

kvferry_status kvferry_group_memcpy(const kvferry_group_memcpy_args* args, const kvferry_context* context) {
  const auto one_call = [](const GroupMemcpyArgs& a, const Context& c, ErrorRecord*) noexcept {
    return group_memcpy(a, c);
  };
  return run_once<kvferry_group_memcpy_args, GroupMemcpyArgs>(Operator::kGroupMemcpy, one_call, args, context,
                                                              nullptr);
}

kvferry_status kvferry_gather_selection_kv_cache_plan(const kvferry_gather_selection_kv_cache_args* args,
                                                      const kvferry_context* context, kvferry_plan** plan) {
  return make_plan(Operator::kGatherSelectionKvCache, args, context, plan);
}

kvferry_status kvferry_gather_selection_kv_cache_run(const kvferry_plan* plan,
                                                     const kvferry_gather_selection_kv_cache_buffers* buffers,
                                                     const kvferry_context* context) {
  return run_plan(Operator::kGatherSelectionKvCache, plan, buffers, context);
}

kvferry_status kvferry_gather_selection_kv_cache_schedule(
    const kvferry_plan* plan, const kvferry_gather_selection_kv_cache_buffers* buffers,
    const kvferry_context* context) {
  return run_plan(Operator::kGatherSelectionKvCache, plan, buffers, context, schedule);
}

kvferry_status kvferry_gather_selection_kv_cache_copy(
    const kvferry_plan* plan, const kvferry_gather_selection_kv_cache_buffers* buffers,
    const kvferry_context* context) {
  return run_plan(Operator::kGatherSelectionKvCache, plan, buffers, context, copy);
}

kvferry_status kvferry_gather_selection_kv_cache(const kvferry_gather_selection_kv_cache_args* args,
                                                 const kvferry_context* context,
                                                 kvferry_error_record* error_record) {
  return run_once(Operator::kGatherSelectionKvCache, gather_selection_kv_cache, args, context, error_record);
}

kvferry_status kvferry_copy_blocks_plan(const kvferry_copy_blocks_args* args, const kvferry_context* context,
                                        kvferry_plan** plan) {
  return make_plan(Operator::kCopyBlocks, args, context, plan);
}

kvferry_status kvferry_copy_blocks_run(const kvferry_plan* plan, const kvferry_copy_blocks_buffers* buffers,
                                       const kvferry_context* context) {
  return run_plan(Operator::kCopyBlocks, plan, buffers, context);
}

kvferry_status kvferry_copy_blocks(const kvferry_copy_blocks_args* args, const kvferry_context* context,
                                   kvferry_error_record* error_record) {
  return run_once(Operator::kCopyBlocks, copy_blocks, args, context, error_record);
}

kvferry_status kvferry_swap_blocks_plan(const kvferry_swap_blocks_args* args, const kvferry_context* context,
                                        kvferry_plan** plan) {
  return make_plan(Operator::kSwapBlocks, args, context, plan);
}

kvferry_status kvferry_swap_blocks_run(const kvferry_plan* plan, const kvferry_swap_blocks_buffers* buffers,
                                       const kvferry_context* context) {
  return run_plan(Operator::kSwapBlocks, plan, buffers, context);
}

kvferry_status kvferry_swap_blocks(const kvferry_swap_blocks_args* args, const kvferry_context* context,
                                   kvferry_error_record* error_record) {
  return run_once(Operator::kSwapBlocks, swap_blocks, args, context, error_record);
}

kvferry_status kvferry_transfer_layers_plan(const kvferry_transfer_layers_args* args,
                                            const kvferry_context* context, kvferry_plan** plan) {
  return make_plan(Operator::kTransferLayers, args, context, plan);
}

kvferry_status kvferry_transfer_layers_run(const kvferry_plan* plan,
                                           const kvferry_transfer_layers_buffers* buffers,
                                           const kvferry_context* context) {
  return run_plan(Operator::kTransferLayers, plan, buffers, context);
}

kvferry_status kvferry_transfer_layers(const kvferry_transfer_layers_args* args,
                                       const kvferry_context* context, kvferry_error_record* error_record) {
  return run_once(Operator::kTransferLayers, transfer_layers, args, context, error_record);
}

kvferry_status kvferry_gather_dequant_plan(const kvferry_gather_dequant_args* args,
                                           const kvferry_context* context, kvferry_plan** plan) {
  return make_plan(Operator::kGatherDequant, args, context, plan);
}

kvferry_status kvferry_gather_dequant_run(const kvferry_plan* plan,
                                          const kvferry_gather_dequant_buffers* buffers,
                                          const kvferry_context* context) {
  return run_plan(Operator::kGatherDequant, plan, buffers, context);
}

kvferry_status kvferry_gather_dequant(const kvferry_gather_dequant_args* args, const kvferry_context* context,
                                      kvferry_error_record* error_record) {
  return run_once(Operator::kGatherDequant, gather_dequant, args, context, error_record);
}
