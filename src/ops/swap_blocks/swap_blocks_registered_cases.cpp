// SPDX-License-Identifier: Apache-2.0
//
// The registered cases of swap_blocks: one name, one idea. What it shares with copy_blocks is tried there.
#include "ops/swap_blocks/swap_blocks_cases.hpp"

namespace kvferry::harness {
namespace {

#define S "swap_blocks:idx={i32|i64},"
#define POLICIES "policy={default|report|reject},"

constexpr RegisteredCase kCases[] = {
    // Pools.
    {"swap/61_layers_of_k_and_v", S "caches=122,shape=16;2;64/16;2;32,dtype=bf16;e4m3,n={1|3|40}"},
    {"swap/layers_of_every_dtype", S "caches=12,dtype=f16;bf16;f32;i8;u8;i16;u16;i32;u32;hif8;e5m2;e4m3"},
    {"swap/out_to_a_larger_pool", S POLICIES "n=20,nb=20,nbd=300,pairs={random|runs|seq}"},
    {"swap/into_a_smaller_pool", S POLICIES "n=20,nb=300,nbd=20,pairs={random|seq}"},
    {"swap/pools_of_one_block", S "nb=1,nbd=1,pairs=0/0,l=one,sl=one"},
    {"swap/same_ids_on_both_sides", S POLICIES "nb=9,pairs=3/3;4/4;0/5;5/0"},
    {"swap/one_source_for_all", S POLICIES "nb=9,nbd=40,n=40,pairs=seq,put=0/7/0;1/7/1;2/7/2"},

    // Sizes.
    {"swap/blocks_of_few_bytes", S "dtype=u8,shape={1..33|63|64|65|127|128|129|255|256|257},n=40"},
    {"swap/blocks_around_thresholds",
     "swap_blocks:dtype=u8,shape={511|512|513|4095|4096|4097|64k-1|64k|64k+1|128k-1|128k|128k+1|256k-1|256k|"
     "256k+1},n=5,streaming={0|1}"},
    {"swap/calls_around_32_mib", "swap_blocks:dtype=f32,shape=2048,n={4095|4096|4097},nb=4100,threads=1;3"},
    {"swap/one_block_of_64_mib", "swap_blocks:dtype=f32,shape=16M,pairs=0/0,nb=1,threads=1;2;3"},
    {"swap/one_block_of_64_mib_between_layouts",
     "swap_blocks:dtype=f32,shape=16;1000;1000,pairs=0/0,nb=1,sl=order0213,threads=1;3"},
    {"swap/100000_pairs",
     "swap_blocks:dtype=u8,shape={1|8|33},n=100000,nb=100000,pairs={random|seq|runs},threads=3"},

    // Runs.
    {"swap/runs", S POLICIES "shape={3|400|5000},n={7|200},pairs={seq|runs}"},
    {"swap/run_by_its_ends_only", S "shape=40,nb=120,pairs=10/40;11/41;100/42;13/43"},
    {"swap/run_of_one_side_only", S "shape=40,nb=120,pairs={10/40;11/41;12/60;13/43|10/40;10/41;10/42}"},
    {"swap/run_up_to_the_last_block_of_either",
     S POLICIES "shape=40,nb={12|13|14},nbd={32|33|34},pairs=10/30;11/31;12/32;13/33,guard=before"},
    {"swap/run_of_blocks_padded_on_one_side", S "shape=5;8,n=30,pairs=seq,{sl=pad2:3|l=pad2:3|sl=pad1:2}"},
    {"swap/run_of_blocks_backwards_on_one_side", S "shape=40,n=30,pairs=seq,{sl=neg0|l=neg0|sl=neg0+neg1}"},
    {"swap/run_from_a_permuted_pool", S "shape=4;2;16,n=30,pairs=seq,{sl=order0213|l=order0213}"},
    {"swap/run_across_claims", "swap_blocks:dtype=u8,shape=1000,n=3000,pairs={seq|runs},threads=1;2;3"},
    {"swap/a_run_onto_its_own_numbers", S POLICIES "shape={3|400},nb=20,pairs=0/1;1/2;2/3;3/4;4/5"},

    // Layouts.
    {"swap/between_layouts",
     S "shape=4;2;16,n=20,sl={order0213|order1023|pad3:5},l={order0213|order2013|step2}"},
    {"swap/fractal_units_to_tokens", S "shape=16;12;16,n=9,{sl=order0213|l=order0213},threads=1;3"},
    {"swap/element_by_element", S "dtype={u8|f16|f32},shape=33;47,n=9,{sl=order021|l=order021},threads=1;3"},
    {"swap/rank_8_between_orders",
     S "shape=2;3;2;2;3;2;3,n=5,sl={order07654321|order76543210|step2+neg3},l={order01357246|pad7:1+pad5:1}"},
    {"swap/broadcast_source", S "shape=4;2;16,n=20,sl={set0:0|set1:0|set2:0|set3:0}"},
    {"swap/large_planes_to_dense_blocks",
     "swap_blocks:dtype=u8,shape=2;1M+1,n=2,nb=3,{sl=order102|l=order102},threads=1;2;3"},
    {"swap/misaligned_sides", S "dtype=u8,shape={16|656|5000},n=9,align=0..63"},
    {"swap/at_pages", S "dtype=u8,shape={1..33|4095|4096|4097},n=9,guard={before|after}"},

    // mapping and count.
    {"swap/mapping_strided", S "n=20,ml={order10|pad1:3|step2|neg0|neg1|neg0+neg1|off5}"},
    {"swap/count", S POLICIES "n=9,count={-5|0|1|8|9|10|2147483647|-2147483648},ct={i32|i64},crank={0|1}"},
    {"swap/pairs_behind_the_count_are_not_judged", S POLICIES "nb=20,pairs=0/10;1/11;99/10;0/99,count=2"},

    // Bad pairs.
    {"swap/padding", S POLICIES "nb=20,pairs=-1/10;0/-1;-1/-1;1/11;-1/99;99/-5"},
    {"swap/out_of_range_of_one_pool", S POLICIES "nb=10,nbd=20,pairs=9/19;10/11;1/20;99/77;2/12"},
    {"swap/ids_at_the_limits_of_32_bits", S POLICIES
     "nb=20,pairs=0/10;1/11,put={0/2147483647/10|0/0/2147483647|1/-2147483648/11|1/1/-2147483648}"},
    {"swap/ids_that_wrap_to_32_bits",
     "swap_blocks:idx=i64," POLICIES "nb=20,pairs=0/10;1/11,put={0/2^32/10|0/0/2^32+1|1/2^31/11|1/1/2^63-1|1/"
     "-2^63/11|1/1/-2^63|1/2^63-1/2^63-1}"},
    {"swap/one_destination_of_two_pairs", S POLICIES "nb=20,pairs=0/10;1/11;2/12;3/10;4/12;5/10"},
    {"swap/destination_has_a_source_s_number", S POLICIES "nb=20,pairs=0/10;10/11;11/0"},
    {"swap/taken_and_out_of_range", S POLICIES "nb=20,pairs=0/10;1/10;20/10;1/-1"},

    // Nothing to do.
    {"swap/no_tensors", S POLICIES "caches=0,nb=0,pairs=0/99"},
    {"swap/no_pairs", S POLICIES "n=0"},
    {"swap/no_bytes", S POLICIES "shape=4;0;16,pairs=0/99"},
    {"swap/one_pair_of_tensors_without_bytes", S POLICIES "shape=4;2/0;3/5,nb=20,pairs=0/10;0/20"},
    {"swap/no_blocks_on_one_side", S POLICIES "{nb=0,nbd=5|nb=5,nbd=0|nb=0,nbd=0},pairs={0/1|-1/-1}"},

    // Beyond 32 bits.
    {"swap/out_of_5_gib", "swap_blocks:dtype=f32,shape=64k,nb=20000,nbd=3,pairs=19999/1;0/0;16385/2,via=run"},
    {"swap/into_5_gib", "swap_blocks:dtype=f32,shape=64k,nb=3,nbd=20000,pairs=1/19999;0/0;2/16385,via=run"},
    {"swap/block_strides_of_2_gib",
     "swap_blocks:dtype=u16,shape=300;7,sl=pad1:2^30,l=pad1:1073741829,nb=4,pairs=3/1;2/3,via=run"},
    {"swap/6_gib_of_work_mostly_skipped",
     "swap_blocks:dtype=u8,shape=1M,nb=4,nbd=9,n=6000,pairs=-1/-1,put=0/3/4;4096/0/7;5999/2/8,threads=1;3"},
};

#undef POLICIES
#undef S

}  // namespace

std::span<const RegisteredCase> swap_blocks_registered_cases() {
  return kCases;
}

}  // namespace kvferry::harness
