// SPDX-License-Identifier: Apache-2.0
#include "acl_settings.hpp"

#include "acl_error.hpp"
#include "aclnn/acl_kvferry.h"

namespace kvferry::acl {

Settings& settings() {
  static auto& of_the_process = *new Settings;
  return of_the_process;
}

namespace {

template <class Setting>
aclnnStatus set(Setting Settings::*setting, const char* function, const char* text) {
  return guarded(ACLNN_ERR_INNER, [&] {
    const Status status = (settings().*setting).set(function, text);
    return status.ok() ? ACLNN_SUCCESS : fail(aclnn_code(status.code()), status.message());
  });
}

}  // namespace
}  // namespace kvferry::acl

using kvferry::acl::Settings;

aclnnStatus aclKvferrySetProfile(const char* profile) {
  return kvferry::acl::set(&Settings::profile, "aclKvferrySetProfile", profile);
}

aclnnStatus aclKvferrySetIndexPolicy(const char* policy) {
  return kvferry::acl::set(&Settings::index_policy, "aclKvferrySetIndexPolicy", policy);
}

aclnnStatus aclKvferrySetSelectionQLen(const char* mode) {
  return kvferry::acl::set(&Settings::selection_q_len, "aclKvferrySetSelectionQLen", mode);
}
