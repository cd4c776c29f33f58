// SPDX-License-Identifier: Apache-2.0
//
// The registered cases of group_memcpy: one name, one idea.
#include "ops/group_memcpy/group_memcpy_cases.hpp"

namespace kvferry::harness {
namespace {

#define M "group_memcpy:tt={i64|u64},"

constexpr RegisteredCase kCases[] = {
    // Sizes and alignments.
    {"group/sizes_0_to_33_all_alignments", "group_memcpy:w={0..33},sa=0..33,da=0..33"},
    {"group/sizes_around_4096_all_alignments",
     "group_memcpy:w={4095|4096|4097},sa=0..33,da=0..33,threads=1;3"},
    {"group/per_pair_sizes_all_alignments",
     "group_memcpy:sizes=0..40;255;256;257;511;512;513,sa=0..33,da=0..33,threads=1;3"},
    {"group/around_thresholds",
     M "w={63|64|65|127|128|129|255|256|257|511|512|513|1023|1024|1025|1152|2047|2048|2049},h=19,"
       "sa={0|1;16},da={0|3;32},streaming={0|1}"},
    {"group/large_pairs",
     M "w={24576|64k-1|64k|64k+1|128k-1|128k|128k+1|256k|1M-1|1M|1M+1},h=3,sa=0;5,da=0;9"},
    {"group/one_pair_of_64_mib", M "w=64M,h=1,threads=1;2;3"},
    {"group/one_pair_of_64_mib_misaligned", "group_memcpy:w=64M+3,h=1,sa=7,da=1,threads=1;3"},
    {"group/one_large_among_small", M "sizes=1;2;3;4M+1;5;6;7;0;9,threads=1;2;3;4"},
    {"group/around_256_kib", M "w=4096,h={63|64|65},streaming={0|1},da=0;5"},
    {"group/around_32_mib", "group_memcpy:w=8192,h={4095|4096|4097},threads=1;3,streaming={0|1}"},

    // Numbers of pairs.
    {"group/numbers_of_pairs", M "h={1|2|3|255|256|257|4096},w={8|100|1024}"},
    {"group/100000_pairs", "group_memcpy:h=100000,w={8|33|128},threads=1;3"},
    {"group/million_pairs_of_8_bytes", "group_memcpy:h=1000000,w=8,pack=1,order={seq|random},threads=1;3"},
    {"group/no_pairs", M "h=0,w=64,table={flat|pairs},checked={0|1}"},
    {"group/no_bytes", M "h=9,w=0,raw=0/src/7;1/dst/9;2/src/0,checked={0|1},count=5"},
    {"group/no_pairs_with_sizes", M "h=0,sizes=,checked={0|1}"},

    // The table.
    {"group/table_strided", M "table=flat,tl={step2|step3|neg0|off5|tail9},h=20,w=40"},
    {"group/table_of_pairs_strided",
     M "table=pairs,tl={order10|pad1:3|step2|neg0|neg1|neg0+neg1|off5},h=20,w=40"},
    {"group/one_pair_with_absurd_stride", M "table=pairs,tl=one,h=1,w=40"},
    {"group/sizes_strided", M "sizes=1..30,szl={step2|neg0|off3},h=30,tl=step2"},
    {"group/one_size_for_all", M "sizes=77,szl=set0:0,h=30"},
    {"group/fan_out", M "fan={1|2|7},h=100,w={8|64|1000|5000}"},
    {"group/destinations_back_to_back", M "pack=1,order={seq|random},w={1|7|8|31|100|512|513|4096},h=50"},

    // Guard pages, at every pair.
    {"group/every_pair_ends_at_a_page", M "lone=1,guard=before,w={1..33},h=3"},
    {"group/every_pair_starts_at_a_page", M "lone=1,guard=after,w={1..33},h=3"},
    {"group/large_pairs_at_pages",
     M "lone=1,guard={before|after},w={63|64|65|255|256|257|511|512|513|4095|4096|4097|64k+1|1M+5},"
       "h=5,streaming={0|1}"},
    {"group/mixed_sizes_at_pages", M "lone=1,guard={before|after},sizes=1;2;3;4095;4096;4097;8;100;513,h=27"},
    {"group/table_at_the_end_of_a_page", M "guard=before,h=33,w=7,table={flat|pairs},sa=0..10"},
    {"group/canaries_around_every_pair",
     M "lone=1,guard=canary,align=0..63,sizes=1;15;16;17;63;64;65;511;512;513;5000,h=33"},

    // Count.
    {"group/count", M "h=9,w=40,count={-5|0|1|8|9|10|2147483647|-2147483648},ct={i32|i64},crank={0|1}"},
    {"group/count_of_64_bits", M "h=9,w=40,count={2^40|-2^63|2^63-1|2^32+3},ct=i64"},
    {"group/count_with_sizes", M "h=9,sizes=5;600;0;7,count={0|3|100}"},
    {"group/host_count", M "h=9,w=40,host_count={0|1|8|9}"},
    {"group/pairs_behind_the_count_are_not_read",
     M "h=9,w=40,{count=3|host_count=3},raw=3/src/1;8/dst/2,checked={0|1}"},
    {"group/sizes_behind_the_count_are_not_read", M "sizes=3;4;5;-1;-2,{count=3|host_count=3},checked={0|1}"},

    // Null addresses and pairs of nothing.
    {"group/skip_null", M "h=9,w={8|40|1000},skip_null=1,null_src=0;4,null_dst=4;8,checked={0|1}"},
    {"group/skip_null_all", M "h=3,w={8|2^36|2^62},skip_null=1,null_src=0..2,raw=0/dst/0,checked={0|1}"},
    {"group/skip_null_with_sizes", M "sizes=5;0;700;8;9,skip_null=1,null_src=0;3,null_dst=2,checked={0|1}"},
    {"group/checked_null", M "h=9,w={8|1000},checked=1,{null_src=5|null_dst=5}"},
    {"group/null_of_0_bytes_is_fine", M "sizes=5;0;7,null_src=1,checked={0|1}"},
    {"group/source_is_destination", M "h=9,w={8|600|70000},same=0;5;8,checked={0|1}"},
    {"group/negative_size", M "sizes=5;6;-1;8,checked={0|1},skip_null={0|1}"},
    {"group/negative_size_is_refused_before_a_byte", M "sizes=5*200;-9223372036854775808"},
    {"group/negative_size_of_a_null_pair", M "sizes=5;-6;7,null_src=1,skip_null=1"},

    // The checked mode finds overlaps of every kind, and only those.
    {"group/checked_clean", M "h={1|2|100|1000},w={1|8|64},pack=1,checked=1,order={seq|random}"},
    {"group/checked_fan_out", M "h=100,w=64,fan=3,checked=1"},
    {"group/checked_same_destination", M "h=20,w=64,checked=1,move=13/dst/4/dst/0"},
    {"group/checked_destinations_overlap", M "h=20,w=64,checked=1,move=13/dst/4/dst/{1|63|-1|-63}"},
    {"group/checked_destinations_touch",
     M "h=20,w=64,checked=1,da=0,move=13/dst/4/dst/0;4/dst/13/dst/64;5/dst/4/dst/64,"
       "host_count=5"},
    {"group/checked_inside_a_pair", M "h=20,w=64,checked=1,move=7/src/7/dst/{1|63|-1|-63}"},
    {"group/checked_destination_in_source", M "h=20,w=64,checked=1,move=13/src/4/dst/{0|1|63|-1|-63}"},
    {"group/checked_source_spans_destinations", M "h=3,sizes=64;64;5000,checked=1,move=2/src/0/dst/-10"},
    {"group/checked_destination_spans_destinations",
     M "sizes=8;8;8;8;200,checked=1,pack=1,order=seq,host_count={5|4},"
       "move=4/dst/1/dst/-3;3/dst/4/dst/-3"},
    {"group/checked_wraps", M "h=3,w=64,checked=1,raw=1/{src|dst}/{-1|-63}"},
    {"group/checked_1000_pairs_one_bad", M "h=1000,w=16,checked=1,pack=1,move=999/dst/3/dst/15"},

    // More than 2^32 bytes, for real. The destinations share their pages, so that memory stays small.
    {"group/4_gib_in_many_pairs",
     "group_memcpy:h=1030,w=4M,fan=1,pack=1,order=seq,fold=4M,threads=2,via=run"},
    {"group/5_gib_in_one_pair", "group_memcpy:h=1,w=5G,pack=1,order=seq,fold=4M,threads=2", true},
    {"group/5_gib_by_sizes", "group_memcpy:sizes=4M;5G;4M,pack=1,order=seq,fold=4M,threads=2", true},
};

#undef M

}  // namespace

std::span<const RegisteredCase> group_memcpy_registered_cases() {
  return kCases;
}

}  // namespace kvferry::harness
