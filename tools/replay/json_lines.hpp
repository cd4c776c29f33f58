// SPDX-License-Identifier: Apache-2.0
//
// Files of JSON objects, one a line. Every error names file, line and what was expected.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kvferry/status.hpp"

namespace kvferry::replay {

// Reads the members of one line; the first problem sticks.
class LineReader {
 public:
  explicit LineReader(const nlohmann::json& object) : object_(object) {}

  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most);
  std::int64_t integer(const nlohmann::json& value, const std::string& name, std::int64_t least,
                       std::int64_t most);
  // Null after a problem.
  const nlohmann::json* array(const char* key);
  // Appends an array's integers.
  template <class T>
  void integers(const nlohmann::json& array, const char* key, std::int64_t least, std::int64_t most,
                std::vector<T>& out) {
    for (std::size_t i = 0; i < array.size() && good(); ++i) {
      const nlohmann::json& value = array[i];
      // The name is only made for a message: a file has hundreds of thousands of these.
      const bool fits = value.is_number_unsigned() && std::cmp_less_equal(value.get<std::uint64_t>(), most);
      out.push_back(static_cast<T>(fits ? value.get<std::int64_t>()
                                        : integer(value, fmt::format("{}[{}]", key, i), least, most)));
    }
  }

  std::int64_t fail(std::string reason) {
    if (error_.empty()) error_ = std::move(reason);
    return 0;
  }
  bool good() const { return error_.empty(); }
  const std::string& error() const { return error_; }

 private:
  const nlohmann::json& object_;
  std::string error_;
};

// Calls body(reader, line) for the first `limit` objects (all if < 0); blank lines are skipped. `option` says
// in a message where the name of a file that cannot be opened came from.
Status read_json_lines(const char* option, const std::string& path, std::int64_t limit,
                       const std::function<void(LineReader&, std::int64_t line)>& body);
// "FILE:LINE: reason"
Status bad_line(const std::string& path, std::int64_t line, const std::string& reason);

}  // namespace kvferry::replay
