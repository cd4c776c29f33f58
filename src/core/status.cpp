// SPDX-License-Identifier: Apache-2.0
#include "kvferry/status.hpp"

namespace kvferry {

const char* to_string(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid_argument";
    case StatusCode::kNull:
      return "null";
    case StatusCode::kIndex:
      return "index";
    case StatusCode::kUnimplemented:
      return "unimplemented";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kOutOfMemory:
      return "out_of_memory";
  }
  return "unknown";
}

int aclnn_code(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kInvalidArgument:
      return 161002;  // ACLNN_ERR_PARAM_INVALID
    case StatusCode::kNull:
      return 161001;  // ACLNN_ERR_PARAM_NULLPTR
    case StatusCode::kIndex:
      return 361001;  // ACLNN_ERR_RUNTIME_ERROR
    case StatusCode::kUnimplemented:
    case StatusCode::kUnavailable:
      return 561003;  // ACLNN_ERR_INNER_FIND_KERNEL_ERROR
    case StatusCode::kOutOfMemory:
      break;
  }
  return 561000;  // ACLNN_ERR_INNER
}

}  // namespace kvferry
