// SPDX-License-Identifier: Apache-2.0
//
// PhaseOne: the first phase of every operator. It turns ACL's tensors into views, plans, and leaves an
// executor. The rules of the operator are plan()'s; what is checked here exists in ACL only: null pointers,
// dtypes and formats that the library has no name for, attributes by name, the profile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "acl_device.hpp"
#include "acl_error.hpp"
#include "acl_executor.hpp"
#include "acl_settings.hpp"
#include "aclnn/acl_meta.h"
#include "kvferry/tensor.hpp"

namespace kvferry::acl {

class PhaseOne {
 public:
  PhaseOne(Operator op, std::uint64_t* workspace_size, aclOpExecutor** executor);

  // To be called once for each aclTensor parameter, in their order: executors count them.
  TensorView tensor(const char* name, const aclTensor* tensor, bool may_be_nz = false);
  std::optional<TensorView> optional(const char* name, const aclTensor* tensor, bool may_be_nz = false);
  // A tensor of a mode that is not implemented: refused if it is there.
  void unimplemented(const char* name, const aclTensor* tensor);

  // An attribute by its name; null stands for the first.
  template <class T, std::size_t N>
  T choice(const char* name, const char* text, const Names<T, N>& names) {
    if (text == nullptr) return names.front().second;
    if (const T* found = find_name(names, text)) return *found;
    refuse(not_one_of(names, name, text));
    return names.front().second;
  }

  template <class T, std::size_t N>
  T setting(const Setting<T, N>& from) {
    T value{};
    if (Status status = from.get(value); !status.ok()) refuse(std::move(status));
    return value;
  }

  void null(const char* name);
  void refuse(Status status);  // the first one stays; a null pointer goes before all others

  // `why_not` is asked about arguments that plan() accepted.
  template <class Args, class Operands>
  int finish(const Args& args, const Operands& operands, std::string (*why_not)(Profile, const Args&)) {
    const Profile profile = setting(settings().profile);
    if (const int code = failure(); code != ACLNN_SUCCESS) return code;
    Result<Plan> made = plan(args, device().planning_context());
    if (!made.ok()) return fail(aclnn_code(made.status().code()), made.status().message());
    if (const std::string why = why_not(profile, args); !why.empty()) return fail_profile(profile, why);
    *workspace_size_ = static_cast<std::uint64_t>(made->workspace_bytes());
    using Buffers = decltype(buffers(args));
    *executor_ = executors().add(
        std::make_unique<OperatorCall<Buffers>>(std::move(made).value(), buffers(args), operands, present_));
    return ACLNN_SUCCESS;
  }

 private:
  int failure();  // what was refused so far
  int fail_profile(Profile profile, const std::string& why) const;
  TensorView view(const char* name, const aclTensor& tensor, bool may_be_nz);

  const Operator op_;
  std::uint64_t* const workspace_size_;
  aclOpExecutor** const executor_;
  std::uint32_t present_ = 0;  // bit i: tensor parameter i was not null
  std::uint32_t next_bit_ = 1;
  Status refusal_;
  std::string nulls_;
};

}  // namespace kvferry::acl
