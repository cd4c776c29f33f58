// SPDX-License-Identifier: Apache-2.0
//
// The structs of each operator, from C to C++. What is wrong with them, the reader knows.
#pragma once

#include "capi/reader.hpp"
#include "kvferry/kvferry.h"
#include "kvferry/ops/copy_blocks.hpp"
#include "kvferry/ops/gather_dequant.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"
#include "kvferry/ops/gather_selection_kv_cache.hpp"
#include "kvferry/ops/group_memcpy.hpp"
#include "kvferry/ops/scatter_pa_kv_cache.hpp"
#include "kvferry/ops/swap_blocks.hpp"
#include "kvferry/ops/transfer_layers.hpp"

namespace kvferry::capi {

// Lists of the results live in the reader.
GatherPaKvCacheArgs read(Reader& reader, const kvferry_gather_pa_kv_cache_args& from);
ScatterPaKvCacheArgs read(Reader& reader, const kvferry_scatter_pa_kv_cache_args& from);
GroupMemcpyArgs read(Reader& reader, const kvferry_group_memcpy_args& from);
GatherSelectionKvCacheArgs read(Reader& reader, const kvferry_gather_selection_kv_cache_args& from);
CopyBlocksArgs read(Reader& reader, const kvferry_copy_blocks_args& from);
SwapBlocksArgs read(Reader& reader, const kvferry_swap_blocks_args& from);
TransferLayersArgs read(Reader& reader, const kvferry_transfer_layers_args& from);
GatherDequantArgs read(Reader& reader, const kvferry_gather_dequant_args& from);

GatherPaKvCacheBuffers read(const kvferry_gather_pa_kv_cache_buffers& from) noexcept;
ScatterPaKvCacheBuffers read(const kvferry_scatter_pa_kv_cache_buffers& from) noexcept;
GroupMemcpyBuffers read(const kvferry_group_memcpy_buffers& from) noexcept;
GatherSelectionKvCacheBuffers read(const kvferry_gather_selection_kv_cache_buffers& from) noexcept;
CopyBlocksBuffers read(const kvferry_copy_blocks_buffers& from) noexcept;
SwapBlocksBuffers read(const kvferry_swap_blocks_buffers& from) noexcept;
TransferLayersBuffers read(const kvferry_transfer_layers_buffers& from) noexcept;
GatherDequantBuffers read(const kvferry_gather_dequant_buffers& from) noexcept;

}  // namespace kvferry::capi
