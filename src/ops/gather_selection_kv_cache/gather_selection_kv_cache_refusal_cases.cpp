// SPDX-License-Identifier: Apache-2.0
//
// Every rule of the selection gather's plan(), broken one at a time.
#include <fmt/format.h>

#include <limits>

#include "harness/breaking.hpp"
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_cases.hpp"

namespace kvferry::harness {
namespace {

using Args = GatherSelectionKvCacheArgs;
using Words = std::vector<std::string>;

constexpr StatusCode kBad = StatusCode::kInvalidArgument;
constexpr StatusCode kNull = StatusCode::kNull;

constexpr const char* kAll = "bsnd tnd";

int last_axis(const TensorView& view) {
  return view.rank - 1;
}

void put_dim(TensorView& view, int axis, std::int64_t n, const char* name, Words& words) {
  grow(view, axis, n - view.dim(axis), name, words);
}

void not_int32(TensorView& view, const char* name, Words& words) {
  change_dtype(view, DType::kInt64, name, words);
  words.emplace_back("int32");
}

void other_cache_dtype(TensorView& view, Words& words) {
  const DType old = view.dtype;
  view.dtype = old == DType::kInt16 ? DType::kUInt16 : DType::kInt16;
  words = {"dtype", to_string(view.dtype), to_string(old)};
}

void outside_storage(TensorView& view, const char* name, Words& words) {
  view.storage_elements -= 1;
  words = {name, std::to_string(view.storage_elements - 1)};
}

void doubled(TensorView& view, const char* name, Words& words) {
  view.strides[0] = 0;
  words = {name, "address"};
}

// All four caches with pages of this size, far apart.
void resize_pages(Args& a, std::int64_t selection, std::int64_t full) {
  const auto resize = [](TensorView& view, std::int64_t tokens) {
    view = contiguous(view.data, view.dtype, {view.dim(0), tokens, view.dim(2)});
  };
  resize(*a.selection_k_rope, selection);
  resize(a.selection_kv_cache, selection);
  resize(*a.full_k_rope, full);
  resize(a.full_kv_cache, full);
}

constexpr SelectionBreaker kBreakers[] = {
    {"selection_k_rope_null", kAll, kNull,
     [](Args& a, Words& w) { drop(*a.selection_k_rope, "selection_k_rope", w); }},
    {"selection_kv_cache_null", kAll, kNull,
     [](Args& a, Words& w) { drop(a.selection_kv_cache, "selection_kv_cache", w); }},
    {"selection_table_null", kAll, kNull,
     [](Args& a, Words& w) { drop(a.selection_kv_block_table, "selection_kv_block_table", w); }},
    {"status_null", kAll, kNull,
     [](Args& a, Words& w) { drop(a.selection_kv_block_status, "selection_kv_block_status", w); }},
    {"topk_null", kAll, kNull,
     [](Args& a, Words& w) { drop(a.selection_topk_indices, "selection_topk_indices", w); }},
    {"full_k_rope_null", kAll, kNull, [](Args& a, Words& w) { drop(*a.full_k_rope, "full_k_rope", w); }},
    {"full_kv_cache_null", kAll, kNull, [](Args& a, Words& w) { drop(a.full_kv_cache, "full_kv_cache", w); }},
    {"full_table_null", kAll, kNull,
     [](Args& a, Words& w) { drop(a.full_kv_block_table, "full_kv_block_table", w); }},
    {"kv_lengths_null", kAll, kNull,
     [](Args& a, Words& w) { drop(a.full_kv_actual_seq, "full_kv_actual_seq", w); }},
    {"q_lengths_null", kAll, kNull,
     [](Args& a, Words& w) { drop(*a.full_q_actual_seq, "full_q_actual_seq", w); }},
    {"out_null", kAll, kNull,
     [](Args& a, Words& w) { drop(a.selection_kv_actual_seq, "selection_kv_actual_seq", w); }},
    {"status_row_null", kAll, kNull, [](Args& a, Words& w) { drop(*a.status_row, "status_row", w); }},
    {"counters_null", kAll, kNull, [](Args& a, Words& w) { drop(*a.counters, "counters", w); }},
    {"fetch_counts_null", kAll, kNull, [](Args& a, Words& w) { drop(*a.fetch_counts, "fetch_counts", w); }},

    {"selection_k_rope_rank", kAll, kBad,
     [](Args& a, Words& w) { change_rank(*a.selection_k_rope, 1, "selection_k_rope", w); }},
    {"selection_kv_cache_rank", kAll, kBad,
     [](Args& a, Words& w) { change_rank(a.selection_kv_cache, 1, "selection_kv_cache", w); }},
    {"selection_table_rank", kAll, kBad,
     [](Args& a, Words& w) { change_rank(a.selection_kv_block_table, 1, "selection_kv_block_table", w); }},
    {"status_rank_5", "bsnd", kBad,
     [](Args& a, Words& w) { change_rank(a.selection_kv_block_status, 1, "selection_kv_block_status", w); }},
    {"status_of_the_other_form", kAll, kBad,
     [](Args& a, Words& w) {
       const bool tnd = a.selection_kv_block_status.rank == 3;
       change_rank(a.selection_kv_block_status, tnd ? 1 : -1, "selection_kv_block_status", w);
       w = {"selection_kv_block_status", "rank", tnd ? "4" : "3", tnd ? "3" : "4"};
     }},
    {"topk_rank_5", "bsnd", kBad,
     [](Args& a, Words& w) {
       change_rank(a.selection_topk_indices, 1, "selection_topk_indices", w);
       w = {"selection_topk_indices", "rank", "5", "3", "4"};
     }},
    {"topk_rank_2", "tnd", kBad,
     [](Args& a, Words& w) {
       change_rank(a.selection_topk_indices, -1, "selection_topk_indices", w);
       w = {"selection_topk_indices", "rank", "2", "3", "4"};
     }},
    {"full_k_rope_rank", kAll, kBad,
     [](Args& a, Words& w) { change_rank(*a.full_k_rope, 1, "full_k_rope", w); }},
    {"full_kv_cache_rank", kAll, kBad,
     [](Args& a, Words& w) { change_rank(a.full_kv_cache, -1, "full_kv_cache", w); }},
    {"full_table_rank", kAll, kBad,
     [](Args& a, Words& w) { change_rank(a.full_kv_block_table, 1, "full_kv_block_table", w); }},
    {"kv_lengths_rank", kAll, kBad,
     [](Args& a, Words& w) { change_rank(a.full_kv_actual_seq, 1, "full_kv_actual_seq", w); }},
    {"q_lengths_rank", kAll, kBad,
     [](Args& a, Words& w) { change_rank(*a.full_q_actual_seq, 1, "full_q_actual_seq", w); }},
    {"out_rank", kAll, kBad,
     [](Args& a, Words& w) { change_rank(a.selection_kv_actual_seq, 1, "selection_kv_actual_seq", w); }},
    {"status_row_rank", kAll, kBad,
     [](Args& a, Words& w) { change_rank(*a.status_row, 1, "status_row", w); }},
    {"counters_rank", kAll, kBad, [](Args& a, Words& w) { change_rank(*a.counters, 1, "counters", w); }},
    {"fetch_counts_rank", kAll, kBad,
     [](Args& a, Words& w) { change_rank(*a.fetch_counts, 1, "fetch_counts", w); }},
    {"rank_above_8", kAll, kBad,
     [](Args& a, Words& w) {
       a.full_kv_cache.rank = 9;
       w = {"full_kv_cache", "rank", "9"};
     }},

    {"selection_k_rope_dtype", kAll, kBad,
     [](Args& a, Words& w) { other_cache_dtype(*a.selection_k_rope, w); }},
    {"selection_kv_cache_dtype", kAll, kBad,
     [](Args& a, Words& w) { other_cache_dtype(a.selection_kv_cache, w); }},
    {"full_k_rope_dtype", kAll, kBad, [](Args& a, Words& w) { other_cache_dtype(*a.full_k_rope, w); }},
    {"full_kv_cache_dtype", kAll, kBad, [](Args& a, Words& w) { other_cache_dtype(a.full_kv_cache, w); }},
    {"int64_caches", kAll, kBad,
     [](Args& a, Words& w) {
       for (TensorView* view : {&*a.selection_k_rope, &a.selection_kv_cache, &*a.full_k_rope, &a.full_kv_cache})
         change_dtype(*view, DType::kInt64, "", w);
       w = {"dtype", "int64"};
     }},
    {"selection_table_int64", kAll, kBad,
     [](Args& a, Words& w) { not_int32(a.selection_kv_block_table, "selection_kv_block_table", w); }},
    {"status_int64", kAll, kBad,
     [](Args& a, Words& w) { not_int32(a.selection_kv_block_status, "selection_kv_block_status", w); }},
    {"topk_int64", kAll, kBad,
     [](Args& a, Words& w) { not_int32(a.selection_topk_indices, "selection_topk_indices", w); }},
    {"full_table_int64", kAll, kBad,
     [](Args& a, Words& w) { not_int32(a.full_kv_block_table, "full_kv_block_table", w); }},
    {"kv_lengths_int64", kAll, kBad,
     [](Args& a, Words& w) { not_int32(a.full_kv_actual_seq, "full_kv_actual_seq", w); }},
    {"q_lengths_int64", kAll, kBad,
     [](Args& a, Words& w) { not_int32(*a.full_q_actual_seq, "full_q_actual_seq", w); }},
    {"out_int64", kAll, kBad,
     [](Args& a, Words& w) { not_int32(a.selection_kv_actual_seq, "selection_kv_actual_seq", w); }},
    {"status_row_int64", kAll, kBad, [](Args& a, Words& w) { not_int32(*a.status_row, "status_row", w); }},
    {"counters_int64", kAll, kBad, [](Args& a, Words& w) { not_int32(*a.counters, "counters", w); }},
    {"fetch_counts_int64", kAll, kBad,
     [](Args& a, Words& w) { not_int32(*a.fetch_counts, "fetch_counts", w); }},

    {"block_size_0", kAll, kBad,
     [](Args& a, Words& w) {
       a.selection_topk_block_size = 0;
       w = {"selection_topk_block_size", "0"};
     }},
    {"block_size_negative", kAll, kBad,
     [](Args& a, Words& w) {
       a.selection_topk_block_size = -2;
       w = {"selection_topk_block_size", "-2"};
     }},
    {"k_0", kAll, kBad,
     [](Args& a, Words& w) {
       put_dim(a.selection_kv_block_status, last_axis(a.selection_kv_block_status), 1, "", w);
       const int axis = last_axis(a.selection_topk_indices);
       put_dim(a.selection_topk_indices, axis, 0, "", w);
       w = {"selection_topk_indices", fmt::format("dimension {}", axis), "0"};
     }},
    {"k_times_block_size", kAll, kBad,
     [](Args& a, Words& w) {
       a.selection_topk_block_size = 1 << 29;
       resize_pages(a, 1 << 30, 1 << 30);
       w = {"selection_topk_block_size", "536870912", "2147483647"};
     }},
    {"selection_page_not_divisible", kAll, kBad,
     [](Args& a, Words& w) {
       resize_pages(a, 5, a.full_kv_cache.dim(1));
       w = {"selection_kv_cache", "dimension 1", "5", "2"};
     }},
    {"full_page_not_divisible", kAll, kBad,
     [](Args& a, Words& w) {
       resize_pages(a, a.selection_kv_cache.dim(1), 7);
       w = {"full_kv_cache", "dimension 1", "7", "2"};
     }},
    {"selection_page_0", kAll, kBad,
     [](Args& a, Words& w) {
       resize_pages(a, 0, a.full_kv_cache.dim(1));
       w = {"selection_kv_cache", "dimension 1", "0"};
     }},
    {"full_page_0", kAll, kBad,
     [](Args& a, Words& w) {
       resize_pages(a, a.selection_kv_cache.dim(1), 0);
       w = {"full_kv_cache", "dimension 1", "0"};
     }},
    {"selection_page_above_int32", kAll, kBad,
     [](Args& a, Words& w) {
       resize_pages(a, std::int64_t{1} << 31, a.full_kv_cache.dim(1));
       w = {"selection_kv_cache", "dimension 1", "2147483648", "2147483647"};
     }},
    {"full_page_above_int32", kAll, kBad,
     [](Args& a, Words& w) {
       resize_pages(a, a.selection_kv_cache.dim(1), std::int64_t{1} << 31);
       w = {"full_kv_cache", "dimension 1", "2147483648", "2147483647"};
     }},

    {"rope_pages", kAll, kBad,
     [](Args& a, Words& w) { shrink_kept_storage(*a.selection_k_rope, 0, "selection_k_rope", w); }},
    {"rope_page_size", kAll, kBad,
     [](Args& a, Words& w) { put_dim(*a.selection_k_rope, 1, 2, "selection_k_rope", w); }},
    {"full_rope_pages", kAll, kBad, [](Args& a, Words& w) { shrink_kept_storage(*a.full_k_rope, 0, "full_k_rope", w); }},
    {"full_rope_page_size", kAll, kBad,
     [](Args& a, Words& w) { put_dim(*a.full_k_rope, 1, 2, "full_k_rope", w); }},
    {"kv_rows_differ", kAll, kBad,
     [](Args& a, Words& w) {
       shrink_kept_storage(a.full_kv_cache, 2, "full_kv_cache", w);
       w.emplace_back("selection_kv_cache");
     }},
    {"rope_rows_differ", kAll, kBad,
     [](Args& a, Words& w) {
       shrink_kept_storage(*a.full_k_rope, 2, "full_k_rope", w);
       w.emplace_back("selection_k_rope");
     }},
    {"too_few_pages", kAll, kBad,
     [](Args& a, Words& w) {
       shrink_kept_storage(*a.selection_k_rope, 0, "", w);
       shrink_kept_storage(a.selection_kv_cache, 0, "selection_kv_cache", w);
       w.pop_back();  // 12, which may be named as 4 * 3
     }},
    {"too_few_table_columns", kAll, kBad,
     [](Args& a, Words& w) { shrink_kept_storage(a.selection_kv_block_table, 1, "selection_kv_block_table", w); }},
    {"too_few_table_rows", kAll, kBad,
     [](Args& a, Words& w) {
       shrink_kept_storage(a.selection_kv_actual_seq, 0, "", w);
       shrink_kept_storage(a.selection_kv_block_table, 0, "selection_kv_block_table", w);
     }},
    {"out_rows", kAll, kBad,
     [](Args& a, Words& w) { shrink_kept_storage(a.selection_kv_actual_seq, 0, "selection_kv_actual_seq", w); }},
    {"status_columns", kAll, kBad,
     [](Args& a, Words& w) {
       shrink_kept_storage(a.selection_kv_block_status, last_axis(a.selection_kv_block_status), "selection_kv_block_status",
              w);
     }},
    {"status_heads", kAll, kBad,
     [](Args& a, Words& w) {
       TensorView& status = a.selection_kv_block_status;
       grow(status, status.rank - 2, 1, "selection_kv_block_status", w);
       const std::span shape(status.shape.data(), static_cast<std::size_t>(status.rank));
       status = contiguous(status.data, status.dtype, shape);  // or its rows would overlap
     }},
    {"topk_heads", kAll, kBad,
     [](Args& a, Words& w) {
       grow(a.selection_topk_indices, a.selection_topk_indices.rank - 2, 1, "selection_topk_indices", w);
     }},
    {"status_batches_without_status_row", kAll, kBad,
     [](Args& a, Words& w) {
       a.status_row.reset();
       shrink_kept_storage(a.selection_kv_block_status, 0, "selection_kv_block_status", w);
     }},
    {"status_rows_without_status_row", "bsnd", kBad,
     [](Args& a, Words& w) {
       a.status_row.reset();
       shrink_kept_storage(a.selection_kv_block_status, 1, "selection_kv_block_status", w);
     }},
    {"more_status_rows_than_table_rows", "tnd", kBad,
     [](Args& a, Words& w) {
       grow(a.selection_kv_block_status, 0, 5, "selection_kv_block_status", w);
       w = {"selection_kv_block_table", "dimension 0", std::to_string(a.selection_kv_block_table.dim(0)),
            std::to_string(a.selection_kv_block_status.dim(0))};
     }},
    {"full_table_batches", "bsnd", kBad,
     [](Args& a, Words& w) {
       shrink_kept_storage(a.full_kv_block_table, 0, "", w);
       w.erase(w.begin());  // of the two that differ, either may be named
     }},
    {"kv_lengths_batches", kAll, kBad,
     [](Args& a, Words& w) { shrink_kept_storage(a.full_kv_actual_seq, 0, "full_kv_actual_seq", w); }},
    {"q_lengths_batches", kAll, kBad,
     [](Args& a, Words& w) { shrink_kept_storage(*a.full_q_actual_seq, 0, "full_q_actual_seq", w); }},
    {"status_row_rows", kAll, kBad, [](Args& a, Words& w) { shrink_kept_storage(*a.status_row, 0, "status_row", w); }},
    {"counters_rows", kAll, kBad, [](Args& a, Words& w) { shrink_kept_storage(*a.counters, 0, "counters", w); }},
    {"counters_columns", kAll, kBad, [](Args& a, Words& w) { shrink_kept_storage(*a.counters, 1, "counters", w); }},
    {"fetch_counts_batches", kAll, kBad,
     [](Args& a, Words& w) { shrink_kept_storage(*a.fetch_counts, 0, "fetch_counts", w); }},
    {"rows_not_divisible_by_batches", "tnd", kBad,
     [](Args& a, Words& w) {
       for (TensorView* view : {&a.full_kv_block_table, &a.full_kv_actual_seq, &*a.full_q_actual_seq, &*a.fetch_counts})
         grow(*view, 0, 1, "", w);
       w = {"selection_topk_indices", "dimension 0", "4", "3"};
     }},
    {"rows_without_batches", "tnd", kBad,
     [](Args& a, Words& w) {
       for (TensorView* view : {&a.full_kv_block_table, &a.full_kv_actual_seq, &*a.full_q_actual_seq, &*a.fetch_counts})
         put_dim(*view, 0, 0, "", w);
       w = {"selection_topk_indices", "dimension 0", "4", "0"};
     }},
    {"dim_negative", kAll, kBad,
     [](Args& a, Words& w) {
       a.full_kv_cache.shape[0] = -3;
       w = {"full_kv_cache", "dimension 0", "-3"};
     }},

    {"only_selection_rope", kAll, kBad,
     [](Args& a, Words& w) {
       a.full_k_rope.reset();
       w = {"full_k_rope", "selection_k_rope"};
     }},
    {"only_full_rope", kAll, kBad,
     [](Args& a, Words& w) {
       a.selection_k_rope.reset();
       w = {"full_k_rope", "selection_k_rope"};
     }},
    {"empty_full_rope", kAll, kBad,
     [](Args& a, Words& w) {
       a.full_k_rope = contiguous(static_cast<void*>(nullptr), a.full_kv_cache.dtype, {0});
       w = {"full_k_rope", "selection_k_rope"};
     }},
    {"empty_selection_rope", kAll, kBad,
     [](Args& a, Words& w) {
       a.selection_k_rope = contiguous(static_cast<void*>(nullptr), a.full_kv_cache.dtype, {0});
       w = {"full_k_rope", "selection_k_rope"};
     }},
    {"q_lengths_absent", kAll, kBad,
     [](Args& a, Words& w) {
       a.full_q_actual_seq.reset();
       w = {"full_q_actual_seq"};
     }},
    {"q_lengths_absent_from_sums", kAll, kBad,
     [](Args& a, Words& w) {
       a.q_len_mode = QLenMode::kPrefixSum;
       a.full_q_actual_seq.reset();
       w = {"full_q_actual_seq"};
     }},
    {"q_len_mode_unknown", kAll, kBad,
     [](Args& a, Words& w) {
       a.q_len_mode = static_cast<QLenMode>(9);
       w = {"q_len_mode", "9"};
     }},
    {"index_policy_unknown", kAll, kBad,
     [](Args& a, Words& w) {
       a.index_policy = static_cast<IndexPolicy>(7);
       w = {"index_policy", "7"};
     }},

    {"selection_k_rope_doubled", kAll, kBad,
     [](Args& a, Words& w) { doubled(*a.selection_k_rope, "selection_k_rope", w); }},
    {"selection_kv_cache_doubled", kAll, kBad,
     [](Args& a, Words& w) { doubled(a.selection_kv_cache, "selection_kv_cache", w); }},
    {"status_doubled", kAll, kBad,
     [](Args& a, Words& w) { doubled(a.selection_kv_block_status, "selection_kv_block_status", w); }},
    {"out_doubled", kAll, kBad,
     [](Args& a, Words& w) { doubled(a.selection_kv_actual_seq, "selection_kv_actual_seq", w); }},
    {"counters_doubled", kAll, kBad, [](Args& a, Words& w) { doubled(*a.counters, "counters", w); }},
    {"fetch_counts_doubled", kAll, kBad,
     [](Args& a, Words& w) { doubled(*a.fetch_counts, "fetch_counts", w); }},

    {"selection_k_rope_storage", kAll, kBad,
     [](Args& a, Words& w) { outside_storage(*a.selection_k_rope, "selection_k_rope", w); }},
    {"selection_kv_cache_storage", kAll, kBad,
     [](Args& a, Words& w) { outside_storage(a.selection_kv_cache, "selection_kv_cache", w); }},
    {"selection_table_storage", kAll, kBad,
     [](Args& a, Words& w) { outside_storage(a.selection_kv_block_table, "selection_kv_block_table", w); }},
    {"status_storage", kAll, kBad,
     [](Args& a, Words& w) { outside_storage(a.selection_kv_block_status, "selection_kv_block_status", w); }},
    {"topk_storage", kAll, kBad,
     [](Args& a, Words& w) { outside_storage(a.selection_topk_indices, "selection_topk_indices", w); }},
    {"full_k_rope_storage", kAll, kBad,
     [](Args& a, Words& w) { outside_storage(*a.full_k_rope, "full_k_rope", w); }},
    {"full_kv_cache_storage", kAll, kBad,
     [](Args& a, Words& w) { outside_storage(a.full_kv_cache, "full_kv_cache", w); }},
    {"full_table_storage", kAll, kBad,
     [](Args& a, Words& w) { outside_storage(a.full_kv_block_table, "full_kv_block_table", w); }},
    {"kv_lengths_storage", kAll, kBad,
     [](Args& a, Words& w) { outside_storage(a.full_kv_actual_seq, "full_kv_actual_seq", w); }},
    {"q_lengths_storage", kAll, kBad,
     [](Args& a, Words& w) { outside_storage(*a.full_q_actual_seq, "full_q_actual_seq", w); }},
    {"out_storage", kAll, kBad,
     [](Args& a, Words& w) { outside_storage(a.selection_kv_actual_seq, "selection_kv_actual_seq", w); }},
    {"status_row_storage", kAll, kBad,
     [](Args& a, Words& w) { outside_storage(*a.status_row, "status_row", w); }},
    {"counters_storage", kAll, kBad, [](Args& a, Words& w) { outside_storage(*a.counters, "counters", w); }},
    {"fetch_counts_storage", kAll, kBad,
     [](Args& a, Words& w) { outside_storage(*a.fetch_counts, "fetch_counts", w); }},

    {"stride_overflows", kAll, kBad,
     [](Args& a, Words& w) {
       a.full_kv_cache.strides[0] = std::numeric_limits<std::int64_t>::max();
       a.full_kv_cache.storage_elements = -1;
       w = {"full_kv_cache"};
     }},
    {"status_stride_overflows", kAll, kBad,
     [](Args& a, Words& w) {
       a.selection_kv_block_status.strides[0] = std::numeric_limits<std::int64_t>::max();
       a.selection_kv_block_status.storage_elements = -1;
       w = {"selection_kv_block_status"};
     }},
    {"full_kv_cache_on_cuda", kAll, kBad,
     [](Args& a, Words& w) {
       a.full_kv_cache.device.type = DeviceType::kCuda;
       w = {"full_kv_cache", "device"};
     }},
    {"fetch_counts_on_cuda", kAll, kBad,
     [](Args& a, Words& w) {
       a.fetch_counts->device.type = DeviceType::kCuda;
       w = {"fetch_counts", "device"};
     }},
};

}  // namespace

std::span<const SelectionBreaker> selection_breakers() {
  return kBreakers;
}

}  // namespace kvferry::harness
