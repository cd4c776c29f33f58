// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/trace.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "harness/random.hpp"
#include "tools/replay/numbers.hpp"

namespace kvferry::replay {
namespace {

using nlohmann::json;

// Longest prompt and longest output; their sum stays far inside int32.
constexpr std::int64_t kMaxLength = 1 << 29;

// Reads the members of one line; the first problem sticks.
class LineReader {
 public:
  explicit LineReader(const json& object) : object_(object) {}

  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most) {
    const auto it = object_.find(key);
    if (it == object_.end()) return fail(fmt::format("'{}' is missing", key));
    return integer(*it, key, least, most);
  }

  std::int64_t integer(const json& value, const std::string& name, std::int64_t least, std::int64_t most) {
    if (!value.is_number_integer()) {
      return fail(fmt::format("'{}' is {}, expected an integer", name, value.dump()));
    }
    // An unsigned number above int64 would wrap in get<int64_t>().
    const bool huge =
        value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(most);
    if (huge || value.get<std::int64_t>() < least) {
      return fail(fmt::format("'{}' is {}, expected {} to {}", name, value.dump(), least, most));
    }
    return value.get<std::int64_t>();
  }

  void ids(const Request& request, std::vector<std::int64_t>& out) {
    if (!error_.empty()) return;
    const auto it = object_.find("hash_ids");
    if (it == object_.end()) {
      fail("'hash_ids' is missing");
      return;
    }
    if (!it->is_array()) {
      fail(fmt::format("'hash_ids' is {}, expected an array", it->type_name()));
      return;
    }
    if (std::cmp_not_equal(it->size(), request.id_count())) {
      fail(fmt::format("'hash_ids' has {} ids, expected {} (input_length {} / {}, rounded up)", it->size(),
                       request.id_count(), request.input_length, kHashBlock));
      return;
    }
    for (std::size_t i = 0; i < it->size() && error_.empty(); ++i) {
      const json& id = (*it)[i];
      // The name is only made for a message: a trace has hundreds of thousands of ids.
      const bool good = id.is_number_unsigned() && id.get<std::uint64_t>() <= usize(INT64_MAX);
      out.push_back(good ? id.get<std::int64_t>()
                         : integer(id, fmt::format("hash_ids[{}]", i), 0, INT64_MAX));
    }
  }

  const std::string& error() const { return error_; }

 private:
  std::int64_t fail(std::string reason) {
    if (error_.empty()) error_ = std::move(reason);
    return 0;
  }

  const json& object_;
  std::string error_;
};

}  // namespace

std::int64_t Trace::prompt_tokens() const {
  std::int64_t sum = 0;
  for (const Request& r : requests) sum += r.input_length;
  return sum;
}

Result<Trace> read_trace(const std::string& path, std::int64_t limit) {
  const auto bad = [&](std::int64_t line, const std::string& reason) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}:{}: {}", path, line, reason));
  };
  std::ifstream file(path);
  if (!file) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("--trace: cannot open '{}': {}", path, std::strerror(errno)));
  }
  Trace trace;
  trace.name = path;
  std::string text;
  for (std::int64_t line = 1; std::cmp_not_equal(trace.requests.size(), limit) && std::getline(file, text);
       ++line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    json object;
    try {
      object = json::parse(text);
    } catch (const json::parse_error& e) {
      return bad(line, fmt::format("not JSON at column {}", e.byte));
    }
    if (!object.is_object()) return bad(line, fmt::format("{}, expected an object", object.type_name()));
    Request r;
    r.line = line;
    r.first_id = trace.hash_ids.size();
    LineReader reader(object);
    r.timestamp_ms = reader.integer("timestamp", 0, INT64_MAX / 2);
    r.input_length = static_cast<std::int32_t>(reader.integer("input_length", 1, kMaxLength));
    r.output_length = static_cast<std::int32_t>(reader.integer("output_length", 0, kMaxLength));
    reader.ids(r, trace.hash_ids);
    if (!reader.error().empty()) return bad(line, reader.error());
    trace.requests.push_back(r);
  }
  if (file.bad()) return bad(std::ssize(trace.requests) + 1, "reading failed");
  if (trace.requests.empty()) return bad(1, "the file has no requests");
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
