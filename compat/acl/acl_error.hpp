// SPDX-License-Identifier: Apache-2.0
//
// How the functions of this library fail: a number for the caller, a text for aclGetRecentErrMsg.
#pragma once

#include <exception>
#include <string>

#include "kvferry/status.hpp"

namespace kvferry::acl {

// Keeps `text` as this thread's last error and returns `code`.
int fail(int code, std::string text) noexcept;

// The runtime's answer to a null pointer: "FUNCTION: ARGUMENT is null".
int null_argument(const char* function, const char* argument);

// The runtime's answer to what the backend said: "FUNCTION: REASON".
int report(const char* function, const Status& status);

// Keeps `text` for this thread until its next call of keep().
const char* keep(std::string text) noexcept;

// The body of a C function: nothing is thrown across it. What is caught here is memory or a thread that the
// system does not give.
template <class Body>
int guarded(int code_without_resources, Body body) noexcept {
  try {
    return body();
  } catch (const std::exception&) {
    return fail(code_without_resources, {});
  }
}

}  // namespace kvferry::acl
