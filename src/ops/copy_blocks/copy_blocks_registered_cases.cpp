// SPDX-License-Identifier: Apache-2.0
//
// The registered cases of copy_blocks: one name, one idea.
#include "ops/copy_blocks/copy_blocks_cases.hpp"

namespace kvferry::harness {
namespace {

#define C "copy_blocks:idx={i32|i64},"
#define POLICIES "policy={default|report|reject},"

constexpr RegisteredCase kCases[] = {
    // Layers.
    {"copy/61_layers_of_k_and_v", C "caches=122,shape=16;2;64/16;2;32,dtype=bf16;e4m3,n={1|3|40}"},
    {"copy/61_layers_of_mla", "copy_blocks:caches=61,shape=64;1;576,dtype=bf16,n=6,threads=1;3"},
    {"copy/layers_of_every_dtype", C "caches=12,dtype=f16;bf16;f32;i8;u8;i16;u16;i32;u32;hif8;e5m2;e4m3"},
    {"copy/1000_caches", "copy_blocks:caches=1000,shape=3/5/,dtype=u8;f16,n=3"},
    {"copy/caches_of_all_ranks",
     C "shape=/7/7;3/2;3;4/2;3;1;4/2;1;3;2;3/2;1;1;3;1;2/2;1;2;3;1;2;2,dtype=u8;f16;f32,n=9"},

    // Sizes of blocks.
    {"copy/blocks_of_few_bytes", C "dtype=u8,shape={1..33|63|64|65|127|128|129|255|256|257},n=40"},
    {"copy/blocks_around_thresholds",
     "copy_blocks:dtype=u8,shape={511|512|513|4095|4096|4097|64k-1|64k|64k+1|128k-1|128k|128k+1|256k-1|256k|"
     "256k+1},n=5,streaming={0|1}"},
    {"copy/blocks_around_a_claim", "copy_blocks:dtype=u8,shape={1M-1|1M|1M+1},n=3,threads=1;2;3"},
    {"copy/calls_around_256_kib", C "dtype=u8,shape=4096,n={63|64|65},pairs={random|seq},streaming={0|1}"},
    {"copy/calls_around_32_mib", "copy_blocks:dtype=f32,shape=2048,n={4095|4096|4097},threads=1;3"},
    {"copy/one_block_of_64_mib", "copy_blocks:dtype=f32,shape=16M,pairs=1/0,nb=2,threads=1;2;3"},
    {"copy/one_odd_block_of_64_mib", "copy_blocks:dtype=f32,shape=16M+1,pairs=1/0,nb=2,threads=3,align=7"},
    {"copy/one_huge_block_among_small_ones", "copy_blocks:dtype=u8,shape=3/4M+1/5,n=2,nb=4,threads=1;2;3;4"},

    // Numbers of pairs.
    {"copy/numbers_of_pairs", C "shape=8,n={1|2|3|255|256|257|4096},pairs={random|seq|runs}"},
    {"copy/100000_pairs", "copy_blocks:dtype=u8,shape={1|8|33},n=100000,threads=1;3"},
    {"copy/100000_pairs_sorted",
     "copy_blocks:dtype=u8,shape=8,n=100000,pairs={seq|runs},policy={report|reject},threads=3"},

    // Runs: neighbours on both sides, and what only looks like it.
    {"copy/runs", C POLICIES "shape={3|400|5000},n={7|200},pairs={seq|runs}"},
    {"copy/run_by_its_ends_only", C "shape=40,nb=120,pairs=10/40;11/41;100/42;13/43"},
    {"copy/run_of_sources_only", C "shape=40,nb=120,pairs=10/40;11/41;12/60;13/43"},
    {"copy/run_of_destinations_only", C "shape=40,nb=120,pairs=10/40;10/41;10/42;10/43"},
    {"copy/run_backwards", C "shape=40,nb=120,pairs=13/43;12/42;11/41;10/40"},
    {"copy/run_with_padding_inside", C "shape=40,nb=120,pairs=10/40;-1/41;12/42;13/-1;14/44"},
    {"copy/run_up_to_the_last_block", C POLICIES "shape=40,nb=20,pairs=7/17;8/18;9/19,guard=before"},
    {"copy/run_beyond_the_last_block",
     C POLICIES "shape=40,nb=20,pairs=7/17;8/18;9/19;10/20;11/21,guard=before"},
    {"copy/run_of_padded_blocks", C "shape=5;8,n=30,pairs={seq|runs},l={pad2:3|pad1:3}"},
    {"copy/run_of_blocks_that_run_backwards", C "shape=40,n=30,pairs={seq|runs},l={neg0|neg1|neg0+neg1}"},
    {"copy/run_across_claims", "copy_blocks:dtype=u8,shape=1000,n=3000,pairs={seq|runs},threads=1;2;3"},

    // Layouts.
    {"copy/heads_outside", C "shape=4;2;16,n=20,pairs={random|seq},l={order0213|order2013|order1023}"},
    {"copy/k_and_v_in_planes", C "shape=2;8;16,n=20,pairs={random|seq},l=order1023"},
    {"copy/large_planes_are_split_inside",
     "copy_blocks:dtype=u8,shape=2;1M+1,n=2,nb=5,l=order102,threads=1;2;3"},
    {"copy/padded_rows_are_split_inside",
     "copy_blocks:dtype=f16,shape=300;{5|500|3000},n=2,nb=5,l=pad2:3,threads=1;3"},
    {"copy/strided_elements", C "shape=30;70,n=9,l=step3,threads=1;3"},
    {"copy/rank_8_of_every_order", C "shape=2;3;2;2;3;2;3,n=5,l={order07654321|order76543210|order01357246|"
                                     "pad7:1+pad6:1+pad5:1+pad4:1+pad3:1+"
                                     "pad2:1|step2+neg3+neg5}"},
    {"copy/blocks_inside_out", C "shape=6;5,n=9,l={order210|order120|order102}"},
    {"copy/axes_of_length_1", C "shape=1;4;1;16,n=9,l=one+off5,nb={3|40},pairs=0/1"},
    {"copy/row_pitch_of_92_bytes", C "shape=16;1;46,dtype=bf16,n=9,align=0..63"},
    {"copy/rows_of_656_bytes", C "shape=64;656,dtype=u8,n=9,align=4"},

    // Guard pages.
    {"copy/at_the_end_of_a_page", C "dtype=u8,shape={1..33|4095|4096|4097},n=9,guard=before"},
    {"copy/at_the_start_of_a_page", C "dtype=u8,shape={1..33|4095|4096|4097},n=9,guard=after"},
    {"copy/strided_at_pages", C "shape=3;5;7,n=9,l={order0321+pad3:1|step2},guard={before|after}"},

    // mapping and count.
    {"copy/mapping_strided", C "n=20,ml={order10|pad1:3|step2|neg0|neg1|neg0+neg1|off5}"},
    {"copy/one_pair_with_absurd_stride", C "n=1,ml=one"},
    {"copy/count", C POLICIES "n=9,count={-5|0|1|8|9|10|2147483647|-2147483648},ct={i32|i64},crank={0|1}"},
    {"copy/count_of_64_bits", C "n=9,count={2^40|-2^63|2^63-1|2^32+3},ct=i64"},
    {"copy/pairs_behind_the_count_are_not_judged", C POLICIES "nb=20,pairs=0/10;1/11;99/10;0/99,count=2"},

    // Bad pairs.
    {"copy/padding", C POLICIES "nb=20,pairs=-1/10;0/-1;-1/-1;1/11;-1/99;99/-5"},
    {"copy/nothing_but_padding", C POLICIES "n=9,pairs=-1/-1"},
    {"copy/out_of_range", C POLICIES "nb=20,pairs=0/10;20/11;1/20;99/77;2/12"},
    {"copy/first_out_of_range_source_first", C POLICIES "nb=20,pairs=21/22"},
    {"copy/ids_at_the_limits_of_32_bits", C POLICIES
     "nb=20,pairs=0/10;1/11,put={0/2147483647/10|0/0/2147483647|1/-2147483648/11|1/1/-2147483648}"},
    {"copy/ids_that_wrap_to_32_bits",
     "copy_blocks:idx=i64," POLICIES "nb=20,pairs=0/10;1/11,put={0/2^32/10|0/0/2^32+1|1/2^31/11|1/1/2^63-1|1/"
     "-2^63/11|1/1/-2^63|1/2^63-1/2^63-1}"},
    {"copy/source_is_destination", C POLICIES "shape={8|4000},nb=20,pairs=3/3;0/10;3/11;10/10;3/3"},
    {"copy/source_is_destination_out_of_range", C POLICIES "nb=20,pairs=0/10;20/20"},
    {"copy/one_destination_of_two_pairs", C POLICIES "nb=20,pairs=0/10;1/11;2/12;3/10;4/12;5/10"},
    {"copy/destination_is_a_later_source", C POLICIES "nb=20,pairs=0/10;10/11;1/12"},
    {"copy/destination_is_an_earlier_source", C POLICIES "nb=20,pairs=10/11;0/10;1/12"},
    {"copy/source_and_destination_taken", C POLICIES "nb=20,pairs=0/10;1/11;10/11"},
    {"copy/a_chain_that_looks_like_a_run", C POLICIES "shape={3|400},nb=20,pairs=0/1;1/2;2/3;3/4;4/5"},
    {"copy/a_run_onto_its_own_end", C POLICIES "shape={3|400},nb=20,pairs=0/3;1/4;2/5;3/6;4/7;5/8"},
    {"copy/a_run_onto_its_own_start", C POLICIES "shape={3|400},nb=20,pairs=3/0;4/1;5/2;6/3;7/4;8/5"},
    {"copy/taken_and_out_of_range", C POLICIES "nb=20,pairs=0/10;1/10;20/10;1/-1"},
    {"copy/a_taken_block_of_a_skipped_pair_is_free",
     C POLICIES "nb=20,pairs=0/10;20/11;1/11;10/-1;12/20;2/12"},

    // Nothing to do.
    {"copy/no_caches", C POLICIES "caches=0,nb=0,pairs=0/99"},
    {"copy/no_pairs", C POLICIES "n=0"},
    {"copy/no_bytes", C POLICIES "shape=4;0;16,pairs=0/99"},
    {"copy/one_cache_without_bytes", C POLICIES "shape=4;2/0;3/5,nb=20,pairs=0/10;0/20"},
    {"copy/no_blocks", C POLICIES "nb=0,pairs={0/1|-1/-1}"},

    // Beyond 32 bits.
    {"copy/5_gib_cache",
     "copy_blocks:dtype=f32,shape=64k,nb=20000,pairs=19999/19998;0/16386;16385/1,via=run"},
    {"copy/block_stride_of_2_gib",
     "copy_blocks:dtype=u16,shape=300;7,l=pad1:2^30,nb=4,pairs=3/1;2/0,via=run"},
    {"copy/6_gib_of_work_mostly_skipped",
     "copy_blocks:dtype=u8,shape=1M,nb=12,n=6000,pairs=-1/-1,put=0/3/4;4096/0/7;4100/1/8;5999/2/"
     "9,threads=1;3"},
};

#undef POLICIES
#undef C

}  // namespace

std::span<const RegisteredCase> copy_blocks_registered_cases() {
  return kCases;
}

}  // namespace kvferry::harness
