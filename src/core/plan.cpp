// SPDX-License-Identifier: Apache-2.0
#include "kvferry/plan.hpp"

#include <fmt/format.h>

#include "core/impl.hpp"

namespace kvferry {

const char* to_string(Operator op) noexcept {
  switch (op) {
    case Operator::kGatherPaKvCache:
      return "gather_pa_kv_cache";
    case Operator::kScatterPaKvCache:
      return "scatter_pa_kv_cache";
    case Operator::kGroupMemcpy:
      return "group_memcpy";
    case Operator::kGatherSelectionKvCache:
      return "gather_selection_kv_cache";
    case Operator::kCopyBlocks:
      return "copy_blocks";
    case Operator::kSwapBlocks:
      return "swap_blocks";
    case Operator::kTransferLayers:
      return "transfer_layers";
    case Operator::kGatherDequant:
      return "gather_dequant";
  }
  return "unknown";
}

Operator Plan::op() const noexcept {
  return body_->op;
}
std::string_view Plan::implementation() const noexcept {
  return body_->implementation;
}
std::int64_t Plan::workspace_bytes() const noexcept {
  return body_->workspace_bytes;
}

std::string Plan::describe() const {
  std::string text = fmt::format("{}\n  implementation  {}{}\n", to_string(body_->op), body_->implementation,
                                 body_->forced ? " (forced)" : "");
  for (std::size_t at = 0; at < body_->refusals.size();) {
    const std::size_t end = body_->refusals.find('\n', at);
    text += fmt::format("  refused         {}\n", body_->refusals.substr(at, end - at));
    at = end + 1;
  }
  text += body_->describe_problem();
  text += fmt::format("  workspace       {} bytes{}\n", body_->workspace_bytes,
                      body_->host_workspace ? " of host memory" : "");
  return text;
}

}  // namespace kvferry
