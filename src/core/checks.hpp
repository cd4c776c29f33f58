// SPDX-License-Identifier: Apache-2.0
//
// Checker: the checks of plan(). One line each: tensor, dimension, what was seen, what was expected. The
// first failure sticks and every later check is a no-op, so a plan function reads as a list of rules in the
// order in which they are reported.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "kvferry/context.hpp"
#include "kvferry/plan.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry::internal {

class Checker {
 public:
  Checker(Operator op, const Context& context);

  bool ok() const noexcept { return status_.ok(); }
  Status take() noexcept { return std::move(status_); }

  // A known policy. kReject needs indices that the host can see: `indices` is where they are.
  void index_policy(IndexPolicy policy);
  void index_policy(IndexPolicy policy, const TensorView& indices);

  // kUnimplemented on a device whose memory the host does not read: "<what> on device cuda:0, ...".
  void on_host(std::string_view what);

  // The view is usable at all: rank and dims, device, not null (an empty view may be), byte offsets of all
  // its elements fit int64, all inside the storage where that is known.
  void tensor(const char* name, const TensorView& view);
  // tensor() for indices that run() of a device can also read on the host: they may lie in its ordinary
  // memory.
  void indices(const char* name, const TensorView& view);
  // indices() of a call whose `other` ones are where these must be too: both on the host, or none.
  void indices_beside(const char* name, const TensorView& view, const char* other_name,
                      const TensorView& other);
  // tensor() for one that is written: also no two elements at one address.
  void output(const char* name, const TensorView& view);

  void rank(const char* name, const TensorView& view, int expected);
  // `why` says where the expectation comes from: "key_cache dimension 3".
  void dim(const char* name, const TensorView& view, int axis, std::int64_t expected, std::string_view why);
  void kv_dtype(const char* name, const TensorView& view);     // one of the twelve that caches may have
  void index_dtype(const char* name, const TensorView& view);  // int32 or int64
  // indices_beside(), [] or [1], int32 or int64.
  void count(const char* name, const TensorView& view, const char* other_name, const TensorView& other);
  void same_dtype(const char* name, const TensorView& view, const char* other_name, const TensorView& other);

  // Any other rule; `format` and its arguments continue "<operator>: ".
  template <class... T>
  void that(bool condition, fmt::format_string<T...> format, T&&... args) {
    if (ok() && !condition) fail(StatusCode::kInvalidArgument, fmt::format(format, std::forward<T>(args)...));
  }

 private:
  void view(const char* name, const TensorView& view, bool may_be_on_host);
  void fail(StatusCode code, std::string_view message);

  Operator op_;
  Device device_;
  Status status_;
};

// Ordinary memory of the host: on a device, what run() has to read itself.
inline bool is_on_host(const TensorView& view) noexcept {
  return view.device.type == DeviceType::kCpu;
}
std::int64_t element_count(const TensorView& view) noexcept;  // of a view that passed Checker::tensor
inline bool is_empty(const TensorView& view) noexcept {
  return element_count(view) == 0;
}

// True if two elements share an address: stride 0, a pitch that is too small, axes that meet. Exact for
// layouts that anybody writes; gives up (false) on strides chosen to make the search long.
bool overlaps_itself(const TensorView& view) noexcept;

}  // namespace kvferry::internal
