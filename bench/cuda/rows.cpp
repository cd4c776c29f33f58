// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/rows.hpp"

namespace kvferry::bench::gpu {
namespace {

using Kind = Target::Kind;

constexpr Target kLargeCopy = {Kind::kShareOfPeer, 0.97, "memcpy_d2d", true},
                 kLargePeak = {Kind::kShareOfPeak, 0.88};
constexpr Target kSmallGather = {Kind::kMostUs, 3.0}, kSmallScatter = {Kind::kMostUs, 2.5};
constexpr Target kLargeScatter = {Kind::kShareOfPeak, 0.85};
constexpr Target kLink = {Kind::kShareOfLink, 0.90}, kFewBlocks = {Kind::kMostBlocks, 8};
constexpr Target kCopiesPeak = {Kind::kShareOfPeak, 0.80},
                 kCopiesPeer = {Kind::kShareOfPeer, 1.5, "cub_batched"};
constexpr Target kSwap = {Kind::kTimesBest, 1.05};
constexpr Target kPlan = {Kind::kScheduleUs, 5.0}, kTotal = {Kind::kScheduleLink, 1.0};

// GQA: 8 heads of 128 in float16, K and V. MLA: 576 in float16, K alone.
constexpr Row kRows[] = {
    {"gather GQA ND 8K tokens", "gather:layout=nd,b=8,len=1k", {kLargeCopy, kLargePeak}},
    {"gather GQA ND 64K tokens", "gather:layout=nd,b=16,len=4k", {kLargeCopy, kLargePeak}},
    {"gather GQA HND 8K tokens", "gather:layout=hnd,b=8,len=1k", {kLargeCopy, kLargePeak}},
    {"gather GQA HND 64K tokens", "gather:layout=hnd,b=16,len=4k", {kLargeCopy, kLargePeak}},
    {"gather GQA NZ 8K tokens", "gather:layout=nz,bs=128,b=8,len=1k", {kLargeCopy, kLargePeak}},
    {"gather GQA NZ 64K tokens", "gather:layout=nz,bs=128,b=16,len=4k", {kLargeCopy, kLargePeak}},
    {"gather MLA ND 8K tokens",
     "gather:layout=nd,bs=64,h=1,row=1152,v=0,b=8,len=1k",
     {kLargeCopy, kLargePeak}},
    {"gather MLA ND 64K tokens",
     "gather:layout=nd,bs=64,h=1,row=1152,v=0,b=16,len=4k",
     {kLargeCopy, kLargePeak}},
    {"gather GQA 1 token", "gather:b=1,len=1,calls=16", {kSmallGather}},
    {"gather GQA 16 tokens", "gather:b=1,len=16,calls=16", {kSmallGather}},
    {"gather GQA 128 tokens", "gather:b=8,len=16,calls=16", {kSmallGather}},
    {"gather MLA 128 tokens", "gather:bs=64,h=1,row=1152,v=0,b=2,len=64,calls=16", {kSmallGather}},
    {"gather GQA lengths 4993, 7 x 1", "gather:skew=1", {{Kind::kTimesPeer, 1.10, "balanced"}}},
    {"scatter GQA ND 8K tokens", "scatter:layout=nd,tokens=8k", {kLargeScatter}},
    {"scatter GQA HND 8K tokens", "scatter:layout=hnd,tokens=8k", {kLargeScatter}},
    {"scatter GQA NZ 8K tokens", "scatter:layout=nz,bs=128,tokens=8k", {kLargeScatter}},
    {"scatter MLA ND 8K tokens", "scatter:bs=64,h=1,row=1152,v=0,tokens=8k", {kLargeScatter}},
    {"scatter GQA 64K tokens", "scatter:layout=nd,tokens=64k", {kLargeScatter}},
    {"append GQA 1 token", "scatter:tokens=1,calls=16", {kSmallScatter}},
    {"append GQA 128 tokens", "scatter:tokens=128,calls=16", {kSmallScatter}},
    {"append MLA 128 tokens", "scatter:bs=64,h=1,row=1152,v=0,tokens=128,calls=16", {kSmallScatter}},
    {"host rows of 1152 B", "gather:cache=host,bs=1,h=1,row=1152,v=0,b=1,len=64k", {kLink, kFewBlocks}},
    {"host rows of 656 B",
     "gather:cache=host,bs=1,h=1,item=1,row=656,v=0,b=1,len=64k,per_byte=640",
     {kLink, kFewBlocks, {Kind::kPerByte, 1.1, "row_640"}}},
    {"group_memcpy 1 KB x 1k", "copies:w=1024,n=1000", {kCopiesPeak, kCopiesPeer}},
    {"group_memcpy 1 KB x 10k", "copies:w=1024,n=10000", {kCopiesPeak, kCopiesPeer}},
    {"group_memcpy 1 KB x 100k", "copies:w=1024,n=100000", {kCopiesPeak, kCopiesPeer}},
    {"group_memcpy 4 KB x 1k", "copies:w=4096,n=1000", {kCopiesPeak, kCopiesPeer}},
    {"group_memcpy 4 KB x 10k", "copies:w=4096,n=10000", {kCopiesPeak, kCopiesPeer}},
    {"group_memcpy 4 KB x 100k", "copies:w=4096,n=100000", {kCopiesPeak, kCopiesPeer}},
    {"selection K 2048, 0 % overlap", "selection:overlap=0", {kPlan, kTotal}},
    {"selection K 2048, 60 % overlap", "selection:overlap=60", {kPlan, kTotal}},
    {"selection K 2048, 90 % overlap", "selection:overlap=90", {kPlan, kTotal}},
    {"selection K 2048 of 656 B, 60 % overlap", "selection:overlap=60,kd=656,rd=0", {kPlan, kTotal}},
    {"swap in 16 KB x 1", "swap:dir=in,w=16k,n=1", {kSwap}},
    {"swap in 16 KB x 16", "swap:dir=in,w=16k,n=16", {kSwap}},
    {"swap in 16 KB x 256", "swap:dir=in,w=16k,n=256", {kSwap}},
    {"swap in 128 KB x 1", "swap:dir=in,w=128k,n=1", {kSwap}},
    {"swap in 128 KB x 16", "swap:dir=in,w=128k,n=16", {kSwap}},
    {"swap in 128 KB x 256", "swap:dir=in,w=128k,n=256", {kSwap}},
    {"swap in 1 MB x 1", "swap:dir=in,w=1M,n=1", {kSwap}},
    {"swap in 1 MB x 16", "swap:dir=in,w=1M,n=16", {kSwap}},
    {"swap in 1 MB x 128", "swap:dir=in,w=1M,n=128", {kSwap}},
    {"swap out 16 KB x 1", "swap:dir=out,w=16k,n=1", {kSwap}},
    {"swap out 16 KB x 16", "swap:dir=out,w=16k,n=16", {kSwap}},
    {"swap out 16 KB x 256", "swap:dir=out,w=16k,n=256", {kSwap}},
    {"swap out 128 KB x 1", "swap:dir=out,w=128k,n=1", {kSwap}},
    {"swap out 128 KB x 16", "swap:dir=out,w=128k,n=16", {kSwap}},
    {"swap out 128 KB x 256", "swap:dir=out,w=128k,n=256", {kSwap}},
    {"swap out 1 MB x 1", "swap:dir=out,w=1M,n=1", {kSwap}},
    {"swap out 1 MB x 16", "swap:dir=out,w=1M,n=16", {kSwap}},
    {"swap out 1 MB x 128", "swap:dir=out,w=1M,n=128", {kSwap}},
    {"swap in 16 KB x 16, neighbours on the host", "swap:dir=in,w=16k,n=16,host=seq", {kSwap}},
    {"swap in 16 KB x 256, neighbours on the host", "swap:dir=in,w=16k,n=256,host=seq", {kSwap}},
    {"swap in 4 KB x 2048, neighbours on the host", "swap:dir=in,w=4k,n=2048,host=seq", {kSwap}},
    {"swap out 16 KB x 16, neighbours on the host", "swap:dir=out,w=16k,n=16,host=seq", {kSwap}},
    {"swap out 16 KB x 256, neighbours on the host", "swap:dir=out,w=16k,n=256,host=seq", {kSwap}},
    {"swap out 4 KB x 2048, neighbours on the host", "swap:dir=out,w=4k,n=2048,host=seq", {kSwap}},
};

}  // namespace

std::span<const Row> rows() {
  return kRows;
}

}  // namespace kvferry::bench::gpu
