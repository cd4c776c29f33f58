// SPDX-License-Identifier: Apache-2.0
//
// Executors: what the first phase leaves for the second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "acl_backend.hpp"
#include "aclnn/acl_meta.h"
#include "kvferry/plan.hpp"

namespace kvferry::acl {

// One aclTensor parameter of a first phase.
template <class Buffers>
struct Operand {
  bool written = false;
  void (*set)(Buffers& buffers, void* address) = nullptr;
};

template <auto kMember, class Buffers>
constexpr Operand<Buffers> operand(bool written) {
  return {written, [](Buffers& buffers, void* address) { buffers.*kMember = address; }};
}

// A plan with its buffers.
class Call : public Task {
 public:
  explicit Call(Plan plan) : plan_(std::move(plan)) {}

  const Plan& plan() const noexcept { return plan_; }
  virtual std::unique_ptr<Call> clone() const = 0;
  virtual void set_workspace(const Workspace& workspace) noexcept = 0;
  // Of operand number `index`, or of the written ones; false if there is none or it was null when planned.
  virtual bool set_address(std::size_t index, bool written_only, void* address) noexcept = 0;

 private:
  Plan plan_;
};

// The operator's run(), which OperatorCall's own hides.
template <class Buffers>
Status run_plan(const Plan& plan, const Buffers& buffers, const Context& context) noexcept {
  return run(plan, buffers, context);
}

template <class Buffers>
class OperatorCall final : public Call {
 public:
  OperatorCall(Plan plan, const Buffers& buffers, std::span<const Operand<Buffers>> operands,
               std::uint32_t present)
      : Call(std::move(plan)), buffers_(buffers), operands_(operands), present_(present) {}

  std::unique_ptr<Call> clone() const override { return std::make_unique<OperatorCall>(*this); }
  void set_workspace(const Workspace& workspace) noexcept override { buffers_.workspace = workspace; }
  Status run(const Context& context) noexcept override { return run_plan(plan(), buffers_, context); }

  bool set_address(std::size_t index, bool written_only, void* address) noexcept override {
    std::size_t counted = 0;
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      if (written_only && !operands_[i].written) continue;
      if (counted++ != index) continue;
      if ((present_ >> i & 1U) == 0) return false;
      operands_[i].set(buffers_, address);
      return true;
    }
    return false;
  }

 private:
  Buffers buffers_;
  std::span<const Operand<Buffers>> operands_;
  std::uint32_t present_;  // bit i: operand i was not null
};

// The executors of the process, by serial number.
class Executors {
 public:
  // Of the calling thread's device.
  aclOpExecutor* add(std::unique_ptr<Call> call);
  // The second phase of operator `op`.
  int launch(Operator op, const aclOpExecutor* executor, void* workspace, std::uint64_t workspace_bytes,
             void* stream);
  int make_repeatable(const aclOpExecutor* executor);
  int set_address(const char* function, const aclOpExecutor* executor, std::size_t index, bool written_only,
                  void* address);
  int destroy(const aclOpExecutor* executor);
  const char* describe(const aclOpExecutor* executor) const;  // null if there is none
  std::size_t size() const;

 private:
  struct Executor {
    std::unique_ptr<Call> call;
    std::int32_t device = 0;
    bool repeatable = false;
  };
  // Null, and the thread's error text, if there is none. REQUIRES mutex_.
  Executor* find(const char* function, const aclOpExecutor* executor);

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, Executor> executors_;
};

Executors& executors();

}  // namespace kvferry::acl
