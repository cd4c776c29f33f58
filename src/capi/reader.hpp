// SPDX-License-Identifier: Apache-2.0
//
// Reader: C structs to C++ ones. Like Checker, the first failure sticks and what follows is a no-op, so a
// conversion reads as a list of fields. It allocates for lists of tensors and for messages only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kvferry/kvferry.h"
#include "kvferry/status.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry::capi {

class Reader {
 public:
  // `what` begins messages: the operator, or "context".
  explicit Reader(const char* what) : what_(what) {}

  bool ok() const noexcept { return status_.ok(); }
  Status take() noexcept { return std::move(status_); }

  // kNull unless `pointer` is given.
  void need(const char* name, const void* pointer);

  // A copy of *given in the size of today: zeroes for what an older caller's lacks. A newer caller's tail
  // must be zero.
  template <class Struct>
  Struct structure(const char* name, const Struct* given) {
    static_assert(std::is_trivially_copyable_v<Struct> && sizeof(Struct) % kMemberBytes == 0);
    Struct copy = {};
    if (const std::size_t bytes = known_bytes(name, given, sizeof copy)) std::memcpy(&copy, given, bytes);
    return copy;
  }

  TensorView tensor(const char* name, const kvferry_tensor* given);
  std::optional<TensorView> optional(const char* name, const kvferry_tensor* given);
  // The views live as long as the reader.
  std::span<const TensorView> list(const char* name, const kvferry_tensor* given, std::size_t count);

  // A number from 0 to `last`: an enumeration whose values are those of the C API, or a flag.
  std::int64_t choice(const char* name, std::int64_t value, std::int64_t last);
  template <class Enum>
  Enum choice(const char* name, std::int64_t value, Enum last) {
    return static_cast<Enum>(choice(name, value, static_cast<std::int64_t>(last)));
  }
  bool flag(const char* name, std::int64_t value) { return choice(name, value, 1) == 1; }

 private:
  static constexpr std::size_t kMemberBytes = 8;

  // How many bytes of a struct that begins with its size are known here; 0 if it is refused.
  std::size_t known_bytes(const char* name, const void* given, std::size_t known);
  void fail(StatusCode code, std::string_view message);

  const char* what_;
  Status status_;
  std::vector<std::vector<TensorView>> lists_;
};

}  // namespace kvferry::capi
