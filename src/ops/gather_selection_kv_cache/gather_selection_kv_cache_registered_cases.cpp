// SPDX-License-Identifier: Apache-2.0
//
// The registered cases of the selection gather: one name, one idea.
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_cases.hpp"

namespace kvferry::harness {
namespace {

#define S "gather_selection_kv_cache:form={bsnd|tnd},"
#define ALL_POLICIES ",policy={default|report|reject}"

constexpr RegisteredCase kCases[] = {
    // Which ids are selected.
    {"selection/plain", S "kv=10,topk=7;2;9;0"},
    {"selection/ids_behind_the_end_are_skipped", S "kv={3|1|7|8},topk=7;2;9;0"},
    {"selection/first_negative_ends", S "kv=10,topk={5;-1;3;2|5;-7;3;2|5;3;2;-2147483648}"},
    {"selection/nothing_selected", S "kv=10:11,topk=7;2;9;0:{-1|-5;2;3;4|99;98}"},
    {"selection/all_too_large", S "kv=10,topk=12;15;99;2147483647"},
    {"selection/smallest", S "k=1,kv=1,topk=0"},
    {"selection/repeats_count_once", S "kv=10:{10|11},topk=5;5;3:{5;5;3|3;5;5;3|3;3;3;3|2;5;2}"},
    {"selection/mixed", S "b=3,s=2,k=33,kv=40;70;9:41;71;10:43;73;12,topk=mixed,bs={1|4}"},
    {"selection/random_steps", S "b=2,s=2,k=20,kv=60;90:62;92:64;94:66;95,overlap={0|50|90|100},bs={1|4}"},

    // Sizes.
    {"selection/k_31_32_33", S "k={31|32|33},kv=100:101,overlap=60,bs={1|4}"},
    {"selection/k_2048", S "k=2048,sblk=128,fblk=128,kv=6000:6001"},
    {"selection/k_2048_one_read_a_step",
     "gather_selection_kv_cache:k=2048,sblk=128,fblk=128,overlap=100,"
     "kv=100:101:102:103:104:105:106:107:108:109:110:111:112:113:114:115:"
     "116:117:118:119:120"},
    {"selection/k_4096_bs_4", S "k=4096,bs=4,sblk=128,fblk=64,kv=20000:20001,kd=3,rd=1,threads=1;3"},
    {"selection/pages_of_2_and_k_7", S "sblk=2,k=7,kv=30:31:32"},
    {"selection/page_sizes", S "bs={1|2|3},sblk={6|12|36},fblk={6|18},k=9,kv=50:51:52"},
    {"selection/default_block_size", S "bs=64,sblk=128,fblk=128,k=32,kv=1000,topk=3;14;0;15;7;9;1;12;5;10;2;"
                                       "13;4;11;8;6"},
    {"selection/many_rows", S "b={1|2},s={7|8|16},k=5,kv=30;40:33;44:34;47,bs={1|2}"},
    {"selection/no_batches", S "b=0,counters={0|1},qmode={counts|sums|all|all_absent}" ALL_POLICIES},
    {"selection/no_rows", "gather_selection_kv_cache:form=bsnd,b=2,s=0,tr=3,q=0,kv=5;6" ALL_POLICIES},

    // Partial blocks.
    {"selection/tail_is_last", S "bs=4,kv=10,topk={2;0|2;0;1|2|0;2}"},
    {"selection/tail_grows", S "bs=4,kv=10:{11|11:12|11:12:13},topk=2;0:2;0:2;0:3;2;0"},
    {"selection/exact_length", S "bs=4,kv=12,topk=2;0"},
    {"selection/tail_not_selected", S "bs=4,kv=10:11,topk={0;1:1;0|2;0:0;1|0;1:2;1}"},
    {"selection/a_full_block_becomes_the_tail", S "bs=4,kv=12:10,topk=2;0"},
    {"selection/tail_pushes_a_resident_out", S "bs=4,kv=16:17,topk=0;1;2;3:4;3;1;0"},
    {"selection/tail_in_place_again", S "bs=4,kv=10:11,topk=2;0;1"},
    {"selection/tail_moves_to_an_earlier_slot", S "bs=4,k=6,kv=22:23,topk=5;0;1;2;3:5;0"},
    {"selection/tail_stays_while_n_grows", S "bs=4,k=6,kv=22:23,topk=5;0:5;0;1;2;3"},
    {"selection/old_tail_id_is_full_now", S "bs=4,kv=10:13:14,topk=2;0:2;0:3;2;0"},
    {"selection/bs_64_tails", S "bs=64,sblk=64,fblk=128,k=3,kv={1|63|64|65|127|128|129}:130:131"},

    // Re-use.
    {"selection/newest_token_not_selected", S "k=8,kv=30:31,topk=4;9;1;17;22;3;28;11"},
    {"selection/nothing_in_common", S "kv=30,topk=1;2;3;4:5;6;7;8"},
    {"selection/slots_compact_when_n_shrinks",
     S "k=8,kv=40:41{|:42},topk=0;1;2;3;4;5;6;7:6;5;7:9;6;5;7;10;11;12;13,bs={1|2}"},
    {"selection/permuted", S "k=8,kv=40:41,topk=0;1;2;3;4;5;6;7:7;3;0;1;6;5;4;2"},
    {"selection/chain_of_moves", S "k=8,kv=40:41,topk=0;1;2;3;4;5;6;7:7;6;5;4:5;4;7"},
    {"selection/misses_take_slots_in_order_of_topk", S "k=6,kv=40:41,topk=0;1;2;3;4;5:20;1;19;3;18;17"},
    {"selection/rows_swap_their_sets", S "s=2,kv=20,topk=3;5;7;9/4;6;8;10:4;6;8;10/3;5;7;9"},
    {"selection/rows_share_misses", S "s={3|4},b=2,k=9,kv=30;50:31;52,topk=shared,overlap=50"},
    {"selection/garbage_behind_the_valid_slots", S "k=8,kv=20:21,topk=3;5:7;0;3;9;5"},
    {"selection/id_in_two_slots", S "k=8,kv=20:21,topk=3;5;9;7:5;3,state=0/0/5;0/2/3"},
    {"selection/negative_and_large_ids_in_the_state",
     S "k=8,kv=20:21,topk=3;5;9;7:5;3,state=0/0/-9;0/2/2147483647;0/3/-2147483648"},
    {"selection/length_beyond_the_row", S "bs={1|4},k=3,kv=40:41,topk=3;5;2,state=0/3/{100|2147483647|13}"},
    {"selection/length_only_reset", S "k=5,kv=20:21,topk=3;5;9;7,state=0/5/{0|-1|-2147483648}"},
    {"selection/takeover_after_a_length_only_reset",
     S "bs={1|4},k=5,kv=50:40,topk=3;5;9;7,state=0/5/0,renew=1"},
    {"selection/takeover_after_a_full_reset",
     S "k=4,kv=50:40,topk=3;5;9;7,state=0/0/-1;0/1/-1;0/2/-1;0/3/-1;0/4/-1,renew=1"},

    // Query lengths and drafts.
    {"selection/drafts_see_less", S "s=3,kv=20,topk=17;18;19;0"},
    {"selection/drafts_are_fetched_again",
     S "s=3,k=9,kv=20:21:23:24:26:27:30,topk=random,overlap=100,bs={1|4}"},
    {"selection/rejected_drafts", S "s=4,k=12,kv=40:38:41:39:39:42,overlap=100,bs={1|4}"},
    {"selection/roll_back_far", S "s=2,k=12,kv=60:20:21:60,overlap=100,bs={1|4}"},
    {"selection/q_of_each_batch", S "b=4,s=4,k=6,kv=20;21;22;23:22;23;24;25,q=1;4;0;2" ALL_POLICIES},
    {"selection/q_above_s", S "b=2,s=2,kv=20;30:23;33,q=2;{3|9|2147483647}" ALL_POLICIES},
    {"selection/q_negative", S "b=2,s=2,kv=20;30:23;33,q={-1|-2147483648};1" ALL_POLICIES},
    {"selection/more_queries_than_tokens", S "s=4,kv={0|1|2|3|4},q={4|2}"},
    {"selection/sums", S "b=3,s=4,kv=20;30;40:21;33;44,q=1;5;7,qmode=sums" ALL_POLICIES},
    {"selection/sums_that_fall", S "b=3,s=4,kv=20;30;40,q={5;2;3|-3;1;4|-2147483648;2147483647;0},"
                                   "qmode=sums" ALL_POLICIES},
    {"selection/all_rows", S "b=2,s=3,kv=20;2:22;4,qmode={all|all_absent}"},
    {"selection/all_rows_read_no_q", S "b=2,s=3,kv=20;2,qmode=all,q=-5;2147483647" ALL_POLICIES},
    {"selection/inactive_rows", S "b=3,kv=0;-5;9:0;0;10,k=4" ALL_POLICIES},
    {"selection/a_row_becomes_inactive", S "s=2,kv=9:1,q=2,k=4"},

    // status_row and the tables.
    {"selection/status_row", S "b=2,s=2,kv=20;30:21;32,srow={3;1;0;2|6;4;5;1}"},
    {"selection/status_rows_change_places", S "b=2,kv=20;30:30;20,srow=0;1:1;0,topk=3;5;9;7/4;6:4;6/3;5;9;7"},
    {"selection/skipped_rows", S "b=2,s=2,kv=20;30:21;32,srow=3;1;0;2:-1;1;-1;2" ALL_POLICIES},
    {"selection/bad_status_rows",
     S "b=2,s=2,kv=20;30,nr=5,srow={3;5;0;2|3;-2;0;2|2147483647;1;0;-2147483648|5;5;1;2}" ALL_POLICIES},
    {"selection/repeated_status_rows",
     S "b=2,s=2,kv=20;30,nr=5,srow={3;3;0;2|1;1;1;1|-1;-1;0;0}" ALL_POLICIES},
    {"selection/extra_table_rows", S "b=2,s=2,kv=20;30:21;31,tr=7"},
    {"selection/extra_status_rows", S "b=2,kv=20;30:21;31,nr=6,tr=9,srow=4;2"},
    {"selection/extra_table_columns", S "kv=20:21,smax=5,snb=5"},
    {"selection/repeated_full_pages", S "b=2,kv=20;30:21;31,table={dup|same},k=9"},
    {"selection/entries_of_other_ids_are_not_read", S "fblk=1,kv=30,topk=7;2;9;0,policy={report|reject}"},

    // Bad entries.
    {"selection/full_page_out_of_range",
     S "s=2,kv=20:21,topk=3;17;0;9,k=6,ftp=0/{0|4|2}/{-1|2147483647|100}" ALL_POLICIES},
    {"selection/full_column_out_of_range",
     S "s=2,kv=20,fmax={0|1|4},topk=3;17;0;19,rd=0,fnb={0|9}" ALL_POLICIES},
    {"selection/selection_page_out_of_range",
     S "b=2,k=9,kv=20;30:21;31,overlap=80,sblk=2,bs={1|2},stp={0/1|1/0|1/4}/{-1|2147483647|77}" ALL_POLICIES},
    {"selection/a_resident_whose_page_went",
     S "k=8,sblk=2,kv=40:41,topk=0;1;2;3;4;5;6;7:{7;6;1;0;3;2;4;5|2;3;7},stp=0/1/-1;0/2/77" ALL_POLICIES},
    {"selection/bad_tail", S "bs=4,kv=10,topk=2;0,ftp=0/0/-3,fblk=4,stp=0/0/{0|-1}" ALL_POLICIES},
    {"selection/bad_page_behind_n",
     S "k=8,sblk=2,kv=40:41,topk=0;1;2;3;4;5;6;7:7;6;1,stp=0/3/-1" ALL_POLICIES},
    {"selection/order_of_refusals",
     S "b=2,s=2,kv=20;30,fmax=2,srow={0;1;1;2|0;1;3;2},q={1;3|2;2},policy=reject"},
    {"selection/many_bad_slots_are_counted",
     S "b=4,s=4,k=40,kv=100,fmax=9,stp=2/3/-1;7/1/-1;15/0/-1,policy=report,threads=1;2;3;4"},

    // Rows of a token.
    {"selection/all_dtypes", S "dtype={f16|bf16|f32|i8|u8|i16|u16|i32|u32|hif8|e5m2|e4m3},kv=20:21"},
    {"selection/odd_rows", S "kd=7,rd=3,dtype={u8|bf16|f32},kv=20:21,k=9"},
    {"selection/no_rope", S "rd=0,rope={none|rank1|empty},kv=20:21"},
    {"selection/quantised_rows", S "dtype=i8,kd=656,rd=0,rope=rank1,k=40,sblk=128,fblk=128,kv=300:301"},
    {"selection/row_bytes",
     S "dtype=u8,kd={1|2|3|15|16|17|31|32|33|63|64|65|127|128|129},rd={1|33},kv=20:21"},
    {"selection/row_bytes_large", S "dtype=u8,kd={4095|4096|4097|100000},rd=64,bs={1|2},kv=20:21"},
    {"selection/gqa_rows", S "kd=1024,rd=1024,dtype=f16,k=9,sblk=16,fblk=16,kv=40:41"},

    // One schedule, many layers.
    {"selection/schedule_and_copy", S "b=2,s=2,k=9,kv=30;40:32;42:33;44,bs={1|4},parts=split" ALL_POLICIES},
    {"selection/two_layers", S "b=2,s=2,k=9,kv=30;40:32;42:33;44,bs={1|4},parts=layers" ALL_POLICIES},
    {"selection/layers_with_bad_entries", S "b=2,s=2,k=9,kv=30;40:32;42,ftp=0/1/-1;1/3/999,stp=1/1/-1,"
                                            "parts=layers" ALL_POLICIES},
    {"selection/without_counters", S "b=2,s=2,kv=20;30:21;31,counters=0,parts={run|split}"},

    // Strides.
    {"selection/latent_and_rope_in_one_row", S "cat_sel=2,cat_full=2,kd=16,rd=4,k=9,kv=40:41"},
    {"selection/caches_in_one_allocation", S "cat_sel=0,cat_full={0|1},kd=8,rd=8,k=9,kv=40:41,snb=8,fnb=12"},
    {"selection/padded_pages_and_tokens",
     S "sk=pad1:{0|7},sr=pad2:5,fk=pad2:{0|9},fr=pad1:3+pad2:1,kv=40:41,k=9"},
    {"selection/permuted_axes",
     S "sk=order{102|210|021},sr=order201,fk=order{021|120},fr=order210,kv=40:41,k=9"},
    {"selection/negative_strides",
     S "sk=neg{0|1|2},sr=neg1+neg2,fk=neg{0|1|2},fr=neg0,kv=40:41,k=9,bs={1|2}"},
    {"selection/last_axis_step_2", S "sk=step2,sr=step3,fk=step2,fr=dense,kv=40:41,k=9"},
    {"selection/offsets", S "sk=off{1|64},sr=off3,fk=off5,fr=off{9|32},kv=40:41"},
    {"selection/indices_strided", S "b=2,s=2,nr=4,srow=2;0;1;3,kv=20;30:21;31,st=step2+neg1,ft=order10+pad0:"
                                    "3,len=step3,ql=neg0,out=neg0+off2,"
                                    "rl=step2,cl=order10,fl=step3+neg0"},
    {"selection/status_and_topk_strided",
     "gather_selection_kv_cache:b=2,s=3,kv=20;30:21;31,ss={order0123|order3210|pad3:4|neg0+neg3},"
     "tk={order0123|order3102|pad3:1|neg1}"},
    {"selection/status_and_topk_strided_tnd",
     "gather_selection_kv_cache:form=tnd,b=2,s=3,kv=20;30:21;31,ss={order210|pad2:4|neg0+neg2},"
     "tk={order201|pad2:1|neg1+neg0}"},
    {"selection/overlapping_inputs", S "b=2,s=2,fk=set0:{0|8},fr=set0:0,len=set0:0,ql=set0:0,kv=20:21,q=2"},
    {"selection/absurd_strides_of_size_1",
     S "k=1,kd=1,rd=1,sblk=1,fblk=1,kv=1,snb=1,fnb=1,fmax=1,sk=one,sr=one,fk=one,fr=one,st=one,ss=one,tk=one,"
       "ft=one,len=one,ql=one,out=one"},
    {"selection/unknown_storage", S "bound=0,b=2,s=2,kv=20;30:21;31"},

    // Buffers against unmapped pages, and every alignment.
    {"selection/at_unmapped_pages", S
     "guard={before|after},b=2,s=2,k=7,kd={1|3|17|64|300},rd=5,dtype=u8,kv=30;40:31;41,bs={1|2},snb={28|30},"
     "sblk={2|4},parts={run|layers}"},
    {"selection/alignments", "gather_selection_kv_cache:dtype=u8,kd=300,rd=64,k=9,kv=40:41,align={0..63}"},

    // Model shapes, and sizes where threads and non-temporal stores begin.
    {"selection/model_cold", "gather_selection_kv_cache:k=2048,sblk=128,fblk=128,kd=512,rd=64,kv=8000"},
    {"selection/model_warm",
     "gather_selection_kv_cache:k=2048,sblk=128,fblk=128,kd=512,rd=64,kv=8000:8001,"
     "overlap={60|100},parts={run|split}"},
    {"selection/model_quantised",
     "gather_selection_kv_cache:k=2048,sblk=128,fblk=128,dtype=i8,kd=656,rd=0,rope=rank1,kv=8000:8001"},
    {"selection/model_shared_rows",
     "gather_selection_kv_cache:k=2048,s=2,sblk=128,fblk=128,kd=512,rd=64,kv=8000:8002,topk=shared,threads=1;"
     "3"},
    {"selection/around_256_kib",
     S "dtype=u8,kd=1024,rd=0,k={255|256|257},kv=600:601,overlap={0|60},streaming={0|1}"},
    {"selection/around_32_mib",
     "gather_selection_kv_cache:dtype=u8,kd=4096,rd=0,k={8191|8193},sblk=128,fblk=64,kv=10000,threads=1;3",
     true},
    {"selection/many_small_rows",
     "gather_selection_kv_cache:b=4,s=16,k=300,kd=5,rd=1,dtype=u8,sblk=16,fblk=16,"
     "kv=700:716,threads=1;3"},

    // Beyond 4 GiB and 2^31: sparse memory.
    {"selection/full_cache_above_4_gib",
     "gather_selection_kv_cache:k=64,sblk=16,fblk=16,kd=512,rd=64,kv=20000:20001,fnb=2^20,threads=1;3"},
    {"selection/selection_cache_above_4_gib",
     "gather_selection_kv_cache:b=2,k=64,sblk=16,fblk=16,kd=512,rd=64,kv=300:301,snb=2^20,threads=1;3"},
    {"selection/longest_sequence",
     "gather_selection_kv_cache:kv=2^31-2:2^31-1,fblk=2^20,topk=2147483646;0;5;2147483645,rd=0,kd=4,threads="
     "1;3"},
    {"selection/largest_blocks",
     "gather_selection_kv_cache:k=3,bs=2^29,sblk=2^29,fblk=2^29,kv=10:11,topk=0;1;2,rd=0,kd=1,dtype=u8,"
     "threads=3,via=run"},
};

#undef ALL_POLICIES
#undef S

}  // namespace

std::span<const RegisteredCase> selection_registered_cases() {
  return kCases;
}

}  // namespace kvferry::harness
