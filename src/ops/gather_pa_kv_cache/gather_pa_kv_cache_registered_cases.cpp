// SPDX-License-Identifier: Apache-2.0
//
// The registered cases of the gather: one name, one idea.
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_cases.hpp"

namespace kvferry::harness {
namespace {

// Every text runs with both index types unless the case is about one of them.
#define G "gather_pa_kv_cache:idx={i32|i64},"

constexpr RegisteredCase kCases[] = {
    // Lengths, cuts and what must keep its contents.
    {"gather/plain_and_cumsum", G "lens=1;3;5;3;7,cumsum={0|1},policy=report"},
    {"gather/len0_in_middle", G "lens={0;2;0|3;0;0;5|0;0;1},cumsum={0|1}"},
    {"gather/all_len0", G "lens=0;0;0,cumsum={0|1},n={0|5},w=2"},
    {"gather/rows_behind_the_sum_keep", G "lens=3;6;2,extra={1|2|9},cumsum={0|1}"},
    {"gather/cut_inside_a_block", G "lens=9;7,n={1|2|10|14|15},cumsum={0|1}"},
    {"gather/cut_on_a_batch_boundary", G "lens=9;7;3,n={9|16},cumsum={0|1}"},
    {"gather/cut_to_nothing", G "lens=9;7,n=0,cumsum={0|1}"},
    {"gather/first_sum_not_zero", G "sums={2;4;6|5;5;6|6;6;6},n=6"},
    {"gather/first_sum_behind_the_end", G "sums=9;12;15,n=6"},
    {"gather/first_sum_negative",
     G "sums={-3;4;6|-4;-1;6|-9;-2;-1},n=6,policy={default|report|reject},offset={0|4}"},
    {"gather/sums_decrease", G "sums={0;6;2;9|9;3;12|4;4;1;1;8},n=9,policy={default|report|reject}"},
    {"gather/sums_far_away",
     "gather_pa_kv_cache:idx=i64,sums={-2^62;5;9|0;5;2^62|-2^63;2^63-1;0|2^62;-2^62;7},n=9,w=4,nb=9,"
     "policy={default|report}"},
    {"gather/length_around_a_block", G "lens={1|3|4|5|8|9},bs={4|1},cumsum={0|1}"},
    {"gather/negative_length", G "lens={-1;3|3;-2147483648;2|4;-7},n=5,policy={default|report|reject}"},
    {"gather/lengths_that_would_wrap",
     "gather_pa_kv_cache:idx=i64,lens={2^63-1;2^63-1|5;2^63-1;2^63-1|2^62;2^62;3},n=13,w=3,nb=8,"
     "policy={default|report}"},
    {"gather/int32_lengths_over_2_31", "gather_pa_kv_cache:idx=i32,lens=2^31-1;2^31-1;2^31-1,n=9,w=4,nb=8"},
    {"gather/one_batch_64k_tokens", G "lens=64k,bs=128,h=1,dk=8,cumsum={0|1}"},
    {"gather/1024_batches_of_0_to_3", G "b=1024,lens=0..3,bs={1|2|4},h=1,dk=8,cumsum={0|1}"},
    {"gather/1024_batches_mostly_empty", G "b=1024,lens=0*100;7;0*23;1,h=1,dk=8,cumsum={0|1}"},
    {"gather/block_sizes", G "lens=40;1;17,bs={1|7|16|128|129}"},
    {"gather/lens_4993_and_ones", G "lens=4993;1*7,bs=16,h=1,dk=64"},

    // seq_offset.
    {"gather/offset_remainder_is_dropped", G "lens=5;6,bs=4,w=8,offset={8|9|10|11}"},
    {"gather/offset_shifts_columns", G "lens=5;0;7,offset=0;4;16,w=9,cumsum={0|1}"},
    {"gather/offset_beyond_the_table",
     G "lens=5;5,w=3,offset={12;0|1000;4|2147483647;0},policy={default|report|reject}"},
    {"gather/offset_beyond_with_length_0",
     G "lens=0;3,w=2,offset=2147483647;0,guard=before,policy={default|reject}"},
    {"gather/offset_negative", G "lens=9;5,w=3,offset={-1;0|-3;-4|-8;-5},policy={default|report|reject}"},
    {"gather/offset_of_64_bits",
     "gather_pa_kv_cache:idx=i64,lens=9;6,w=3,offset={2^63-1;0|-2^63;2^40|2^62;-2^62},bs={1|4},policy={"
     "default|report}"},
    {"gather/offset_reaches_the_row_end",
     G "lens=65;3,bs=64,w=2,offset=128;0,h=1,dk=4,policy={default|report}"},

    // Block tables.
    {"gather/length_beyond_the_table", G "lens=9;3,w=2,bs=4,policy={default|report|reject}"},
    {"gather/table_at_the_end_of_a_page", G "lens=9;8,w=2,guard=before"},
    {"gather/table_behind_a_page", G "lens=8;8,w=2,guard=after,offset=-4;0"},
    {"gather/bad_ids", G "lens=9;8;3,nb=6,table={0;-1;2;6;4;1|2147483647;-2147483648;3|5;4;-1},"
                         "policy={default|report|reject}"},
    {"gather/bad_id_in_the_last_partial_block",
     G "lens=9;7,nb=6,table=0;1;2;3;4;5,put={0/2/-1|1/1/6|0/2/2147483647},"
       "policy={default|report|reject}"},
    {"gather/bad_id_not_visited", G "lens=4;4,w=3,table=0;-1;99;1;-1;99,nb=2,policy={default|report|reject}"},
    {"gather/ids_of_64_bits",
     "gather_pa_kv_cache:idx=i64,lens=9;8,nb=6,table=0;2^40;2;2^32+1;-2^40;2^32,"
     "policy={default|report|reject}"},
    {"gather/padded_batch_of_minus_ones", G "lens=5;0;3,table=0;1;-1;-1;2;-1,w=2,nb=3,policy=reject"},
    {"gather/fewer_value_blocks", G "lens=9;8,nb=6,nbv=3,table=0;4;2;3;1;5,policy={default|report|reject}"},
    {"gather/fewer_key_blocks", G "lens=9;8,nb=3,nbv=6,table=0;4;2;3;1;5,policy={default|report|reject}"},
    {"gather/no_blocks", G "lens=9;8,nb={0|2},nbv=0,table={same|0;1},policy={default|report|reject}"},
    {"gather/duplicate_ids", G "lens=12;9;12,table={same|0;1;0;1;1|3},nb=4"},
    {"gather/sequential_ids", G "lens=40;33,table=seq,bs=8"},
    {"gather/many_bad_entries_are_counted",
     G "lens=100;100,bs=2,nb=8,table=0;-1;9;3,policy=report,threads=1;2;3;4"},

    // Shapes and types.
    {"gather/article_shapes", G "lens=558*15;561,n=8931,nb=128,bs=128,h=16,dk=144,dv=128,w=12,threads=1;2"},
    {"gather/nz_article_shapes",
     G "mode=nz,dtype=i8,nb=30,bs=128,h=1,dk=3232,dv=4064,lens=200;128;1;300,threads=1;2"},
    {"gather/fp8_key_bf16_value", G "dtype=e4m3,vdtype=bf16,mode={nd|nz},dk=64,lens=9;4"},
    {"gather/all_dtypes",
     G "dtype={f16|bf16|f32|i8|u8|i16|u16|i32|u32|hif8|e5m2|e4m3},mode={nd|nz},lens=5;6;1,dk=48"},
    {"gather/any_pair_of_dtypes", G "dtype={f32|i8|u16},vdtype={hif8|f16|u32},dk=32,lens=5;6,mode={nd|nz}"},
    {"gather/row_of_10_bytes", G "h=1,dk=5,dv=3,lens=9;7,bs=4"},
    {"gather/head_size_46", G "dtype=bf16,h={1|3},dk=46,lens=9;7"},
    {"gather/rows_of_64_576_640_656_bytes", G "dtype=u8,h=1,dk={64|576|640|656},bs=16,lens=70;33"},
    {"gather/row_bytes_small", G "dtype=u8,h=1,dk={1..80},dv=33,bs=4,lens=9;6"},
    {"gather/row_bytes_thresholds",
     G "dtype=u8,h=1,dk={127|128|129|255|256|257|511|512|513|1023|1024|1025|2047|2048|2049|"
       "4095|4096|4097},bs=4,lens=9;6,streaming={0|1}"},
    {"gather/row_bytes_large",
     G "dtype=u8,h=1,dk={64k-1|64k|64k+1|128k-1|128k|128k+1|1M-1|1M|1M+64},dv=1,bs=2,lens=3;2"},
    {"gather/long_tokens", G "dtype=u8,h=1,dk={147456|151552|200000},dv=64,mode={nd|nz},bs=2,lens=3;1"},
    {"gather/heads_differ", G "h=3,hv=2,dk=16,dv=24,lens=5;3"},
    {"gather/nz_one_unit", G "mode=nz,dtype={u8|f16|f32},h=1,dk=32,bs={1|2|3|64},lens=9;7"},
    {"gather/nz_many_units",
     G "mode=nz,dtype={i8|bf16|u32},h=1,dk={64|96|128|288|512|544},bs={1|2|15|16|17},lens=9;33;1"},
    {"gather/nz_blocks_of_many_rows",
     G "mode=nz,dtype=u8,h=1,dk=1056,dv=992,bs={129|260},lens=300;261,streaming={0|1}"},
    {"gather/nz_large", G "mode=nz,dtype=bf16,h=1,dk=576,dv=512,bs=128,lens=700;129;3"},

    // Strides.
    {"gather/axes_permuted",
     G "kc=order{0213|0132|3210|1023|2031},vc=order0213,k=order{012|102|021|210},lens=9;7,dk=24,dv=7"},
    {"gather/nz_axes_permuted", G "mode=nz,kc=order{0213|0132|3210},k=order{01|10},v=pad1:3,lens=9;7,dk=32"},
    {"gather/caches_in_one_allocation", G "cat_cache={0|1|2|3},lens=9;7"},
    {"gather/nz_caches_in_one_allocation", G "mode=nz,cat_cache={0|1},dtype=i8,dk=64,lens=9;7"},
    {"gather/latent_and_rope_in_one_row", G "cat_cache=3,h=1,dk=512,dv=64,bs=16,lens=40;17"},
    {"gather/outputs_in_one_allocation", G "cat_out={0|1|2},lens=9;7,extra=3"},
    {"gather/outputs_in_one_row", G "cat_out=2,cat_cache=3,h=1,dk=512,dv=64,bs=16,lens=40;17,extra=1"},
    {"gather/padded_blocks", G "kc=pad1:{1|8|48},vc=pad1:5,lens=9;7"},
    {"gather/padded_slots", G "kc=pad2:{1|8|48},vc=pad2:5,k=pad1:3,v=pad1:16,lens=9;7"},
    {"gather/padded_heads", G "kc=pad3:{1|8|48},vc=pad3:5,k=pad2:3,v=pad2:16,lens=9;7"},
    {"gather/bnsd_storage", G "kc=order0213,vc=order0213,h={1|2|5},lens=9;7"},
    {"gather/view_offset", G "kc=off{1|64|77},vc=off3,k=off5,v=off{9|32},lens=9;7"},
    {"gather/last_axis_step_2", G "kc=step{2|3},vc=step2,k=step2,v=dense,lens=9;7"},
    {"gather/output_step_2", G "k=step2,v=step3,lens=9;7,extra=2"},
    {"gather/negative_strides", G "kc=neg{0|1|2|3},vc=neg1+neg3,k=neg{0|1|2},v=neg0+neg2,lens=9;7,extra=1"},
    // The slot stride is H * D although heads are not dense: it proves nothing about the inner axes.
    {"gather/slot_stride_equal_by_coincidence",
     G "kc={order0213+pad3:24|order0132|order0231},vc=order0213+pad3:24,h=4,"
       "dk=8,bs=4,lens=9;7"},
    {"gather/coincidence_inside_padded_heads",
     G "kc=set1:32+set2:1+set3:4,vc=order0312,h=4,dk=8,bs=4,lens=9;7"},
    {"gather/overlapping_slots_of_an_input", G "kc=set1:{0|1|5},vc=set0:0,lens=9;7"},
    {"gather/size_1_axes_with_absurd_strides",
     G "kc=one,vc=one,k=one,v=one,bt=one,sl=one,h=1,bs={1|4},dk={1|8},lens=3"},
    {"gather/index_tensors_strided",
     G "bt={order10|pad1:3|step2|neg0+neg1|off7|set0:1+set1:3},sl={step3|neg0|off2},"
       "so={step2|neg0},offset=0;4,w=3,lens=9;7,cumsum={0|1}"},
    {"gather/one_table_row_for_all", G "bt=set0:0,w=3,table=2;0;1;2;0;1,nb=3,lens=9;7"},
    {"gather/strides_above_32_bits",
     G "kc=set0:4294967301,vc=set0:{2^32|8589934593},nb=5,bs=2,lens=9;7,table=4;1;3;0;2"},
    {"gather/stride_1039680", G "dtype=bf16,kc=set0:1039680,vc=set0:1039680,nb=4200,bs=4,h=1,dk=64,lens=13;9,"
                                "table=2066;4199;0;2065;2067"},

    // Beyond 4 GiB and 2^31 elements: sparse memory.
    {"gather/cache_of_4e9_elements",
     G "nb=64000,bs=16,h=32,dk=128,dv=128,lens=20;7,table=63999;1;32768;40000,threads=1;3"},
    {"gather/nz_cache_above_4_gib", G "mode=nz,dtype=i8,nb=64000,bs=128,h=1,dk=1024,dv=1024,lens=140;7,"
                                      "table=63999;32769;4096;60000,threads=1;3"},
    {"gather/cache_above_2_gib_bytes",
     G "dtype=u8,nb=300000,bs=16,h=1,dk=1024,lens=20;7,table=299999;131072;131071;262144"},
    {"gather/output_above_4_gib", G "sums=2^31-9;2^31-2,bs=4,n=2^31-1,h=1,dk=4,dv=8,w=2,nb=3,threads=1;3"},
    {"gather/output_strides_above_4_gib", G "lens=9;7,k=pad2:2^30,v=pad1:2^31,h=2,dk=8,dv=8"},
    {"gather/nz_output_above_4_gib",
     G "mode=nz,dtype=i8,sums=2^27-5;2^27+2,n=2^27+4,h=1,dk=64,dv=32,w=2,nb=3"},
    {"gather/output_2_31_elements_in",
     G "dtype=i8,sums=2^20-5;2^20+3,n=2^20+3,h=32,dk=128,dv=64,w=2,nb=3,threads=1;3"},

    // Buffers against unmapped pages, and every alignment.
    {"gather/ends_at_unmapped_pages",
     G "guard=before,mode={nd|nz},dtype=u8,h=1,dk={32|96|160|544},dv=64,bs=3,lens=9;7,"
       "streaming={0|1}"},
    {"gather/starts_behind_unmapped_pages",
     G "guard=after,mode={nd|nz},dtype=u8,h=1,dk={32|96|160|544},dv=64,bs=3,lens=9;7"},
    {"gather/odd_rows_at_unmapped_pages",
     G "guard={before|after},dtype=u8,h=1,dk={1|3|7|15|17|31|33|63|65|100|257|1000|5000},"
       "dv=13,bs=3,lens=10;7"},
    {"gather/alignments", "gather_pa_kv_cache:idx=i64,dtype=u8,h=1,dk=300,dv=64,bs=4,lens=9;7,align={0..63}"},
    {"gather/mixed_alignments",
     "gather_pa_kv_cache:idx=i32,dtype=f16,h=2,dk=72,bs=4,lens=9;7,align={1;2;3;5;7;11;13|"
     "32;16;8;4;2;1|63;0;31;33;17}"},
    {"gather/nz_alignments",
     "gather_pa_kv_cache:idx=i64,mode=nz,dtype=u8,h=1,dk=288,dv=32,bs=5,lens=9;7,align={0..63}"},

    // Around the sizes where threads and non-temporal stores begin.
    {"gather/around_256_kib",
     G "dtype=u8,h=1,dk=1024,dv=1024,bs=16,lens={127|128|129},align={0|5},streaming={0|1}"},
    {"gather/around_32_mib",
     "gather_pa_kv_cache:idx=i64,dtype=u8,h=1,dk=4096,dv=4096,bs=64,"
     "{lens=4095|lens=4096|lens=4097|lens=4097,align=9},threads=1;3,streaming={0|1}"},
    {"gather/nz_around_32_mib",
     "gather_pa_kv_cache:idx=i32,mode=nz,dtype=bf16,h=1,dk=2048,dv=2048,bs=128,"
     "lens={4095|4097},align={0|9},threads=1;3"},
    {"gather/small_rows_around_32_mib",
     "gather_pa_kv_cache:idx=i64,dtype=u8,h=1,dk={40|129},dv=1,bs=16,lens=300k,streaming=1"},

    // Empty pairs.
    {"gather/key_empty", G "dk=0,dv=8,lens=9;7,mode={nd|nz},dtype=i32,policy={default|report|reject}"},
    {"gather/value_empty",
     G "dk=8,dv=0,lens=9;7,mode={nd|nz},dtype=i32,put=0/1/-1,policy={default|report|reject}"},
    {"gather/value_without_heads", G "hv=0,lens=9;7,policy={default|report}"},
    {"gather/both_empty", G "dk=0,dv=0,lens=9;7,mode={nd|nz}"},
    {"gather/no_rows", G "lens=9;7,n=0,policy={default|report|reject}"},
    {"gather/no_batches_no_rows", G "lens=,n=0,w={0|2}"},
    {"gather/no_columns_no_rows", G "lens=0;0,n=0,w=0"},
};

#undef G

}  // namespace

std::span<const RegisteredCase> gather_registered_cases() {
  return kCases;
}

}  // namespace kvferry::harness
