// SPDX-License-Identifier: Apache-2.0
//
// The registered cases of the scatter: one name, one idea.
#include "ops/scatter_pa_kv_cache/scatter_pa_kv_cache_cases.hpp"

namespace kvferry::harness {
namespace {

#define S "scatter_pa_kv_cache:idx={i32|i64},"

constexpr RegisteredCase kCases[] = {
    // Slots.
    {"scatter/decode_one_token_each", S "t=32,bs=16,h=8,dk=128,mode={nd|nz|nz5|nhsd|nct}"},
    {"scatter/prefill_in_order", S "slots=seq,t=100,bs=16,mode={nd|nz|nz5|nhsd|nct}"},
    {"scatter/runs_in_random_order", S "slots=runs,t=200,bs=16,mode={nd|nz|nz5|nhsd|nct}"},
    // vllm-ascend#10292: [10, 11, 100, 13] is no run.
    {"scatter/broken_run", S "slots={10;11;100;13|10;11;13;12|7;6;5;4|3;4;5;7;8;9},nb=30,mode={nd|nz}"},
    {"scatter/run_over_a_block_border", S "slots={2..9|3;4|0..15},nb=4,bs=4"},
    {"scatter/negative_slots_are_skipped",
     S "slots={-1;5;-1;6|-1*6|-2147483648;3;-7},nb=3,policy={default|report|reject}"},
    {"scatter/last_slot_stays_with_minus_1", S "slots=-1,nb=2,policy=report"},
    {"scatter/slots_out_of_range",
     S "slots={12;3;13|2147483647;3|11;12},nb=3,policy={default|report|reject}"},
    {"scatter/slots_of_64_bits",
     "scatter_pa_kv_cache:idx=i64,slots={2^40;3;-2^40|2^32+1;2^32;1|2^63-1;-2^63;2},nb=3,"
     "policy={default|report|reject}"},
    {"scatter/repeated_slots",
     S "slots={5;6;5|5;5;5;5|1;2;3;2;1|7;8;7;-1;-1},nb=3,policy={default|report|reject}"},
    {"scatter/repeated_and_out_of_range",
     S "slots={5;12;5;12|99;99;3;3|5;5;30},nb=3,policy={default|report|reject}"},
    {"scatter/repeated_in_key_out_of_value", S "slots=9;9;2;2;1,nb=3,nbv=2,policy={default|report|reject}"},
    {"scatter/fewer_value_blocks", S "slots=1;9;4;8,nb=3,nbv=2,policy={default|report|reject}"},
    {"scatter/fewer_key_blocks", S "slots=1;9;4;8,nb=2,nbv=3,policy={default|report|reject}"},
    {"scatter/no_blocks", S "slots=0;1,nb=0,nbv={0|1},policy={default|report|reject}"},
    {"scatter/many_bad_slots_are_counted", S "t=900,slots=0;99;-1;5;100,nb=20,policy=report,threads=1;2;3;4"},
    {"scatter/order_of_refusals", S "slots=3;3;99,nb=3,policy=reject"},

    // Rows.
    {"scatter/padded_rows", S "t=7,tk={7|8|20},tv={7|9},mode={nd|nz|nhsd|nct}"},
    {"scatter/no_tokens", S "t=0,tk={0|5},nb=2,policy={default|report|reject}"},
    {"scatter/key_only",
     S "value={none|rank0|empty},mode={nd|nz|nz5|nhsd|nct},policy={default|report|reject}"},
    {"scatter/value_without_head_size", S "dv=0,policy={default|report|reject}"},
    {"scatter/both_without_head_size", S "dk=0,dv=0"},
    {"scatter/no_heads", S "h=0"},
    {"scatter/all_dtypes",
     S "dtype={f16|bf16|f32|i8|u8|i16|u16|i32|u32|hif8|e5m2|e4m3},mode={nd|nz|nz5|nhsd|nct},dk=64"},
    {"scatter/dtypes_differ", S "dtype=e4m3,vdtype={bf16|f32|i8},dk=64,mode={nd|nz|nz5}"},
    {"scatter/block_sizes", S "bs={1|7|16|128|129},t=150,mode={nd|nz}"},
    {"scatter/row_bytes_small", S "dtype=u8,h=1,dk={1..80},dv=33,t=9"},
    {"scatter/row_bytes_thresholds",
     S "dtype=u8,h=1,dk={127|128|129|255|256|257|511|512|513|1023|1024|1025|2047|2048|2049|"
       "4095|4096|4097},t=7,streaming={0|1}"},
    {"scatter/row_bytes_large",
     S "dtype=u8,h=1,dk={64k-1|64k|64k+1|128k-1|128k|128k+1|1M-1|1M|1M+64},dv=1,bs=2,t=3"},
    {"scatter/rows_of_64_576_640_656_bytes", S "dtype=u8,h=1,dk={64|576|640|656},bs=16,t=50"},
    {"scatter/head_size_46", S "dtype=bf16,h={1|3},dk=46,t=9,bs=16"},
    {"scatter/nz_heads_across_units",
     S "mode=nz,dtype=f16,h={2|4|6},dk={8|24|40},t=9,k=order{012|021},v=pad2:{1|8}"},
    {"scatter/nz_one_unit", S "mode={nz|nz5},dtype={u8|f16|f32},h=1,dk=32,bs={1|2|3|64},t=40"},
    {"scatter/nz_many_units",
     S "mode={nz|nz5},dtype=u8,h=1,dk={64|96|256|288|544},bs={1|2|15|16|17},slots={seq|random},t=40"},
    {"scatter/nz5_heads", S "mode=nz5,dtype=bf16,h={1|3|8},dk={16|32|128},t=20,bs=16"},
    {"scatter/long_tokens", S "dtype=u8,h=1,dk={147456|151552|200000},dv=64,mode={nd|nz},bs=2,t=3"},

    // Nct: tokens at any step of the storage; windows may even overlap.
    {"scatter/nct_padded", S "mode=nct,nct_strides=50;40,nct_offsets=3;0,h=2,dk=16,dv=8,t=9"},
    {"scatter/nct_fused_kv", S "mode=nct,nct_strides=64;64,nct_offsets=0;32,h=2,dk=16,t=9"},
    {"scatter/nct_overlapping_windows", S "mode=nct,nct_strides=1;5,nct_offsets=2;0,h=2,dk=16,t=9"},
    {"scatter/nct_one_token", S "mode=nct,nct_strides=2^40;1,nct_offsets=5;7,h=2,dk=16,t=1"},

    // Strides.
    {"scatter/rows_permuted", S "k=order{021|102|210},v=order102,dk=24,dv=7,mode={nd|nhsd}"},
    {"scatter/cache_permuted", S "kc=order{0213|0132|3210|1023},vc=order0213,dk=24,dv=7,mode={nd|nhsd}"},
    {"scatter/nz_cache_permuted", S "mode=nz,kc=order{0213|0132|3210},k=order{012|210},v=pad1:3,dk=32"},
    {"scatter/fused_kv_rows", S "cat_rows={0|1|2},t=9,mode={nd|nz|nhsd}"},
    {"scatter/caches_in_one_allocation", S "cat_cache={0|1|2|3},slots=runs"},
    {"scatter/latent_and_rope_in_one_row", S "cat_cache=3,cat_rows=2,h=1,dk=512,dv=64,bs=16,t=40,slots=runs"},
    {"scatter/padded_blocks", S "kc=pad1:{1|8|48},vc=pad1:5,slots=runs"},
    {"scatter/padded_slots", S "kc=pad2:{1|8|48},vc=pad2:5,k=pad1:3,v=pad1:16,slots=runs"},
    {"scatter/padded_heads", S "kc=pad3:{1|8|48},vc=pad3:5,k=pad2:3,v=pad2:16,slots=runs"},
    {"scatter/bnsd_storage", S "kc=order0213,vc=order0213,h={1|2|5},slots=runs"},
    {"scatter/view_offset", S "kc=off{1|64|77},vc=off3,k=off5,v=off{9|32}"},
    {"scatter/last_axis_step_2", S "kc=step{2|3},vc=step2,k=step2,v=dense"},
    {"scatter/negative_strides", S "kc=neg{0|1|2|3},vc=neg1+neg3,k=neg{0|1|2},v=neg0+neg2,slots=runs"},
    {"scatter/slot_stride_equal_by_coincidence",
     S "kc={order0213+pad3:24|order0132|order0231},vc=order0213+pad3:24,h=4,dk=8,"
       "bs=4,slots=runs"},
    {"scatter/overlapping_rows_of_an_input", S "k=set0:{0|1|5},v=set1:0,t=9"},
    {"scatter/size_1_axes_with_absurd_strides",
     S "kc=one,vc=one,k=one,v=one,sm=one,h=1,bs={1|4},dk={1|8},t={1|3}"},
    {"scatter/slot_mapping_strided", S "sm={step3|neg0|off2|step2+neg0},t=9,policy={default|report}"},
    {"scatter/row_pitch_92_bytes", S "dtype=bf16,h=1,dk=46,k=pad1:{0|1|2},kc=pad2:2,t=30,bs=16"},

    // Beyond 4 GiB and 2^31 elements: sparse memory.
    {"scatter/cache_of_4e9_elements",
     S "nb=64000,bs=16,h=32,dk=128,slots=1023999;0;524288;640003;640004;7,threads=1;3"},
    {"scatter/nz_cache_above_4_gib", S "mode={nz|nz5},dtype=i8,nb=64000,bs=128,h=1,dk=1024,"
                                       "slots=8191999;4194304;4194305;4194303;0,threads=1;3"},
    {"scatter/cache_above_2_gib_bytes",
     S "dtype=u8,nb=300000,bs=16,h=1,dk=1024,slots=4799999;2097152;2097151;4194304"},
    {"scatter/stride_1039680",
     S "dtype=bf16,kc=set0:1039680,vc=set0:1039680,nb=4200,bs=4,h=1,dk=64,slots=8264;16799;8260;0;8268"},
    {"scatter/rows_above_4_gib", S "k=set0:{2^29|2^31},v=set0:2^32,t=7,h=2,dk=8,dv=8"},
    {"scatter/int32_slots_to_the_limit",
     "scatter_pa_kv_cache:idx=i32,dtype=u8,nb=2^24,bs=128,h=1,dk=32,"
     "slots=2147483647;0;2147483646;2147483640,threads=1;3"},

    // Buffers against unmapped pages, and every alignment.
    {"scatter/ends_at_unmapped_pages",
     S "guard=before,mode={nd|nz|nhsd|nct},dtype=u8,h=1,dk={32|96|160|544},dv=64,bs=3,t=10,"
       "slots={seq|random},streaming={0|1}"},
    {"scatter/starts_behind_unmapped_pages",
     S "guard=after,mode={nd|nz|nhsd|nct},dtype=u8,h=1,dk={32|96|160|544},dv=64,bs=3,"
       "t=10,slots=seq"},
    {"scatter/odd_rows_at_unmapped_pages",
     S "guard={before|after},dtype=u8,h=1,dk={1|3|7|15|17|31|33|63|65|100|257|1000|5000},"
       "dv=13,bs=3,t=10,slots={seq|random}"},
    {"scatter/alignments", "scatter_pa_kv_cache:idx=i64,dtype=u8,h=1,dk=300,dv=64,t=9,align={0..63}"},
    {"scatter/nz_alignments",
     "scatter_pa_kv_cache:idx=i64,mode=nz,dtype=u8,h=1,dk=288,dv=32,bs=5,t=12,slots=runs,align={0..63}"},

    // Around the sizes where threads and non-temporal stores begin.
    {"scatter/around_256_kib",
     S "dtype=u8,h=1,dk=1024,dv=1024,bs=16,t={127|128|129},slots={seq|random},align={0|5},"
       "streaming={0|1}"},
    {"scatter/around_32_mib",
     "scatter_pa_kv_cache:idx=i64,dtype=u8,h=1,dk=4096,dv=4096,bs=64,t={4095|4096|4097},"
     "slots={seq|random},threads=1;3"},
    {"scatter/nz_around_32_mib",
     "scatter_pa_kv_cache:idx=i32,mode=nz,dtype=bf16,h=1,dk=2048,dv=2048,bs=128,t=4097,"
     "slots={seq|random},threads=1;3"},
    {"scatter/small_rows_in_one_large_call",
     "scatter_pa_kv_cache:idx=i64,dtype=u8,h=1,dk=40,dv=1,bs=16,t=200k,slots={seq|"
     "random},streaming=1,threads=1;3"},
};

#undef S

}  // namespace

std::span<const RegisteredCase> scatter_registered_cases() {
  return kCases;
}

}  // namespace kvferry::harness
