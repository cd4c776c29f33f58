// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/json_lines.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace kvferry::replay {

using nlohmann::json;

std::int64_t LineReader::integer(const char* key, std::int64_t least, std::int64_t most) {
  const auto it = object_.find(key);
  if (it == object_.end()) return fail(fmt::format("'{}' is missing", key));
  return integer(*it, key, least, most);
}

std::int64_t LineReader::integer(const json& value, const std::string& name, std::int64_t least,
                                 std::int64_t most) {
  if (!value.is_number_integer())
    return fail(fmt::format("'{}' is {}, expected an integer", name, value.dump()));
  // An unsigned number above int64 would wrap in get<int64_t>().
  const bool huge = value.is_number_unsigned() && std::cmp_greater(value.get<std::uint64_t>(), most);
  if (huge || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) {
    return fail(fmt::format("'{}' is {}, expected {} to {}", name, value.dump(), least, most));
  }
  return value.get<std::int64_t>();
}

const json* LineReader::array(const char* key) {
  const auto it = object_.find(key);
  if (it == object_.end()) {
    fail(fmt::format("'{}' is missing", key));
  } else if (!it->is_array()) {
    fail(fmt::format("'{}' is {}, expected an array", key, it->type_name()));
  }
  return good() ? &*it : nullptr;
}

Status bad_line(const std::string& path, std::int64_t line, const std::string& reason) {
  return {StatusCode::kInvalidArgument, fmt::format("{}:{}: {}", path, line, reason)};
}

Status read_json_lines(const char* option, const std::string& path, std::int64_t limit,
                       const std::function<void(LineReader&, std::int64_t line)>& body) {
  std::ifstream file(path);
  if (!file) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: cannot open '{}': {}", option, path, std::strerror(errno))};
  }
  std::string text;
  std::int64_t line = 1, objects = 0;
  for (; objects != limit && std::getline(file, text); ++line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    json object;
    try {
      object = json::parse(text);
    } catch (const json::parse_error& e) {
      return bad_line(path, line, fmt::format("not JSON at column {}", e.byte));
    }
    if (!object.is_object()) {
      return bad_line(path, line, fmt::format("{}, expected an object", object.type_name()));
    }
    LineReader reader(object);
    body(reader, line);
    if (!reader.good()) return bad_line(path, line, reader.error());
    ++objects;
  }
  if (file.bad()) return bad_line(path, line, "reading failed");
  return {};
}

}  // namespace kvferry::replay
