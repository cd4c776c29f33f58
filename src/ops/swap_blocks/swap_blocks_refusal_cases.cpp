// SPDX-License-Identifier: Apache-2.0
//
// The rules of swap_blocks' plan() that copy_blocks does not have, broken one at a time.
#include "harness/breaking.hpp"
#include "ops/swap_blocks/swap_blocks_cases.hpp"

namespace kvferry::harness {
namespace {

constexpr StatusCode kBad = StatusCode::kInvalidArgument;
constexpr StatusCode kNull = StatusCode::kNull;
using Call = BlockCopyCall;
using Words = std::vector<std::string>;

constexpr BlockCopyBreaker kBreakers[] = {
    {"src_null", kNull, [](Call& c, Words& w) { drop(c.src[1], "src[1]", w); }},
    {"src_rank_0", kBad,
     [](Call& c, Words& w) {
       c.src[1].rank = 0;
       w = {"src[1]", "rank", "0"};
     }},
    {"src_int64", kBad, [](Call& c, Words& w) { change_dtype(c.src[0], DType::kInt64, "src[0]", w); }},
    {"src_blocks_differ", kBad, [](Call& c, Words& w) { grow(c.src[1], 0, -1, "src[1]", w); }},
    {"src_beyond_storage", kBad,
     [](Call& c, Words& w) {
       c.src[1].offset += 1;
       w = {"src[1]", "storage"};
     }},
    {"src_on_cuda", kBad,
     [](Call& c, Words& w) {
       c.src[1].device.type = DeviceType::kCuda;
       w = {"src[1]", "device"};
     }},
    {"one_src_more", kBad,
     [](Call& c, Words& w) {
       c.src.push_back(c.src.back());
       w = {"dst", std::to_string(c.dst.size()), std::to_string(c.src.size())};
     }},
    {"one_dst_more", kBad,
     [](Call& c, Words& w) {
       c.dst.push_back(c.dst.back());
       w = {"dst", std::to_string(c.dst.size()), std::to_string(c.src.size())};
     }},
    {"other_dtype", kBad,
     [](Call& c, Words& w) {
       const DType other = c.src[1].dtype == DType::kInt16 ? DType::kUInt16 : DType::kInt16;
       change_dtype(c.dst[1], other, "dst[1]", w);
       w.insert(w.end(), {"src[1]", to_string(c.src[1].dtype)});
     }},
    {"other_rank", kBad,
     [](Call& c, Words& w) {
       change_rank(c.dst[1], 1, "dst[1]", w);
       w.emplace_back("src[1]");
     }},
    {"other_dimension", kBad,
     [](Call& c, Words& w) {
       grow(c.dst[1], 1, -1, "dst[1]", w);
       w.emplace_back("src[1]");
     }},
    {"other_last_dimension", kBad,
     [](Call& c, Words& w) {
       grow(c.dst[1], c.dst[1].rank - 1, -1, "dst[1]", w);
       w.emplace_back("src[1]");
     }},
};

}  // namespace

std::span<const BlockCopyBreaker> swap_blocks_breakers() {
  return kBreakers;
}

}  // namespace kvferry::harness
