# SPDX-License-Identifier: Apache-2.0
"""Planted defects: each must be caught by the tests of `make test`.

A defect is a text of one source file, which must occur there exactly once (white space does not count), and what stands
there instead. When a change moves the text, move the defect with it.
"""
from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str
    find: str
    replace: str
    tests: str  # regular expression of the ctest tests that should notice


GATHER = "src/ops/gather_pa_kv_cache/gather_pa_kv_cache_cpu.cpp"
READS = "src/ops/paged_reads.cpp"
RUNS = "src/ops/paged_reads.hpp"
SCATTER = "src/ops/scatter_pa_kv_cache/scatter_pa_kv_cache_cpu.cpp"
SELECTION = "src/ops/gather_selection_kv_cache/gather_selection_kv_cache_cpu.cpp"
SCHEDULE = "src/ops/gather_selection_kv_cache/gather_selection_kv_cache_schedule.cpp"
IDS = "src/backends/cpu/ids.hpp"
IDS_AVX512 = "src/backends/cpu/ids_avx512.cpp"
MEMCPY = "src/ops/group_memcpy/group_memcpy_cpu.cpp"
BLOCKS = "src/ops/block_copy.cpp"
BLOCKS_HPP = "src/ops/block_copy.hpp"
ENTRIES = "src/ops/index_entries.hpp"
LAYERS = "src/ops/transfer_layers/transfer_layers_cpu.cpp"
LAYERS_PLAN = "src/ops/transfer_layers/transfer_layers_plan.cpp"
DEQUANT = "src/ops/gather_dequant/gather_dequant_cpu.cpp"
DEQUANT_HPP = "src/backends/cpu/dequant.hpp"
DEQUANT_AVX2 = "src/backends/cpu/dequant_avx2.cpp"
DEQUANT_AVX512 = "src/backends/cpu/dequant_avx512.cpp"
DEQUANT_GENERIC = "src/backends/cpu/dequant_generic.cpp"
PAGED = "src/ops/paged_layout.cpp"
LAYOUT = "src/core/layout.cpp"
VECTOR = "src/backends/cpu/vector_copy.hpp"
MOVE_HPP = "src/backends/cpu/move.hpp"
POOL = "src/backends/cpu/parallel_for.cpp"
STREAM = "src/backends/cpu/stream.cpp"
CONTEXT = "src/core/context.cpp"
BUFFER = "src/backends/cpu/host_buffer.cpp"
CAPI = "src/capi/operators.cpp"
CAPI_READER = "src/capi/reader.cpp"
CAPI_HANDLES = "src/capi/handles.cpp"
ACL_EXECUTOR = "compat/acl/acl_executor"
ACL_STREAM = "compat/acl/acl_backend_cpu.cpp"
CUDA_TRANSFER = "src/ops/block_copy_cuda.cpp"
CUDA_GATHER = "src/backends/cuda/paged_gather.hpp"
CUDA_LOOP = "src/backends/cuda/paged_loop.hpp"
CUDA_SCATTER = "src/backends/cuda/paged_scatter.hpp"
CUDA_REPORT = "src/backends/cuda/scatter_report.hpp"
CUDA_FIRST_USE = "src/backends/cuda/first_use.hpp"
CUDA_DEQUANT = "src/backends/cuda/paged_dequant.hpp"
CUDA_INDICES = "src/backends/cuda/indices.hpp"
CUDA_MOVER = "src/backends/cuda/mover.hpp"
CUDA_READS = "src/backends/cuda/paged_reads.hpp"
EMULATED_GATHER = "emulated.gather_pa_kv_cache"
CUDA_MEMCPY = "src/backends/cuda/group_copy.hpp"
CUDA_BLOCKS = "src/backends/cuda/block_copy.hpp"
CUDA_LAYERS = "src/backends/cuda/layer_transfer.hpp"
EMULATED_SCATTER = "emulated.scatter_pa_kv_cache"
EMULATED_DEQUANT = "emulated.gather_dequant"
CUDA_SELECTION = "src/backends/cuda/selection_planner.hpp"
CUDA_SELECTION_COPY = "src/backends/cuda/selection_copy.hpp"
CUDA_STATES = "src/backends/cuda/selection_states.hpp"
CUDA_TABLE = "src/backends/cuda/id_table.hpp"
CHECKER = "tests/cuda_emulation/checker.cpp"

MUTANTS = [
    # gather
    Mutant("off-by-one slot", GATHER, "slot * side.slot_step, dst, tokens)", "(slot + 1) % plan.reads.block_size * side.slot_step, dst, tokens)", "gather"),
    Mutant("32-bit cache offset", GATHER, "cache + id * side.block_step", "cache + static_cast<std::int32_t>(id * side.block_step)", "gather"),
    Mutant("32-bit row offset", GATHER, "row * side.row_step", "static_cast<std::int32_t>(row * side.row_step)", "gather"),
    Mutant("table read past the row", RUNS, "if (column >= 0 && column < reads.table_width) {", "if (column >= 0) {", "gather"),
    Mutant("block count of the key used for the value", GATHER, "id < side.blocks", "id < plan.key.blocks", "gather"),
    Mutant("an empty sequence ends the loop", READS, "if (beg >= end) continue;", "if (beg >= end) break;", "gather"),
    Mutant("remainder of the offset used as slot", READS, "s.slot = static_cast<std::int64_t>(skipped % reads.block_size);", "s.slot = static_cast<std::int64_t>(skipped % reads.block_size) + (reads.has_offset ? reads.seq_offset.at(pointers.seq_offset, i) % reads.block_size : 0);", "gather"),
    Mutant("sum of lengths wraps", READS, "length > reads.rows - run ? reads.rows : run + length", "static_cast<std::int64_t>(static_cast<std::uint64_t>(run) + static_cast<std::uint64_t>(length))", "gather"),
    Mutant("bad ids leave the rows alone", GATHER, "mover.zero(dst, tokens);", "(void)dst;", "gather"),
    Mutant("record keeps the last bad entry", READS, "if (first || std::pair(batch, column) < std::pair(record.batch, record.column)) {", "if (first || std::pair(batch, column) > std::pair(record.batch, record.column)) {", "gather"),
    Mutant("decreasing sums accepted by reject", READS, "if (length(i + 1) < length(i)) {", "if (length(i + 1) < 0) {", "gather"),
    # scatter
    Mutant("slot -1 overwrites the last slot", SCATTER, "const std::int64_t slot = plan.slot_mapping.at(buffers.slot_mapping, begin);\n    if (slot < 0 ||", "std::int64_t slot = plan.slot_mapping.at(buffers.slot_mapping, begin);\n    if (slot < 0) slot += slots;\n    if (slot < 0 ||", "scatter"),
    Mutant("run of slots by its ends only", SCATTER, "while (tokens < most && plan.slot_mapping.at(buffers.slot_mapping, begin + tokens) == slot + tokens) ++tokens;", "if (plan.slot_mapping.at(buffers.slot_mapping, begin + most - 1) == slot + most - 1) tokens = most;", "scatter"),
    Mutant("32-bit slot offset", SCATTER, "cache + block * side.block_step + position", "cache + static_cast<std::int32_t>(block * side.block_step) + position", "scatter"),
    Mutant("slots of the key used for the value", SCATTER, "side, key ? plan.key_slots : plan.value_slots,", "side, plan.key_slots,", "scatter"),
    # selection
    Mutant("selection: no refresh window", SCHEDULE, "const std::int64_t stable = (lengths_.kv - std::max<std::int64_t>(lengths_.q, 0)) / bs;", "const std::int64_t stable = lengths_.kv / bs;", "selection"),
    Mutant("selection: old partial block trusted", IDS, "static_cast<std::int32_t>(i != s.except)", "static_cast<std::int32_t>(i != s.except || i >= 0)", "selection"),
    Mutant("selection: old partial block trusted, avx512", IDS_AVX512, "_mm512_mask_cmpneq_epi32_mask(there, places, except)", "there", "selection"),
    Mutant("selection: no refresh window, avx512", IDS_AVX512, "_mm512_mask_cmplt_epi32_mask(", "_mm512_mask_cmple_epi32_mask(", "selection"),
    Mutant("selection: second probe missing, avx512", IDS_AVX512, "open = static_cast<__mmask16>(open & ~equal);", "open = 0;", "selection"),
    Mutant("selection: probes do not wrap, avx512", IDS_AVX512, "_mm512_and_si512(_mm512_add_epi32(at, one), last_entry)", "_mm512_add_epi32(at, one)", "ids"),
    Mutant("selection: places behind the list, avx512", IDS_AVX512, "_mm512_mask_cmpge_epu32_mask(there, v, bound)", "_mm512_cmpge_epu32_mask(v, bound)", "ids"),
    Mutant("selection: bad page fetched", SCHEDULE, "if (resident_[j] != kMiss || static_cast<std::uint32_t>(page) >= full_pages)", "if (resident_[j] != kMiss || page < 0)", "selection"),
    Mutant("selection: missing page of slots filled", SCHEDULE, "!groups_misses() && !lacks_pages_ && writes_", "!groups_misses() && writes_", "selection"),
    Mutant("selection: column beyond the table read", SCHEDULE, "ids_per_page_.quotient(num_ids_ - 1) < plan_.full.columns;", "true;", "selection"),
    Mutant("selection: long partial block is not last", SCHEDULE, "const std::int32_t tail_index = tail_ < bs ?", "const std::int32_t tail_index = tail_ < bs - 1 ?", "selection"),
    Mutant("selection: status_row ignored for the status", SCHEDULE, "+ plan_.state.row(state_);", "+ plan_.state.row(row_);", "selection"),
    Mutant("selection: status_row ignored for the table", SCHEDULE, "plan_.selection_table.at(buffers_.selection_kv_block_table, state_, c);", "plan_.selection_table.at(buffers_.selection_kv_block_table, row_, c);", "selection"),
    Mutant("selection: repeated status_row runs twice", SCHEDULE, "if ((seen[row / 64] & bit) != 0) bad = kBadDuplicate;", "if ((seen[row / 64] & bit) != 0) bad = 0;", "selection"),
    Mutant("selection: repeated id stored twice", SCHEDULE, "n += table.find_or_insert(id, n, ids) < 0 ? 1 : 0;", "table.find_or_insert(id, n, ids); ++n;", "selection"),
    Mutant("selection: negative id skipped instead of ending the list", SCHEDULE, "if (id < 0) break;", "", "selection"),
    Mutant("selection: slot n-1 overwritten before it is moved", SELECTION, "if (schedule->leaving > 0) {", "copy_claims(plan, buffers, context, kernels, part<std::int64_t>(schedule, plan.parts.ends)[plan.batches], [&](std::int64_t begin, std::int64_t end, SideCopier& copier) { for_each_copy(plan, schedule, begin, end, [&](const SelectionCopy& c) { copier.copy(c); }); });\n  if (schedule->leaving > 0) {", "selection"),
    Mutant("selection: stale ids behind n", SCHEDULE, "for (std::int64_t p = n_; p < plan_.k; ++p)", "for (std::int64_t p = n_ + 1; p < plan_.k; ++p)", "selection"),
    Mutant("selection: drafts see the newest token", SCHEDULE, "s < lengths_.q ? lengths_.kv - (lengths_.q - 1 - s) : lengths_.kv;", "s < lengths_.q ? lengths_.kv - (lengths_.q - 1 - std::max<std::int64_t>(s, 1)) : lengths_.kv;", "selection"),
    Mutant("selection: sums of query tokens read as counts", SCHEDULE, "l.q -= plan.q_len.at(buffers.full_q_actual_seq, b - 1);", "l.q -= 0 * plan.q_len.at(buffers.full_q_actual_seq, b - 1);", "selection"),
    Mutant("selection: first miss fetched by every row", SCHEDULE, "if (first >= 0) {\n      miss.first = false;", "if (first > 0) {\n      miss.first = false;", "selection"),
    Mutant("selection: shared miss lost at the border of a claim", SELECTION, "while (stop < size && !list[stop].starts_group) ++stop;", "", "selection"),
    Mutant("selection: slot of a bad entry trusted", SCHEDULE, "store_status(slot, bad == 0 ? id : -1);", "store_status(slot, id);", "selection"),
    Mutant("selection: resident on a page that went", SCHEDULE, "if (lacks_pages_ && pages_[slots_per_page_.quotient(right_[i])] < 0) continue;", "", "selection"),
    Mutant("selection: highest slot of an id", SCHEDULE, "for (std::int32_t i = found; i-- > 0;) {", "for (std::int32_t i = 0; i < found; ++i) {", "selection"),
    Mutant("selection: length beyond the row", SCHEDULE, "static_cast<std::int32_t>(std::min(plan_.k, ceil_div(length, bs)));", "static_cast<std::int32_t>(ceil_div(length, bs));", "selection"),
    Mutant("selection: page size of the full cache for the slots", SCHEDULE, "copy.dst_block = slots_per_page_.remainder(slot, column);", "copy.dst_block = ids_per_page_.remainder(slot, column);", "selection"),
    Mutant("selection: partial block written whole", SCHEDULE, "copy.tokens = id == num_ids_ - 1 ? tail_ : static_cast<std::int32_t>(plan_.block_tokens);", "copy.tokens = static_cast<std::int32_t>(plan_.block_tokens);", "selection"),
    Mutant("selection: output of an inactive row kept", SCHEDULE, "if (state_ < 0 || visible <= 0) return finish_row(0);", "if (state_ < 0 || visible <= 0) return;", "selection"),
    Mutant("selection: output of extra rows kept", SCHEDULE, "for (std::int64_t r = plan.rows; r < plan.output_rows; ++r)", "for (std::int64_t r = plan.rows + 1; r < plan.output_rows; ++r)", "selection"),
    Mutant("selection: refused schedule stays", SCHEDULE, "schedule->plan_id = 0;\n", "", "selection"),
    Mutant("selection: schedule of another plan copied", SELECTION, "} else if (schedule->plan_id != plan.id) {", "} else if (schedule->plan_id == 0) {", "selection"),
    Mutant("selection: 32-bit offset into the full cache", SELECTION, "side_.full.base + c.src_page * side_.full.page_step", "side_.full.base + static_cast<std::int32_t>(c.src_page * side_.full.page_step)", "selection"),
    Mutant("selection: 32-bit offset into the selection", SELECTION, "side_.selection.base + page * side_.selection.page_step", "side_.selection.base + static_cast<std::int32_t>(page * side_.selection.page_step)", "selection"),
    Mutant("first repeat not found", ENTRIES, "for (std::size_t i = 1; i < uses.size(); ++i) {", "for (std::size_t i = 2; i < uses.size(); ++i) {", "scatter|transfer_layers"),
    # group_memcpy
    Mutant("write past W", MEMCPY, "std::memcpy(to, from, static_cast<std::size_t>(bytes));", "std::memcpy(to, from, static_cast<std::size_t>((bytes + 7) / 8 * 8));", "group_memcpy"),
    Mutant("last pair lost", MEMCPY, "std::min(begin + split.units_per_claim, units);", "std::min(begin + split.units_per_claim, units - 1);", "group_memcpy"),
    Mutant("null destination not skipped", MEMCPY, "(src == nullptr || dst == nullptr)", "src == nullptr", "group_memcpy"),
    Mutant("count above the table", "src/ops/group_memcpy/group_memcpy_plan.hpp", "std::clamp<std::int64_t>(p.count.at(b.count, 0), 0, p.pairs)", "std::max<std::int64_t>(p.count.at(b.count, 0), 0)", "group_memcpy"),
    Mutant("negative size skipped instead of refused", MEMCPY, "if (size < 0) return refuse(", "if (size < kInt64Min + 1) return refuse(", "group_memcpy"),
    Mutant("overlap with the next source not seen", MEMCPY, "end(*(at - 1)) > begin", "end(*(at - 1)) > begin + 1", "group_memcpy"),
    # copy_blocks and swap_blocks
    Mutant("run of blocks by its ends only", BLOCKS, "for (; n < most; ++n) {", "if (most > 1) { const Pair end = call_.at(p + most - 1); if (end.src == pair.src + most - 1 && end.dst == pair.dst + most - 1) return most; }\n    for (; n < most; ++n) {", "copy_blocks|swap_blocks"),
    Mutant("run of sources only", BLOCKS, "if (next.src != pair.src + n || next.dst != pair.dst + n) break;", "if (next.src != pair.src + n) break;", "copy_blocks|swap_blocks"),
    Mutant("blocks taken for neighbours by the source's stride", "src/ops/block_copy.hpp", "nest.loop_count == 0 && src_step == bytes && dst_step == bytes", "nest.loop_count == 0 && src_step == bytes", "copy_blocks|swap_blocks"),
    Mutant("32-bit source block offset", BLOCKS, "src + pair.src * cache.src_step", "src + static_cast<std::int32_t>(pair.src * cache.src_step)", "copy_blocks|swap_blocks"),
    Mutant("32-bit destination block offset", BLOCKS, "dst + pair.dst * cache.dst_step", "dst + static_cast<std::int32_t>(pair.dst * cache.dst_step)", "copy_blocks|swap_blocks"),
    Mutant("32-bit byte of the work", BLOCKS, "const std::int64_t begin = claim * split.units_per_claim * kLine;", "const std::int64_t begin = static_cast<std::int32_t>(claim * split.units_per_claim * kLine);", "copy_blocks|swap_blocks"),
    Mutant("block -1 of the destination is the last one", BLOCKS_HPP, "return pair.src < 0 || pair.dst < 0;", "return pair.src < 0;", "copy_blocks|swap_blocks"),
    Mutant("destination judged by the source's pool", BLOCKS_HPP, "(pair.dst >= plan.dst_blocks ? kBadDestination : 0)", "(pair.dst >= plan.src_blocks ? kBadDestination : 0)", "copy_blocks|swap_blocks"),
    Mutant("each part of a block is its first", BLOCKS, "return copy_piece(src + at, dst + at, bytes);", "return copy_piece(src, dst, bytes);", "copy_blocks|swap_blocks"),
    Mutant("rows beyond the inner loop", BLOCKS, "left = inner.count - row % inner.count;", "left = inner.count;", "copy_blocks|swap_blocks"),
    Mutant("an empty cache shifts the others", BLOCKS, "body.caches.push_back(make_cache(i, a.src[i], a.dst[i]));", "body.caches.push_back(make_cache(body.caches.size(), a.src[i], a.dst[i]));", "copy_blocks|swap_blocks"),
    Mutant("last line of the work lost", BLOCKS, "return ceil_div(pairs * plan.first_byte.back(), kLine);", "return pairs * plan.first_byte.back() / kLine;", "copy_blocks|swap_blocks"),
    Mutant("source that is a destination not seen", BLOCKS, "call.plan.one_pool() ? destinations.first(pair.src) : -1,", "-1,", "copy_blocks|swap_blocks"),
    Mutant("no-ops take their block", BLOCKS_HPP, "out_of_range(pair) == 0 && !(plan.one_pool() && pair.src == pair.dst)", "out_of_range(pair) == 0", "copy_blocks|swap_blocks"),
    # transfer_layers
    Mutant("32-bit block offset", LAYERS, "pool.base + id * pool.block_step", "pool.base + static_cast<std::int32_t>(id * pool.block_step)", "transfer_layers"),
    Mutant("id -1 overwrites the last block", LAYERS, "const std::int64_t id = plan.block_ids.at(buffers.block_ids, entry);\n    if (!plan.to_chunk", "std::int64_t id = plan.block_ids.at(buffers.block_ids, entry);\n    if (id == -1) id = plan.blocks - 1;\n    if (!plan.to_chunk", "transfer_layers"),
    Mutant("layers and entries change places in page-first chunks", LAYERS, "const std::int64_t inner = plan.page_first ? plan.layers : plan.entries;", "const std::int64_t inner = plan.entries;", "transfer_layers"),
    Mutant("bad ids leave the chunk alone", LAYERS, "mover->zero(place + at_target, tokens);", "", "transfer_layers"),
    Mutant("strides of the first layer for all", LAYERS_PLAN, "if (a.dim(axis) > 1 && a.stride(axis) != b.stride(axis)) return false;", "if (a.dim(axis) > 1 && a.stride(axis) < b.stride(axis)) return false;", "transfer_layers"),
    Mutant("negative ids are bad when pools are written", LAYERS, "return plan.to_chunk ? !in_range(plan, id) : id >= plan.blocks;", "return !in_range(plan, id);", "transfer_layers"),
    Mutant("the one-call form drops its list of pools", LAYERS_PLAN, "std::shared_ptr<const PlanBody>(call, call->plan.body().get())", "call->plan.body()", "api"),
    # gather_dequant
    Mutant("ties away from zero", DEQUANT_AVX2, "_mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))", "_mm256_add_epi32(_mm256_setzero_si256(), _mm256_set1_epi32(0x8000))", "gather_dequant"),
    Mutant("ties away from zero in plain C++", DEQUANT_GENERIC, "bits + 0x7fffU + (bits >> 16 & 1U)", "bits + 0x8000U", "gather_dequant"),
    Mutant("subnormal codes are zero", DEQUANT_GENERIC, "static_cast<float>(mantissa) / 512.0F", "static_cast<float>(mantissa) * 0.0F", "gather_dequant"),
    Mutant("NaN keeps its sign", DEQUANT_GENERIC, "nan ? 0x7fc0U : rounded", "nan ? 0x7fc0U | (bits >> 16 & 0x8000U) : rounded", "gather_dequant"),
    Mutant("NaN code is 480", DEQUANT_AVX2, "_mm256_or_si256(_mm256_or_si256(value, sign), nan)", "_mm256_or_si256(value, sign)", "gather_dequant"),
    Mutant("hidden bit for subnormal codes", DEQUANT_AVX2, "_mm256_blendv_epi8(normal, _mm256_shuffle_epi8(table, bytes), is_subnormal)", "normal", "gather_dequant"),
    Mutant("avx512: ties to zero", DEQUANT_AVX512, "_mm512_mask_sub_epi32(up, odd, up, _mm512_set1_epi32(-1))", "_mm512_mask_sub_epi32(up, odd & 0, up, _mm512_set1_epi32(-1))", "gather_dequant"),
    Mutant("avx512: NaN products keep their bits", DEQUANT_AVX512, "return _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));", "return _mm512_mask_mov_epi32(rounded, nan, bits);", "gather_dequant"),
    Mutant("avx512: sign of odd values lost", DEQUANT_AVX512, "_mm512_set1_epi16(-0x8000), 0xf8)", "_mm512_set1_epi32(0x8000), 0xf8)", "gather_dequant"),
    Mutant("avx512: end of a group lost", DEQUANT_AVX512, "i < group + Row::kGroup; i += 32) {", "i < group + Row::kGroup - 32; i += 32) {", "gather_dequant"),
    Mutant("streaming stores into rows that are not aligned", DEQUANT_HPP, "reinterpret_cast<std::uintptr_t>(dst) |", "reinterpret_cast<std::uintptr_t>(dst) * 0 |", "gather_dequant"),
    Mutant("only the first streamed row is aligned", DEQUANT_HPP, "| static_cast<std::uintptr_t>(dst_step)", "| static_cast<std::uintptr_t>(dst_step) * 0", "gather_dequant"),
    Mutant("avx512: streaming stores into half lines", DEQUANT_HPP, "static_cast<std::uintptr_t>(dst_step)) % 64 == 0", "static_cast<std::uintptr_t>(dst_step)) % 32 == 0", "gather_dequant"),
    Mutant("end of the rope lost", DEQUANT_AVX2, "i < Row::kRopeBytes; i += 32", "i < Row::kRopeBytes - 32; i += 32", "gather_dequant"),
    Mutant("the caller's float environment", DEQUANT, "std::fesetenv(FE_DFL_ENV);", "", "gather_dequant"),
    Mutant("bad ids leave the row alone", DEQUANT, "std::memset(dst, 0, Row::kOutBytes);", "", "gather_dequant"),
    # layouts and kernels
    Mutant("head stride taken as dense", PAGED, "{rows.dim(1), step(cache, head_axis), step(rows, 1)}", "{rows.dim(1), rows.dim(2), step(rows, 1)}", "gather|scatter"),
    Mutant("slot stride that matches by coincidence", LAYOUT, "return nest.loop_count == 0 ? MoveKind::kDense : MoveKind::kPlanes;", "return MoveKind::kDense;", "gather|scatter"),
    Mutant("only the source decides what is dense", LAYOUT, "if (move.src_token_step == nest.piece && move.dst_token_step == nest.piece) {", "if (move.src_token_step == nest.piece) {", "gather|scatter"),
    Mutant("bytes behind the last line lost", VECTOR, "if (left > 0) std::memcpy(dst, src, static_cast<std::size_t>(left));", "", "gather_pa|scatter|group"),
    Mutant("lines behind the last step lost", VECTOR, "dst += kLine, src += kLine) copy_line<Store>(dst, src);", "dst += kLine, src += kLine) {}", "gather_pa|scatter|group"),
    Mutant("odd FRACTAL_NZ column lost", VECTOR, "if (columns != even_columns)", "if (columns < even_columns)", "gather_pa|scatter"),
    Mutant("last FRACTAL_NZ run lost", MOVE_HPP, "~Mover() { transpose_waiting(nullptr); }", "", "gather_pa|scatter"),
    Mutant("streaming store on a half line", VECTOR, "const bool streams = nontemporal && to_line(dst) == 0 && dst_pitch % kLine == 0;", "const bool streams = nontemporal;", "gather|scatter"),
    Mutant("odd FRACTAL_NZ row lost", VECTOR, "if (rows != even_rows)", "if (rows < even_rows)", "gather_pa|scatter"),
    Mutant("rows behind the first part lost", VECTOR, "for (std::int64_t r = 0; r < rows; r += kTuning.transpose_rows) {", "for (std::int64_t r = 0; r < std::min(rows, kTuning.transpose_rows); r += kTuning.transpose_rows) {", "gather_pa|scatter"),
    Mutant("last group of columns incomplete", VECTOR, "const std::int64_t end = std::min(c + group, even_columns);", "const std::int64_t end = c + group <= even_columns ? c + group : c;", "gather_pa|scatter"),
    # threads and streams
    Mutant("last claim lost", POOL, "return {ceil_div(units, units_per_claim), units_per_claim, bytes};", "return {units / units_per_claim, units_per_claim, bytes};", "gather|scatter|group_memcpy"),
    Mutant("caller does not wait", POOL, "done_.load(std::memory_order_acquire) != claims; ++spins)", "done_.load(std::memory_order_acquire) < claims - 1; ++spins)", ""),
    Mutant("helpers are not bound", POOL, "bind_this_thread(cpus_);", "(void)cpus_;", "parallel_for"),
    Mutant("a forked child uses its parent's helpers", CONTEXT, "if (state->process == getpid()) return state;", "if (state->process != 0) return state;", "fork"),
    Mutant("a forked child waits for its parent's stream", STREAM, "if (process == getpid()) return {};", "if (process != 0) return {};", "fork"),
    Mutant("touching pages erases them", BUFFER, "__atomic_fetch_or(", "__atomic_fetch_and(", "host_buffer"),
    Mutant("the last page is not touched", BUFFER, "internal::ceil_div(end, kHugePage), [&]", "end / kHugePage, [&]", "host_buffer"),
    Mutant("refusal told twice", STREAM, "std::exchange(first_error, Status())", "first_error", "api|gather"),
    # the C API
    Mutant("an older caller's struct is read to its end", CAPI_READER, "return std::min(known, size);", "return known;", "capi"),
    Mutant("what a newer caller asks for is ignored", CAPI_READER, "[](auto b) { return b != 0; }", "[](auto b) { return b == 256; }", "capi"),
    Mutant("byte_offset lost", CAPI_READER, "view.offset = offset;", "view.offset = 0;", "capi"),
    Mutant("enumerations wrap in 32 bits", CAPI_READER, "if (value >= 0 && value <= last) return value;", "if (static_cast<std::int32_t>(value) >= 0 && static_cast<std::int32_t>(value) <= last) return value;", "capi"),
    Mutant("value storage of Nct is the key's", CAPI, "to.value->storage_elements = from.nct_storage_elements[1];", "to.value->storage_elements = from.nct_storage_elements[0];", "capi"),
    Mutant("a failed plan leaves the caller's pointer", CAPI, "*plan_out = nullptr;", "", "capi"),
    Mutant("one last error for all threads", CAPI_HANDLES, "thread_local Status last_error;", "Status last_error;", "capi"),
    # the ACL front end
    Mutant("acl: an executor survives its run", ACL_EXECUTOR + ".cpp", "call = std::move(found->call); executors_.erase(to_serial(executor));", "call = found->call->clone();", "acl"),
    Mutant("acl: written operands counted with the others", ACL_EXECUTOR + ".hpp", "if (written_only && !operands_[i].written) continue;", "", "acl"),
    Mutant("acl: an operand that was null is added", ACL_EXECUTOR + ".hpp", "if ((present_ >> i & 1U) == 0) return false;", "", "acl"),
    Mutant("acl: a failure is told twice", ACL_STREAM, "return std::exchange(failure_, Status());", "return failure_;", "acl"),
    Mutant("acl: a later record releases who waits for an earlier one", ACL_STREAM, "auto record = std::make_shared<Record>();", "auto record = last_ != nullptr ? last_ : std::make_shared<Record>();", "acl"),
    Mutant("acl: the offset of a view is lost", "compat/acl/acl_phase_one.cpp", "tensor.strides, tensor.offset);", "tensor.strides, 0);", "acl"),
    # CUDA kernels, and the emulation that runs them
    Mutant("cuda: a part of a page goes beyond it", CUDA_LOOP, "least(least(part_end, page_end), s.slot + s.tokens)", "least(least(part_end, page_end + 1), s.slot + s.tokens)", EMULATED_GATHER),
    Mutant("cuda: the first page starts at slot 0", CUDA_LOOP, "most(part_begin, s.slot)", "part_begin", EMULATED_GATHER),
    Mutant("cuda: 32-bit cache offset", CUDA_GATHER, "src = side.cache.get() + run.id * side.block_step", "src = side.cache.get() + static_cast<std::uint32_t>(run.id * side.block_step)", EMULATED_GATHER),
    Mutant("cuda: a batch of no tokens takes the task of the next", CUDA_LOOP, "middle) <= task", "middle) < task + (middle == 1)", EMULATED_GATHER),
    Mutant("cuda: table columns are not checked", CUDA_LOOP, "column >= 0 && column < p.reads.table_width", "column >= 0", EMULATED_GATHER),
    Mutant("cuda: vectors as wide as the destination allows", CUDA_MOVER, "lowest_bit((to ^ from) | kVector)", "kVector", EMULATED_GATHER),
    Mutant("cuda: the last vectors of a line are not guarded", CUDA_MOVER, "if (at < count) x.store_once", "x.store_once", EMULATED_GATHER),
    Mutant("cuda: the vectors behind a line are read", CUDA_MOVER, "if (at < count && src != nullptr) {", "if (src != nullptr) {", EMULATED_GATHER),
    Mutant("cuda: lengths are not clamped at N", CUDA_READS, "length_sum = least(length_sum + total, r.rows)", "length_sum += total + total % 2", EMULATED_GATHER),
    Mutant("cuda: the record has the last entry", CUDA_INDICES, "batch < batch_ ||", "batch > batch_ ||", EMULATED_GATHER),
    Mutant("cuda: bad entries are counted without atomics", CUDA_INDICES, "x.atomic_add(sh.bad, 0, bad_)", "sh.bad.set(0, sh.bad[0] + bad_)", EMULATED_GATHER),
    Mutant("cuda: a pinned tensor keeps its host address", "src/ops/cuda_implementation.hpp", "return found.ok() ? static_cast<T*>(found.value()) : nullptr;", "return pointer;", EMULATED_GATHER),
    Mutant("cuda: null destination not skipped", CUDA_MEMCPY, "return src == 0 || dst == 0;", "return src == 0;", "emulated.group_memcpy"),
    Mutant("cuda: negative sizes summed", CUDA_MEMCPY, "size < 0 ? kTooHigh : size >> 32", "size >> 32", "emulated.group_memcpy"),
    Mutant("cuda: the sum behind the last pair read", CUDA_MEMCPY, "mine + 1 < pairs ?", "mine < pairs ?", "emulated.group_memcpy|host_tables"),
    Mutant("cuda: an item is lost behind a skipped pair", "src/backends/cuda/turns.hpp", "(count_ - inner_ + step_ - 1) / step_", "(count_ - inner_ + step_) / step_", "emulated.(group_memcpy|copy_blocks|swap_blocks)"),
    Mutant("cuda: 32-bit block offset", CUDA_BLOCKS, "pair.dst * p.shape.dst_step", "static_cast<std::int32_t>(pair.dst * p.shape.dst_step)", "emulated.(copy_blocks|swap_blocks)"),
    Mutant("cuda: destination judged by the source's pool", CUDA_BLOCKS, "pair.dst >= dst_blocks ?", "pair.dst >= src_blocks ?", "emulated.swap_blocks"),
    Mutant("cuda: blocks reported before all are in the table", CUDA_BLOCKS, "p.destinations.add(x, pair.dst, i);\n    }\n    x.sync();", "p.destinations.add(x, pair.dst, i);\n    }", "emulated.(copy_blocks|swap_blocks)"),
    Mutant("cuda: a part of a block goes beyond it", CUDA_LAYERS, "least(std::int64_t{1} << p.part_shift, p.block_size - slot)", "std::int64_t{1} << p.part_shift", "emulated.transfer_layers"),
    Mutant("cuda: padding names a block", CUDA_LAYERS, "return id >= 0 && id < blocks;", "return id < blocks;", "emulated.transfer_layers"),
    Mutant("cuda: padded blocks taken for one piece by dma", CUDA_TRANSFER, "if (cache.joined() && pair.src", "if (pair.src", "host_tables"),
    Mutant("cuda: dma joins what follows on one side", CUDA_TRANSFER, "pair.src == first.src + blocks && pair.dst == first.dst + blocks", "pair.src == first.src + blocks", "host_tables"),
    Mutant("cuda: staged caches lie on each other", CUDA_TRANSFER, "staging.data + c * stride", "staging.data + 0 * stride", "host_tables"),
    Mutant("cuda: every filling stages the first caches", CUDA_TRANSFER, "const std::size_t of = group.caches[first + c]; const auto* const src", "const std::size_t of = group.caches[c]; const auto* const src", "host_tables"),
    Mutant("cuda: staged out before the kernel has run", CUDA_TRANSFER, "Status done = in ? host_side() : device_side(); if (done.ok()) done = in ?", "Status done = true ? host_side() : device_side(); if (done.ok()) done = true ?", "host_tables"),
    Mutant("cuda: staging without a run on the host", CUDA_TRANSFER, "(cache.src_pinned ? runs.src : runs.dst) + fillings - 1", "(cache.src_pinned ? runs.dst : runs.src) + fillings - 1", "host_tables"),
    Mutant("cuda: a graph keeps the staging buffer", "src/backends/cuda/cuda_queue.cpp", "ask_capture(captured) != cudaSuccess || captured) return {};", "ask_capture(captured) != cudaSuccess) return {};", "cuda_queue"),
    Mutant("cuda: the slots of the key are those of the value", CUDA_SCATTER, "slot >= side.slots", "slot >= p.sides[0].slots", EMULATED_SCATTER),
    Mutant("cuda: 32-bit place of a slot", CUDA_SCATTER, "return block * side.block_step", "return static_cast<std::uint32_t>(block * side.block_step)", EMULATED_SCATTER),
    Mutant("cuda: the slots of a task have no barrier", CUDA_SCATTER, "slot)); x.sync();", "slot));", EMULATED_SCATTER),
    Mutant("cuda: the last task of the scatter is a whole one", CUDA_SCATTER, "least(p.tokens - first, std::int64_t{1} << p.task_shift)", "std::int64_t{1} << p.task_shift", EMULATED_SCATTER),
    Mutant("cuda: the next slots overwrite those that move", CUDA_SCATTER, "now ^= kMostTokens", "now ^= 0", EMULATED_SCATTER),
    Mutant("cuda: repeats in an unclean workspace", CUDA_REPORT, "p.uses.clear(x);", "", EMULATED_SCATTER),
    Mutant("cuda: repeats are added while the table is cleared", CUDA_REPORT, "p.uses.clear(x); x.sync();", "p.uses.clear(x);", EMULATED_SCATTER),
    Mutant("cuda: a repeat hides what else is wrong with its token", CUDA_REPORT, "bits |= inside | kDuplicateBit;", "bits = inside | kDuplicateBit;", EMULATED_SCATTER),
    Mutant("cuda: the lowest entry without an atomic", CUDA_FIRST_USE, "x.atomic_min(&place->entry, entry);", "x.store(&place->entry, least(x.load(&place->entry), entry));", EMULATED_SCATTER),
    Mutant("cuda: the last entry counts as the first", CUDA_FIRST_USE, "if (old != kFree && old != index) continue;", "if (old == index) return; if (old != kFree) continue;", EMULATED_SCATTER),
    Mutant("cuda: chains of indices do not wrap around", CUDA_FIRST_USE, "i + 1 == count_ ? 0 : i + 1", "i + 1", EMULATED_SCATTER),
    Mutant("cuda: units behind a run are read", CUDA_DEQUANT, "if (n < units && src != nullptr)", "if (src != nullptr)", EMULATED_DEQUANT),
    Mutant("cuda: ties are rounded up", CUDA_DEQUANT, "0x7fffU + (bits >> 16 & 1U)", "0x8000U", EMULATED_DEQUANT),
    Mutant("cuda: the sign of NaN stays", CUDA_DEQUANT, "return nan ? 0x7fc0U :", "return nan ? 0x7fc0U | (bits >> 31) << 15 :", EMULATED_DEQUANT),
    Mutant("cuda: all ones are 480", CUDA_DEQUANT, "magnitude == 0x7fU || ", "", EMULATED_DEQUANT),
    Mutant("cuda: a scale holds for 64 values", CUDA_DEQUANT, "std::size_t{unit} * kUnit / kGroup * 4", "std::size_t{unit} * kUnit / (kGroup / 2) % 4 * 4", EMULATED_DEQUANT),
    Mutant("cuda: elements of the output lie side by side", CUDA_DEQUANT, "if (p.element_step == 2 && reinterpret_cast", "if (reinterpret_cast", EMULATED_DEQUANT),
    Mutant("cuda: selection: no refresh window", CUDA_SELECTION, "(batch.kv - most(batch.q, std::int64_t{0})) / bs", "batch.kv / bs", "emulated_selection|emulated.gather_selection"),
    Mutant("cuda: selection: any slot of an id", CUDA_SELECTION, "if (resident) tables.slot.lower(x, at, index);", "if (resident) tables.slot.set(x, at, index);", "emulated_selection|emulated.gather_selection"),
    Mutant("cuda: selection: table used before it is clear", CUDA_SELECTION, "load(x, sh, p, batch, row, tables, table);\n    x.sync();", "load(x, sh, p, batch, row, tables, table);", "emulated_selection|emulated.gather_selection"),
    Mutant("cuda: selection: the next row does not wait for the tables", CUDA_SELECTION, "x.sync();  // the next row takes the tables", "", "emulated_selection|emulated.gather_selection"),
    Mutant("cuda: selection: rows in order, heads of groups are short", CUDA_SELECTION, "for (std::int64_t s = p.rows_per_batch; s-- > 0;)", "for (std::int64_t s = 0; s < p.rows_per_batch; ++s)", "emulated_selection|emulated.gather_selection"),
    Mutant("cuda: selection: two threads insert at one place", CUDA_TABLE, "const std::int32_t key = keys_.cas(x, at, kFree, id);", "const std::int32_t key = keys_.get(x, at);\n      if (key == kFree) keys_.set(x, at, id);", "emulated_selection|emulated.gather_selection"),
    Mutant("cuda: selection: slot n-1 moved while it is overwritten", CUDA_SELECTION, "if (bad != 0 || src < row.n) copy.tokens = 0;", "if (bad != 0) copy.tokens = 0;", "emulated_selection|emulated.gather_selection"),
    Mutant("cuda: selection: lanes do not wait for what a row moves away", CUDA_SELECTION_COPY, "x.sync_warp();\n      if (!empties) at", "if (!empties) x.sync_warp();\n      if (!empties) at", "emulated_selection|emulated.gather_selection"),
    Mutant("cuda: selection: 32-bit offset into the full cache", CUDA_SELECTION_COPY, "side.full.get() + copy.src_page * side.full_page_step", "side.full.get() + static_cast<std::int32_t>(copy.src_page * side.full_page_step)", "emulated.gather_selection"),
    Mutant("cuda: selection: every row of a repeated status_row runs", CUDA_STATES, "bad = kDuplicateBit;", "bad = 0;", "emulated_selection|emulated.gather_selection"),
    Mutant("emulation: blocks are in order", "tests/cuda_emulation/checker.hpp", "return any_known_ && ordered_by_release(s);", "return true;", "emulation"),
    Mutant("emulation: a release orders what comes behind it", CHECKER, "return std::any_of(known_[me_].begin()", "return true || std::any_of(known_[me_].begin()", "emulation"),
    Mutant("emulation: the warps of a block are in order", "tests/cuda_emulation/checker.hpp", "return wide_ ? rows_[std::size_t{me_} * threads_ + other] : 0;", "return ~0U;", "emulation"),
    Mutant("emulation: atomics order what is around them", "tests/cuda_emulation/checker.hpp", "return (s.bytes() & bytes) != 0 && !atomics && !ordered(s);", "return (s.bytes() & bytes) != 0 && !atomics && s.access() != Access::kAtomic && !ordered(s);", "emulation"),
    Mutant("emulation: bytes of earlier blocks are forgotten", "tests/cuda_emulation/access.cpp", "static_cast<std::uint8_t>(cell.earlier_bytes | cell.block_bytes);", "0;", "emulation"),
    Mutant("emulation: a buffer may be left at its end", "tests/cuda_emulation/access.cpp", "begin + bytes <= s.region.end", "begin <= s.region.end", "emulation"),
]
