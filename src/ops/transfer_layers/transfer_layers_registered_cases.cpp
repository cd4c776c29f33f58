// SPDX-License-Identifier: Apache-2.0
//
// The registered cases of transfer_layers: one name, one idea.
#include "ops/transfer_layers/transfer_layers_cases.hpp"

namespace kvferry::harness {
namespace {

// Both directions, both chunks, both index types.
#define T "transfer_layers:dir={out|in},chunk={layer|page},idx={i32|i64},"

constexpr RegisteredCase kCases[] = {
    // Shapes.
    {"layers/default", T "policy={default|report|reject}"},
    {"layers/61_layers", T "l=61,n=7,bs=16,h=1,d=72"},
    {"layers/61_layers_mla", T "l=61,values=0,n=3,bs=16,h=1,d=576,dtype=bf16"},
    {"layers/mla", T "values=0,policy={default|report|reject}"},
    {"layers/one_of_everything", T "l=1,n=1,nb=1,bs=1,h=1,d=1,values={0|1}"},
    {"layers/one_layer", T "l=1,n=9"},
    {"layers/all_dtypes", T "dtype={f16|bf16|f32|i8|u8|i16|u16|i32|u32|hif8|e5m2|e4m3}"},
    {"layers/slots_of_92_bytes", T "dtype=bf16,h=1,d=46,bs=16,kc={dense|pad2:2}"},
    {"layers/slot_bytes_small", T "dtype=u8,h=1,d={1..33},bs=3"},
    {"layers/block_bytes_thresholds",
     T "dtype=u8,h=1,bs=1,l=2,d={63|64|65|511|512|513|4095|4096|4097},n=3,streaming={0|1}"},
    {"layers/block_bytes_large",
     "transfer_layers:dir={out|in},dtype=u8,values=0,h=1,bs=1,l=2,d={64k-1|64k|128k-1|128k|128k+1|1M+1},n=2"},
    {"layers/rows_of_656_bytes", T "dtype=u8,values=0,h=1,d=656,bs=64,kc={dense|pad2:48}"},

    // Ids.
    {"layers/ids_in_order", T "ids=seq,n=9"},
    {"layers/same_block_many_times_out",
     "transfer_layers:chunk={layer|page},ids=3;3;1;3,nb=4,"
     "policy={default|report|reject}"},
    {"layers/negative_ids", T "ids={-1;5;-1;6|-1*6|-2147483648;3;-7},nb=8,policy={default|report|reject}"},
    {"layers/minus_1_leaves_the_last_block", T "ids=-1,nb=2,policy={default|report|reject}"},
    {"layers/ids_out_of_range", T "ids={8;3;9|2147483647;3|7;8},nb=8,policy={default|report|reject}"},
    {"layers/ids_of_64_bits",
     "transfer_layers:dir={out|in},chunk={layer|page},idx=i64,nb=8,"
     "ids={2^40;3;-2^40|2^32+1;2^32;1|2^63-1;-2^63;2},policy={default|report|reject}"},
    {"layers/repeated_ids",
     T "ids={5;6;5|5;5;5;5|1;2;3;2;1|7;0;7;-1;-1},nb=8,policy={default|report|reject}"},
    {"layers/repeated_and_out_of_range",
     T "ids={5;8;5;8|99;99;3;3|5;5;30},nb=8,policy={default|report|reject}"},
    {"layers/order_of_refusals", T "ids=3;3;99,nb=8,policy=reject"},
    {"layers/many_bad_ids_are_counted", T "n=900,ids=0;99;-1;5;100,nb=20,policy=report,l=2,h=1,d=8"},
    {"layers/few_of_many_blocks", T "nb=3000,n=4,bs=2"},

    // Nothing to do, and nothing to read.
    {"layers/no_layers", T "l=0,values={0|1},policy={default|report|reject}"},
    {"layers/no_entries", T "n=0,nb={0|4},policy={default|report|reject}"},
    {"layers/no_blocks", T "nb=0,n=3,ids=0;-1;5,policy={default|report|reject}"},
    {"layers/no_bytes", T "{h=0|d=0},ids=99;-1,nb=3,policy={default|report|reject}"},

    // Strides.
    {"layers/kv_first", T "cat=0"},
    {"layers/blocks_first", T "cat=1"},
    {"layers/kv_in_one_row", T "cat={2|3}"},
    {"layers/heads_first", T "kc=order0213"},
    {"layers/heads_first_on_both_sides", T "kc=order0213,c=order012435,bs=16,h=4,d=64"},
    {"layers/strides_differ_by_layer", T "l=7,kc=dense;order0213;pad2:3;neg0+neg2,vc=pad1:5;dense"},
    {"layers/padded_blocks", T "kc=pad1:{1|8|48}"},
    {"layers/padded_slots", T "kc=pad2:{1|8|48}"},
    {"layers/pools_permuted", T "kc=order{3210|1023|2031|0132}"},
    {"layers/last_axis_step_2", T "kc=step{2|3},c=step2"},
    {"layers/negative_strides", T "kc=neg{0|1|2|3},c=neg0+neg1+neg2+neg3+neg4+neg5"},
    {"layers/view_offsets", T "kc=off{1|64|77},vc=off3,c=off5,bi=off7"},
    {"layers/chunk_permuted", T "c=order{543210|102345|210345|012435|012543}"},
    {"layers/chunk_padded", T "c=pad{0|1|2|3|4|5}:3"},
    {"layers/block_ids_strided", T "bi={step3|neg0|step2+neg0},policy={default|report}"},
    {"layers/axes_of_1_with_absurd_strides",
     T "kc=one,c=one,bi=one,l=1,n=1,nb=1,bs={1|4},h=1,d={1|8},values={0|1}"},
    {"layers/one_pool_for_all_blocks", "transfer_layers:kc=set0:0,chunk={layer|page}"},
    {"layers/one_place_for_all_entries",
     "transfer_layers:dir=in,chunk={layer|page},c=set{0|1}:0,kc={dense|order0213}"},

    // More than 4 GiB.
    {"layers/pools_above_4_gib", T "l=2,values={0|1},dtype=bf16,nb=70000,bs=16,h=8,d=256,"
                                   "ids=69999;0;65536;32768;32767,threads=1;3"},
    {"layers/stride_1039680",
     T "l=1,dtype=bf16,kc=set0:1039680,nb=4200,bs=4,h=1,d=64,ids=2066;4199;0;2065;2067"},
    {"layers/chunk_above_4_gib", T "l=3,n=3,nb=4,bs=2,h=1,d=8,c=set{0|1}:{2^31|2^32}"},

    // Places.
    {"layers/at_unmapped_pages",
     T "guard={before|after},dtype=u8,h=1,d={1|13|100|257|5000},bs=3,kc={dense|neg0},streaming={0|1}"},
    {"layers/alignments", "transfer_layers:dir={out|in},dtype=u8,h=1,d=300,align={0..63}"},
    {"layers/mixed_alignments", T "dtype=u8,h=1,d=700,bs=3,align={1;2;3;5;7;11;13|32;16;8;4;2;1|63;0;31}"},

    // Around the sizes where threads and non-temporal stores begin.
    {"layers/around_256_kib", T "dtype=u8,l=2,h=1,d=1024,bs=16,n={3|4|5},nb=9,align={0|5},streaming={0|1}"},
    {"layers/around_32_mib",
     "transfer_layers:{dir=out,chunk=layer|dir=in,chunk=page},dtype=u32,l=4,h=1,d=1024,bs=16,n={63|64|65},nb="
     "70,"
     "threads=1;3,streaming={0|1}"},
    {"layers/one_large_block", T "dtype=u8,l=1,values=0,n=1,h=1,d=4096,bs=1000,threads=1;2;3;4"},
    {"layers/small_blocks_in_one_large_call",
     "transfer_layers:dir={out|in},dtype=u32,l=3,bs=1,h=1,d=10,n=30k,nb=30k,streaming=1,threads=1;3"},
    {"layers/large_blocks_that_are_not_dense",
     "transfer_layers:dir={out|in},chunk={layer|page},kc=order0213,l=2,n=6,bs=128,h=8,d=128,threads=1;3"},
};

#undef T

}  // namespace

std::span<const RegisteredCase> transfer_layers_registered_cases() {
  return kCases;
}

}  // namespace kvferry::harness
