// SPDX-License-Identifier: Apache-2.0
//
// The registered cases of gather_dequant: one name, one idea.
#include "ops/gather_dequant/gather_dequant_cases.hpp"

namespace kvferry::harness {
namespace {

#define D "gather_dequant:idx={i32|i64},"

constexpr RegisteredCase kCases[] = {
    // Arithmetic: bits of the scales, each against all 256 codes.
    {"dequant/scales_of_1", D "codes=all,lens=2,scales=1065353216;3212836864"},
    // The least normal number, subnormal ones, zeros: results down to the least bfloat16 and below.
    {"dequant/scales_that_are_tiny", D
     "codes=all,lens=9;9,scales=2^23;2^23+1;2^23-1;2^22;2^16;2^15;98304;1;2;3;2^17;0;2^31;2^31+1;2^31+2^22"},
    {"dequant/results_around_the_least_bfloat16",
     D "codes=all,lens=8;8,scales=2^26;2^27;2^27+2^26;2^25;2^24"},
    {"dequant/scales_that_overflow",
     D "codes=all,lens=8,scales=2139095039;2064384000;2063597568;2064384001;2064383999;4286578687"},
    {"dequant/infinite_scales", D "codes=all,lens=2,scales=2139095040;4286578688"},
    {"dequant/nan_scales", D "codes=all,lens=4,scales=2143289344;4290772992;2139095041;2^31-1;2^32-1"},
    // 1 + k / 256 with the last bit one lower, exact and one higher: code 0x38 is 1.
    {"dequant/ties_to_even",
     D "codes=all,lens=9,scales=1065385983;1065385984;1065385985;1065451519;1065451520;1065451521;1082228736;"
       "3212869632;3212935168"},
    // Rounding to float32 first makes a tie of what was none.
    {"dequant/two_roundings", D "codes=all,lens=40,scales=1061683883;1062557013;1064187564;1064304640.."
                                "1064304655;1066285284..1066285299"},
    {"dequant/scales_as_models_have_them", D "codes=all,lens=70;33,bs=64"},
    {"dequant/any_bits", D "lens=400;77,bs=64,seed={1..5}"},

    // Lengths, offsets and tables: a few of the gather's cases; the code is the same.
    {"dequant/plain_and_cumsum", D "lens=1;3;5;3;7,cumsum={0|1},policy=report"},
    {"dequant/len0_in_middle", D "lens={0;2;0|3;0;0;5|0;0;1},cumsum={0|1}"},
    {"dequant/rows_behind_the_sum_keep", D "lens=3;6;2,extra={1|9},cumsum={0|1}"},
    {"dequant/cut_inside_a_block", D "lens=9;7,n={1|10|14|15},cumsum={0|1}"},
    {"dequant/sums_odd",
     D "sums={-3;4;6|-9;-2;-1|9;12;15|0;6;2;9|4;4;1;1;8},n=6,policy={default|report|reject}"},
    {"dequant/negative_length", D "lens={-1;3|4;-7},n=5,policy={default|report|reject}"},
    {"dequant/offsets",
     D "lens=5;0;7,offset={0;4;16|9;-5;3|1000;4;2147483647},w=9,policy={default|report|reject}"},
    {"dequant/bad_ids", D "lens=9;8;3,nb=6,table={0;-1;2;6;4;1|2147483647;-2147483648;3|5;4;-1},"
                          "policy={default|report|reject}"},
    {"dequant/ids_of_64_bits",
     "gather_dequant:idx=i64,lens=9;8,nb=6,table=0;2^40;2;2^32+1;-2^40;2^32,"
     "policy={default|report|reject}"},
    {"dequant/length_beyond_the_table", D "lens=9;3,w=2,policy={default|report|reject},guard=before"},
    {"dequant/no_blocks", D "lens=9;8,nb=0,policy={default|report|reject}"},
    {"dequant/no_rows", D "lens=9;7,n=0,policy={default|report|reject}"},
    {"dequant/no_batches_no_rows", D "lens=,n=0,w={0|2}"},

    // Layouts and places.
    {"dequant/cache_strided",
     D "dtype={u8|i8},c={pad2:1|pad2:48|pad1:5|order102|neg0+neg1|off3|set0:0|set1:656},o=pad1:1,lens=9;7"},
    {"dequant/out_strided", D "o={order10|step2|neg0|neg1|pad1:7+off5|neg1+step3},nb=6,put=1/1/-1,lens=9;7"},
    {"dequant/axes_of_1_with_absurd_strides", D "c=one,o=one,bt=one,sl=one,bs=1,lens=1,nb=1"},
    {"dequant/at_unmapped_pages", D "guard={before|after},lens=9;7,bs=3,align={0|1|13}"},
    {"dequant/alignments", "gather_dequant:lens=9;7,align={0..63}"},

    // Sizes: threads, and more than 4 GiB of cache.
    {"dequant/around_256_kib", D "bs=64,lens={227|228|229|300},threads=1;2;3;4"},
    {"dequant/around_256_kib_streaming",
     D "bs=64,lens=150;{77|78},align={0|16|32},streaming={0|1},threads=1;3"},
    {"dequant/streaming_into_strided_rows",
     D "bs=64,lens=200;100,put=1/0/"
       "-1,nb=9,o={pad1:8|pad1:16|pad1:32|neg0|neg0+pad1:16|off8|step2},streaming=1"},
    {"dequant/streaming_at_unmapped_pages", D "bs=64,lens=230,guard={before|after},align={0|32},streaming=1"},
    {"dequant/around_32_mib", "gather_dequant:bs=64,lens=29126;5,threads=1;3,streaming={0|1}"},
    {"dequant/one_long_among_short", D "bs=64,lens=4993;1*7,threads=1;2;3"},
    {"dequant/cache_above_4_gib",
     D "nb=120000,bs=64,lens=70;60;130,table=119999;1;102300;51151;51150;0,threads=1;3"},
    {"dequant/strides_above_32_bits", D "c=set0:4294967301,nb=5,bs=2,lens=9;3,table=4;1;3;0;2"},
    {"dequant/out_above_4_gib", "gather_dequant:idx=i64,sums=2^22-5;2^22+3,n=2^22+3,w=2,nb=3,threads=1;3"},
};

#undef D

}  // namespace

std::span<const RegisteredCase> gather_dequant_registered_cases() {
  return kCases;
}

}  // namespace kvferry::harness
