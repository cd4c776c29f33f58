// SPDX-License-Identifier: Apache-2.0
#include "acl_error.hpp"

#include <utility>

#include "acl/acl_base.h"

namespace kvferry::acl {
namespace {

struct ThreadTexts {
  bool failed = false;
  std::string error;
  std::string kept;
};

ThreadTexts& texts() noexcept {
  thread_local ThreadTexts of_this_thread;
  return of_this_thread;
}

}  // namespace

int fail(int code, std::string text) noexcept {
  texts().failed = true;
  texts().error = std::move(text);
  if (texts().error.empty()) texts().error = "no memory";  // short: needs none
  return code;
}

int null_argument(const char* function, const char* argument) {
  return fail(ACL_ERROR_RT_PARAM_INVALID, std::string(function) + ": " + argument + " is null");
}

int report(const char* function, const Status& status) {
  if (status.ok()) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_INTERNAL_ERROR, std::string(function) + ": " + status.message());
}

const char* keep(std::string text) noexcept {
  texts().kept = std::move(text);
  return texts().kept.c_str();
}

}  // namespace kvferry::acl

const char* aclGetRecentErrMsg() {
  const auto& texts = kvferry::acl::texts();
  return texts.failed ? texts.error.c_str() : nullptr;
}
