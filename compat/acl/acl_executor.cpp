// SPDX-License-Identifier: Apache-2.0
#include "acl_executor.hpp"

#include <fmt/format.h>

#include "acl_device.hpp"
#include "acl_error.hpp"
#include "acl_handles.hpp"
#include "aclnn/acl_kvferry.h"

namespace kvferry::acl {

Executors& executors() {
  static auto& of_the_process = *new Executors;
  return of_the_process;
}

aclOpExecutor* Executors::add(std::unique_ptr<Call> call) {
  const std::uint64_t serial = next_serial();
  const std::lock_guard lock(mutex_);
  executors_.emplace(serial, Executor{std::move(call), device().id(), false});
  return to_handle<aclOpExecutor>(serial);
}

Executors::Executor* Executors::find(const char* function, const aclOpExecutor* executor) {
  const auto found = executors_.find(to_serial(executor));
  if (found != executors_.end()) return &found->second;
  fail(ACLNN_ERR_PARAM_INVALID,
       fmt::format("{}: executor {} does not exist: it has run, was destroyed, or is something else",
                   function, fmt::ptr(executor)));
  return nullptr;
}

int Executors::launch(Operator op, const aclOpExecutor* executor, void* workspace,
                      std::uint64_t workspace_bytes, void* stream_handle) {
  const char* const name = to_string(op);
  if (executor == nullptr) return fail(ACLNN_ERR_PARAM_NULLPTR, fmt::format("{}: executor is null", name));
  const std::shared_ptr<Stream> stream = device().find_stream(stream_handle);
  if (stream == nullptr) return fail(ACLNN_ERR_RUNTIME_ERROR, no_such(name, "stream", stream_handle));

  std::unique_ptr<Call> call;
  {
    const std::lock_guard lock(mutex_);
    Executor* const found = find(name, executor);
    if (found == nullptr) return ACLNN_ERR_PARAM_INVALID;
    const Plan& plan = found->call->plan();
    if (plan.op() != op)
      return fail(ACLNN_ERR_PARAM_INVALID, fmt::format("{}: executor is of {}", name, to_string(plan.op())));
    if (found->device != device().id())
      return fail(ACLNN_ERR_PARAM_INVALID,
                  fmt::format("{}: executor is of device {}, expected the thread's device {}", name,
                              found->device, device().id()));
    // run() would say so too, but only on the stream, when the caller has moved on.
    const auto needed = static_cast<std::uint64_t>(plan.workspace_bytes());
    if (workspace_bytes < needed)
      return fail(ACLNN_ERR_PARAM_INVALID,
                  fmt::format("{}: workspaceSize is {}, expected {}", name, workspace_bytes, needed));
    if (workspace == nullptr && needed > 0)
      return fail(ACLNN_ERR_PARAM_NULLPTR,
                  fmt::format("{}: workspace is null, expected {} bytes", name, needed));
    if (found->repeatable) {
      call = found->call->clone();
    } else {
      call = std::move(found->call);
      executors_.erase(to_serial(executor));
    }
  }
  call->set_workspace({workspace, call->plan().workspace_bytes()});
  const Status status = stream->push(std::move(call));
  return status.ok() ? ACLNN_SUCCESS : fail(aclnn_code(status.code()), status.message());
}

int Executors::make_repeatable(const aclOpExecutor* executor) {
  const std::lock_guard lock(mutex_);
  Executor* const found = find("aclSetAclOpExecutorRepeatable", executor);
  if (found == nullptr) return ACLNN_ERR_PARAM_INVALID;
  found->repeatable = true;
  return ACLNN_SUCCESS;
}

int Executors::set_address(const char* function, const aclOpExecutor* executor, std::size_t index,
                           bool written_only, void* address) {
  const std::lock_guard lock(mutex_);
  Executor* const found = find(function, executor);
  if (found == nullptr) return ACLNN_ERR_PARAM_INVALID;
  if (found->call->set_address(index, written_only, address)) return ACLNN_SUCCESS;
  return fail(ACLNN_ERR_PARAM_INVALID,
              fmt::format("{}: {} has no {}tensor {}, or it was null in the first phase", function,
                          to_string(found->call->plan().op()), written_only ? "written " : "", index));
}

int Executors::destroy(const aclOpExecutor* executor) {
  const std::lock_guard lock(mutex_);
  if (find("aclDestroyAclOpExecutor", executor) == nullptr) return ACLNN_ERR_PARAM_INVALID;
  executors_.erase(to_serial(executor));
  return ACLNN_SUCCESS;
}

const char* Executors::describe(const aclOpExecutor* executor) const {
  const std::lock_guard lock(mutex_);
  const auto found = executors_.find(to_serial(executor));
  return found == executors_.end() ? nullptr : keep(found->second.call->plan().describe());
}

std::size_t Executors::size() const {
  const std::lock_guard lock(mutex_);
  return executors_.size();
}

namespace {

int null_pointer(const char* function, const char* argument) {
  return fail(ACLNN_ERR_INNER_NULLPTR, fmt::format("{}: {} is null", function, argument));
}

int set_address(const char* function, const aclOpExecutor* executor, std::size_t index, bool written_only,
                const aclTensor* tensor, void* address) {
  return guarded(ACLNN_ERR_INNER, [&] {
    if (executor == nullptr) return null_pointer(function, "executor");
    if (tensor == nullptr) return null_pointer(function, "tensor");
    if (address == nullptr) return null_pointer(function, "addr");
    return executors().set_address(function, executor, index, written_only, address);
  });
}

}  // namespace
}  // namespace kvferry::acl

using namespace kvferry::acl;

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  return guarded(ACLNN_ERR_INNER, [&] {
    if (executor == nullptr) return null_pointer("aclSetAclOpExecutorRepeatable", "executor");
    return executors().make_repeatable(executor);
  });
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  return guarded(ACLNN_ERR_INNER,
                 [&] { return executor == nullptr ? ACLNN_SUCCESS : executors().destroy(executor); });
}

aclnnStatus aclSetTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return set_address("aclSetTensorAddr", executor, index, false, tensor, addr);
}

aclnnStatus aclSetInputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor,
                                  void* addr) {
  return set_address("aclSetInputTensorAddr", executor, index, false, tensor, addr);
}

aclnnStatus aclSetOutputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor,
                                   void* addr) {
  return set_address("aclSetOutputTensorAddr", executor, index, true, tensor, addr);
}

aclnnStatus AclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  return aclSetAclOpExecutorRepeatable(executor);
}

aclnnStatus AclSetTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return aclSetTensorAddr(executor, index, tensor, addr);
}

aclnnStatus AclSetInputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor,
                                  void* addr) {
  return aclSetInputTensorAddr(executor, index, tensor, addr);
}

aclnnStatus AclSetOutputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor,
                                   void* addr) {
  return aclSetOutputTensorAddr(executor, index, tensor, addr);
}

const char* aclKvferryDescribe(const aclOpExecutor* executor) {
  const char* text = nullptr;
  guarded(ACLNN_ERR_INNER, [&] {
    text = executors().describe(executor);
    return ACLNN_SUCCESS;
  });
  return text;
}
