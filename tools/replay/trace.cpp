// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/trace.hpp"

#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "harness/random.hpp"
#include "tools/replay/json_lines.hpp"
#include "tools/replay/numbers.hpp"

namespace kvferry::replay {
namespace {

// Longest prompt and longest output; their sum stays far inside int32.
constexpr std::int64_t kMaxLength = 1 << 29;

}  // namespace

std::int64_t Trace::prompt_tokens() const {
  std::int64_t sum = 0;
  for (const Request& r : requests) sum += r.input_length;
  return sum;
}

Result<Trace> read_trace(const std::string& path, std::int64_t limit) {
  Trace trace;
  trace.name = path;
  Status status = read_json_lines("--trace", path, limit, [&](LineReader& reader, std::int64_t line) {
    Request r;
    r.line = line;
    r.first_id = trace.hash_ids.size();
    r.timestamp_ms = reader.integer("timestamp", 0, INT64_MAX / 2);
    r.input_length = static_cast<std::int32_t>(reader.integer("input_length", 1, kMaxLength));
    r.output_length = static_cast<std::int32_t>(reader.integer("output_length", 0, kMaxLength));
    const nlohmann::json* ids = reader.array("hash_ids");
    if (ids == nullptr) return;
    if (std::cmp_not_equal(ids->size(), r.id_count())) {
      reader.fail(fmt::format("'hash_ids' has {} ids, expected {} (input_length {} / {}, rounded up)",
                              ids->size(), r.id_count(), r.input_length, kHashBlock));
      return;
    }
    reader.integers(*ids, "hash_ids", 0, INT64_MAX, trace.hash_ids);
    trace.requests.push_back(r);
  });
  if (!status.ok()) return status;
  if (trace.requests.empty()) return bad_line(path, 1, "the file has no requests");
  return trace;
}

PrefixTree::PrefixTree(const Trace& trace) {
  struct Key {
    std::int32_t parent;
    std::int64_t id;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& k) const {
      return harness::mix(static_cast<std::uint64_t>(k.id) ^
                          harness::mix(static_cast<std::uint64_t>(k.parent)));
    }
  };
  std::unordered_map<Key, std::int32_t, Hash> known;
  known.reserve(trace.hash_ids.size());
  first_.push_back(0);
  for (const Request& r : trace.requests) {
    std::int32_t parent = -1;
    for (std::int64_t j = 0; j < r.full_blocks(); ++j) {
      const std::int64_t id = trace.hash_ids[r.first_id + usize(j)];
      const auto [it, added] = known.try_emplace(Key{parent, id}, size());
      if (added) {
        parent_.push_back(parent);
        depth_.push_back(static_cast<std::int32_t>(j));
        hash_id_.push_back(id);
      }
      parent = it->second;
      blocks_.push_back(parent);
    }
    first_.push_back(blocks_.size());
  }
}

}  // namespace kvferry::replay
