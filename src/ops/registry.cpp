// SPDX-License-Identifier: Apache-2.0
#include "ops/registry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string>

namespace kvferry::harness {

std::span<const OperatorInfo> operators() {
  static const std::array table = {
      gather_pa_kv_cache_info(),        scatter_pa_kv_cache_info(), group_memcpy_info(),
      gather_selection_kv_cache_info(), copy_blocks_info(),         swap_blocks_info(),
  };
  return table;
}

const OperatorInfo* find_operator(std::string_view name) {
  for (const OperatorInfo& info : operators()) {
    if (name == info.name) return &info;
  }
  return nullptr;
}

std::vector<std::pair<const OperatorInfo*, Case>> resolve(std::string_view text) {
  std::vector<std::pair<const OperatorInfo*, Case>> result;
  const std::string_view head = text.substr(0, text.find(':'));
  if (const OperatorInfo* info = find_operator(head)) {
    for (const std::string& one : expand_braces(text)) result.emplace_back(info, Case::parse(one));
    return result;
  }
  const std::string_view family = head.substr(0, head.find('/'));
  std::vector<std::string> near;
  for (const OperatorInfo& info : operators()) {
    for (const RegisteredCase& registered : info.cases) {
      const std::string_view name = registered.name;
      if (name.substr(0, name.find('/')) == family) near.emplace_back(name);
      if (name != head) continue;
      for (const std::string& one : expand_braces(registered.text)) {
        for (const std::string& changes : expand_braces(text)) {
          Case merged = Case::parse(one);
          merged.merge(Case::parse(changes));
          result.emplace_back(&info, std::move(merged));
        }
      }
      return result;
    }
  }
  if (near.empty()) {
    for (const OperatorInfo& info : operators()) near.emplace_back(info.name);
    throw CaseError(fmt::format("'{}' is neither an operator nor a registered case; operators: {}", head,
                                fmt::join(near, ", ")));
  }
  throw CaseError(fmt::format("no registered case '{}'; there are: {}", head, fmt::join(near, ", ")));
}

}  // namespace kvferry::harness
