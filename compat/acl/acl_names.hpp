// SPDX-License-Identifier: Apache-2.0
//
// Values that people choose by name: attributes of the calls, settings.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "kvferry/status.hpp"

namespace kvferry::acl {

// The first is the default.
template <class T, std::size_t N>
using Names = std::array<std::pair<const char*, T>, N>;

// Exactly, case and all. Null if there is none.
template <class T, std::size_t N>
const T* find_name(const Names<T, N>& names, std::string_view text) noexcept {
  for (const auto& [name, value] : names) {
    if (text == name) return &value;
  }
  return nullptr;
}

template <class T, std::size_t N>
Status not_one_of(const Names<T, N>& names, const std::string& who, const std::string& seen) {
  std::string message = who + ": '" + seen + "', expected one of";
  for (const auto& [name, value] : names) message += std::string(" '") + name + "'";
  return {StatusCode::kInvalidArgument, std::move(message)};
}

}  // namespace kvferry::acl
