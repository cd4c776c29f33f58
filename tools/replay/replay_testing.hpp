// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the replay share.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "harness/random.hpp"
#include "tools/replay/trace.hpp"

namespace kvferry::replay {

// A file that is gone at the end of the test.
class TempFile {
 public:
  explicit TempFile(const std::string& name, const std::string& text = {})
      : path_(std::filesystem::temp_directory_path() /
              ("kvferry_" + std::to_string(::getpid()) + "_" + name)) {
    std::ofstream(path_) << text;
  }
  ~TempFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// The published trace beside the checkout, or empty.
inline std::string real_trace_path() {
  const auto root = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
  const auto path = root / ".." / "shared" / "data" / "mooncake_conversation_trace.jsonl";
  return std::filesystem::exists(path) ? path.string() : std::string();
}

// Up to `most_blocks` blocks a prompt out of few ids, so that prefixes meet often.
inline Trace random_trace(harness::Random& random, std::int64_t requests, std::int64_t most_blocks) {
  Trace trace;
  trace.name = "random";
  for (std::int64_t i = 0; i < requests; ++i) {
    Request r;
    r.line = i + 1;
    r.timestamp_ms = i * random.between(0, 100);
    r.first_id = trace.hash_ids.size();
    // A third of the prompts end at a block's end.
    r.input_length =
        static_cast<std::int32_t>(random.one_in(3) ? kHashBlock * random.between(1, most_blocks)
                                                   : random.between(1, kHashBlock * most_blocks));
    r.output_length = static_cast<std::int32_t>(random.one_in(8) ? 0 : random.between(1, 60));
    for (std::int64_t j = 0; j < r.id_count(); ++j) trace.hash_ids.push_back(10 * j + random.between(0, 1));
    trace.requests.push_back(r);
  }
  return trace;
}

// As a file's text.
inline std::string print_trace(const Trace& trace) {
  std::string text;
  for (const Request& r : trace.requests) {
    text += fmt::format(
        "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}, \"hash_ids\": [{}]}}\n",
        r.timestamp_ms, r.input_length, r.output_length, fmt::join(trace.ids(r), ", "));
  }
  return text;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The JSON report inside a page.
inline nlohmann::json embedded_report(const std::string& page) {
  const std::string begin = R"(<script type="application/json" id="report">)";
  const std::size_t from = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
}

// Values of an attribute in elements of this data-name, in order.
inline std::vector<std::string> data_attributes(const std::string& page, const std::string& name,
                                                const std::string& attribute) {
  std::vector<std::string> values;
  const std::string wanted = "data-name=\"" + name + "\"", start = " " + attribute + "=\"";
  for (std::size_t at = page.find(wanted); at != std::string::npos; at = page.find(wanted, at + 1)) {
    const std::string element = page.substr(at, page.find('>', at) - at);
    const std::size_t from = element.find(start);
    if (from == std::string::npos) continue;
    const std::size_t begin = from + start.size();
    values.push_back(element.substr(begin, element.find('"', begin) - begin));
  }
  return values;
}

inline std::vector<double> parse_numbers(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<double>(in), {}};
}

}  // namespace kvferry::replay
