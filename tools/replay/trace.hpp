// SPDX-License-Identifier: Apache-2.0
//
// Traces: requests by arrival, lengths and the ids of their 512-token prefix blocks; no text.
//
// A trace file has one JSON object a line (the format of Mooncake's published traces):
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}
// timestamp in milliseconds from the start; ceil(input_length / 512) ids; equal ids mean the same block
// after the same prefix. Other members are ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvferry/status.hpp"
#include "tools/replay/numbers.hpp"

namespace kvferry::replay {

inline constexpr std::int64_t kHashBlock = 512;  // tokens of one prefix block

struct Request {
  std::int64_t timestamp_ms = 0;
  std::int32_t input_length = 0;   // >= 1
  std::int32_t output_length = 0;  // >= 0
  std::size_t first_id = 0;        // its ids in Trace::hash_ids
  std::int64_t line = 0;           // in the file, from 1; in a generated trace the request's number from 1

  std::int64_t tokens() const { return std::int64_t{input_length} + output_length; }
  std::int64_t full_blocks() const { return input_length / kHashBlock; }
  std::int64_t id_count() const { return (input_length + kHashBlock - 1) / kHashBlock; }
};

struct Trace {
  std::string name;  // a file name, or "built-in seed 1"
  std::vector<Request> requests;
  std::vector<std::int64_t> hash_ids;

  std::span<const std::int64_t> ids(const Request& r) const {
    return {hash_ids.data() + r.first_id, usize(r.id_count())};
  }
  // The id of the full block that a position of a prompt lies in; -1 in no full block.
  std::int64_t prefix_block(std::int32_t request, std::int64_t position) const {
    const Request& r = requests[usize(request)];
    const std::int64_t block = position / kHashBlock;
    return block < r.full_blocks() ? hash_ids[r.first_id + usize(block)] : -1;
  }
  std::int64_t prompt_tokens() const;
};

// Reads the first `limit` requests (all if < 0). Errors read "FILE:LINE: reason".
Result<Trace> read_trace(const std::string& path, std::int64_t limit);

// The full prefix blocks of a trace, interned as a tree: a block is its id after the block before it, so two
// requests share a block exactly if they agree on the whole prefix up to its end, whatever the ids look like.
class PrefixTree {
 public:
  explicit PrefixTree(const Trace& trace);

  std::int32_t size() const { return static_cast<std::int32_t>(parent_.size()); }
  // Block j of the prompt is element j; only full blocks.
  std::span<const std::int32_t> chain(std::size_t request) const {
    return {blocks_.data() + first_[request], first_[request + 1] - first_[request]};
  }
  std::int32_t parent(std::int32_t block) const { return parent_[usize(block)]; }  // -1: the first block
  std::int32_t depth(std::int32_t block) const { return depth_[usize(block)]; }
  std::int64_t hash_id(std::int32_t block) const { return hash_id_[usize(block)]; }

 private:
  std::vector<std::int32_t> blocks_;
  std::vector<std::size_t> first_;
  std::vector<std::int32_t> parent_;
  std::vector<std::int32_t> depth_;
  std::vector<std::int64_t> hash_id_;
};

}  // namespace kvferry::replay
