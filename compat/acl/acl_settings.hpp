// SPDX-License-Identifier: Apache-2.0
//
// Settings of the process: from the environment, until a call sets them.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "acl_names.hpp"
#include "kvferry/ops/gather_selection_kv_cache.hpp"
#include "kvferry/plan.hpp"

namespace kvferry::acl {

enum class Profile : std::uint8_t { k950, kA2 };

template <class T, std::size_t N>
class Setting {
 public:
  // Reads the environment variable, now and never again.
  Setting(const char* variable, const Names<T, N>& names) : variable_(variable), names_(names) {
    const char* const text = std::getenv(variable);
    value_ = &names_.front().second;
    if (text == nullptr || *text == '\0') return;
    wrong_ = text;
    value_ = find_name(names_, text);
  }

  Status set(const char* function, const char* text) {
    const T* const found = text == nullptr ? nullptr : find_name(names_, text);
    if (found == nullptr) return not_one_of(names_, function, text == nullptr ? "null" : text);
    value_ = found;
    return {};
  }

  // A wrong value in the environment is an error here.
  Status get(T& value) const {
    const T* const found = value_;
    if (found == nullptr) return not_one_of(names_, variable_, wrong_);
    value = *found;
    return {};
  }

 private:
  const char* const variable_;
  const Names<T, N> names_;
  std::string wrong_;              // what the environment says
  std::atomic<const T*> value_{};  // one of names_; null: wrong_
};

struct Settings {
  Setting<Profile, 2> profile{"KVFERRY_ACL_PROFILE", {{{"950", Profile::k950}, {"a2", Profile::kA2}}}};
  // No error record goes through ACL, so kReport would be kDefault.
  Setting<IndexPolicy, 2> index_policy{
      "KVFERRY_ACL_INDEX_POLICY", {{{"default", IndexPolicy::kDefault}, {"reject", IndexPolicy::kReject}}}};
  Setting<QLenMode, 3> selection_q_len{"KVFERRY_SELECTION_Q_LEN",
                                       {{{"counts", QLenMode::kCounts},
                                         {"prefix_sum", QLenMode::kPrefixSum},
                                         {"all_rows", QLenMode::kAllRows}}}};
};

Settings& settings();

}  // namespace kvferry::acl
