// SPDX-License-Identifier: Apache-2.0
//
// Status and Result: how every function of KVFerry reports an error.
//
// A message always names the operator, the tensor, the dimension or index, what was seen and what was
// expected:
//     gather_pa_kv_cache: key: dimension 2 is 96, expected 128 (key_cache dimension 3)
//
// Functions throw nothing, never abort and never print; running out of memory is a Status too. (The
// constructors of Context and Stream may throw std::bad_alloc, that of Stream std::system_error when no
// thread can be started.)
#pragma once

#include <optional>
#include <string>
#include <utility>

#if defined(__GNUC__)
#define KVFERRY_EXPORT __attribute__((visibility("default")))
#else
#define KVFERRY_EXPORT
#endif

namespace kvferry {

// "You are wrong" (kInvalidArgument, kNull, kIndex) and "we cannot" (kUnimplemented, kUnavailable) are
// different codes.
enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument,  // a shape, dtype, stride, size or attribute breaks a rule of the operator
  kNull,             // a required pointer is null
  kIndex,          // IndexPolicy::kReject (or a checked mode) met a bad index or address: nothing was written
  kUnimplemented,  // valid, but this library does not do it
  kUnavailable,  // this build or this machine cannot do it: no such device, forced implementation cannot run
  kOutOfMemory,
};

// "invalid_argument", "index", ...
KVFERRY_EXPORT const char* to_string(StatusCode code) noexcept;

// The number that the ACLNN form of the call returns for this code (161002 for kInvalidArgument, ...).
KVFERRY_EXPORT int aclnn_code(StatusCode code) noexcept;

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const noexcept { return code_ == StatusCode::kOk; }
  StatusCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value or the reason why there is none. value() and operator-> REQUIRE ok().
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const noexcept { return value_.has_value(); }
  const Status& status() const noexcept { return status_; }
  T& value() & noexcept { return *value_; }
  const T& value() const& noexcept { return *value_; }
  T&& value() && noexcept { return std::move(*value_); }
  T* operator->() noexcept { return &*value_; }
  const T* operator->() const noexcept { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace kvferry
