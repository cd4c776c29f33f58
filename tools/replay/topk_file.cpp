// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/topk_file.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tools/replay/json_lines.hpp"

namespace kvferry::replay {

Result<std::unique_ptr<TopkFile>> TopkFile::read(const std::string& path, const Trace& trace,
                                                 std::span<const std::int32_t> refused, int layers,
                                                 std::int64_t k) {
  auto file = std::make_unique<TopkFile>();
  file->layers_ = layers;
  std::unordered_map<std::int64_t, std::int32_t> request_of_line;
  std::vector<std::int64_t> steps;  // of each request
  std::int64_t lists = 0;
  for (const Request& r : trace.requests) {
    const auto request = static_cast<std::int32_t>(steps.size());
    request_of_line[r.line] = request;
    file->first_step_.push_back(lists);
    steps.push_back(std::ranges::find(refused, request) == refused.end() ? r.output_length : 0);
    lists += steps.back() * layers;
  }
  file->lists_.resize(usize(lists));
  std::vector<std::int64_t> line_of(usize(lists));

  Status status = read_json_lines("--topk", path, -1, [&](LineReader& reader, std::int64_t line) {
    const auto request = request_of_line.find(reader.integer("request", 1, INT64_MAX));
    const std::int64_t step = reader.integer("step", 0, INT32_MAX),
                       layer = reader.integer("layer", 0, INT32_MAX);
    const nlohmann::json* ids = reader.array("ids");
    if (ids == nullptr) return;
    if (std::cmp_greater(ids->size(), k)) {
      reader.fail(fmt::format("'ids' has {} ids, expected at most {} (--select)", ids->size(), k));
      return;
    }
    const std::size_t first = file->ids_.size();
    reader.integers(*ids, "ids", INT32_MIN, INT32_MAX, file->ids_);
    if (request == request_of_line.end() || step >= steps[usize(request->second)] || layer >= layers) {
      file->ids_.resize(first);
      return;
    }
    const std::int64_t at = file->index(request->second, step, layer);
    if (line_of[usize(at)] > 0) {
      reader.fail(fmt::format("request {}, step {}, layer {} again, expected once (line {})", request->first,
                              step, layer, line_of[usize(at)]));
      return;
    }
    line_of[usize(at)] = line;
    file->lists_[usize(at)] = {first, ids->size()};
  });
  if (!status.ok()) return status;
  for (std::size_t q = 0; q < steps.size(); ++q) {
    for (std::int64_t i = 0; i < steps[q] * layers; ++i) {
      if (line_of[usize(file->first_step_[q] + i)] > 0) continue;
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{}: no line for request {}, step {}, layer {}", path, trace.requests[q].line,
                                i / layers, i % layers));
    }
  }
  return file;
}

void TopkFile::choose(const Choice& choice, std::span<std::int32_t> ids) {
  const List list = lists_[usize(index(choice.request, choice.step, choice.layer))];
  const auto end =
      std::copy_n(ids_.begin() + static_cast<std::ptrdiff_t>(list.first), list.count, ids.begin());
  std::fill(end, ids.end(), -1);
}

}  // namespace kvferry::replay
