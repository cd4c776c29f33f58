// SPDX-License-Identifier: Apache-2.0
//
// Implementations and plans. An operator's table is an ordered array of Impl: the first whose why_not() is
// empty runs. Adding an implementation is adding a row.
#pragma once

#include <fmt/format.h>

#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/context_state.hpp"
#include "kvferry/context.hpp"
#include "kvferry/plan.hpp"

namespace kvferry::internal {

// Base of every operator's plan: what the public Plan shows.
struct PlanBody {
  explicit PlanBody(Operator o) : op(o) {}
  PlanBody(const PlanBody&) = delete;
  PlanBody& operator=(const PlanBody&) = delete;
  virtual ~PlanBody() = default;

  // The operator's own part of Plan::describe().
  virtual std::string describe_problem() const = 0;

  Operator op;
  const char* implementation = "";
  bool forced = false;   // by the context
  std::string refusals;  // "avx2: this CPU has no AVX2", one a line
  std::int64_t workspace_bytes = 0;
  Device device;                // of the context that planned; run() wants it again
  bool host_workspace = false;  // of a device's plan: run() itself works in it
  int threads = 1;              // of the context that planned, for describe()
};

template <class Body, class Buffers>
struct Impl {
  const char* name;
  std::string (*why_not)(const Body&);  // empty: can run this plan on this machine
  // Everything but index values is checked. Returns kIndex or ok; does not allocate.
  Status (*run)(const Body&, const Buffers&, ContextState&);
};

// Sets body.impl, implementation and refusals, or says why nothing can run.
template <class Body, class Buffers>
Status pick(std::span<const Impl<Body, Buffers>> table, const Context& context, Body& body) {
  // A device's table has one row. What an operator without it has here is for the CPU and its memory.
  if (context.state().queue != nullptr && std::string_view(table.front().name) != "cuda") {
    return {StatusCode::kUnimplemented,
            fmt::format("{}: on device {}, expected a CPU's: it has no CUDA implementation",
                        to_string(body.op), to_string(context.options().device))};
  }
  const std::string_view forced = context.options().implementation;
  std::string names;
  for (const auto& impl : table) {
    names += (names.empty() ? "" : ", ") + std::string(impl.name);
    if (!forced.empty() && forced != impl.name) continue;
    std::string reason = impl.why_not(body);
    if (reason.empty()) {
      body.impl = &impl;
      body.implementation = impl.name;
      body.forced = !forced.empty();
      body.device = context.options().device;
      body.threads = context.threads();
      return {};
    }
    body.refusals += fmt::format("{}: {}\n", impl.name, reason);
    if (!forced.empty()) {
      return {StatusCode::kUnavailable, fmt::format("{}: implementation '{}' was forced and cannot run: {}",
                                                    to_string(body.op), forced, reason)};
    }
  }
  return {StatusCode::kUnavailable,
          fmt::format("{}: no implementation '{}', expected one of {}", to_string(body.op), forced, names)};
}

// Runs `make` (the checks and the layout work of plan()), turning bad_alloc into a Status.
template <class Make>
Result<Plan> guarded_plan(Make make) noexcept {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, std::string());
  }
}

template <class Call>
Status guarded_run(Call call) noexcept {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, std::string()};
  }
}

// A workspace may have any alignment: plans ask for this much more, runs round up.
inline constexpr std::int64_t kWorkspaceAlign = 64;

template <class T>
T* aligned(const Workspace& workspace) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  return reinterpret_cast<T*>((address + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign);
}

inline Status check_workspace(const PlanBody& body, const Workspace& workspace) {
  if (workspace.bytes < body.workspace_bytes || (workspace.data == nullptr && body.workspace_bytes > 0)) {
    return {
        StatusCode::kInvalidArgument,
        fmt::format("{}: workspace: {} bytes at {}, expected {} bytes", to_string(body.op), workspace.bytes,
                    workspace.data == nullptr ? "null" : "a valid address", body.workspace_bytes)};
  }
  return {};
}

// A pointer that the planned shape needs.
inline void need(Status& status, const PlanBody& body, const char* name, const void* pointer, bool needed) {
  if (status.ok() && needed && pointer == nullptr) {
    status = Status(StatusCode::kNull,
                    fmt::format("{}: {}: pointer is null, expected the memory of the planned tensor",
                                to_string(body.op), name));
  }
}

// A context that can run the plan.
inline Status check_context(const PlanBody& body, const ContextState& state) {
  if (body.device != state.options.device) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: context: its device is {}, expected the plan's {}", to_string(body.op),
                        to_string(state.options.device), to_string(body.device))};
  }
  if (state.queue == nullptr) return {};
  Status status = state.queue->check_process();
  if (status.ok()) return status;
  return {status.code(), fmt::format("{}: {}", to_string(body.op), status.message())};
}

// Puts a call behind everything that the stream already holds. `call` gets what it was enqueued with; both
// shared pointers keep their objects alive until then. kUnavailable if the stream belongs to the process that
// this one was forked from.
using StreamCall = Status (*)(const PlanBody&, const void* buffers, ContextState&);
inline constexpr std::size_t kMaxBufferBytes = 192;
Status enqueue(Stream& stream, StreamCall call, std::shared_ptr<const PlanBody> body, const void* buffers,
               std::size_t buffer_bytes, std::shared_ptr<ContextState> state);

// run() of every operator: Body::check(buffers) covers pointers and workspace, then now or on the stream.
template <class Body, class Buffers>
Status run_plan(Operator op, const Plan& plan, const Buffers& buffers, const Context& context) noexcept {
  static_assert(sizeof(Buffers) <= kMaxBufferBytes && std::is_trivially_copyable_v<Buffers>);
  return guarded_run([&]() -> Status {
    if (plan.empty() || plan.op() != op) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: plan is {}, expected one of this operator", to_string(op),
                          plan.empty() ? "empty" : to_string(plan.op()))};
    }
    const auto& body = static_cast<const Body&>(*plan.body());
    if (Status status = body.check(buffers); !status.ok()) return status;
    ContextState& state = context.state();
    if (Status status = check_context(body, state); !status.ok()) return status;
    if (state.options.stream == nullptr) return body.impl->run(body, buffers, state);
    const StreamCall call = [](const PlanBody& b, const void* held, ContextState& s) {
      const auto& typed = static_cast<const Body&>(b);
      return typed.impl->run(typed, *static_cast<const Buffers*>(held), s);
    };
    return enqueue(*state.options.stream, call, plan.body(), &buffers, sizeof buffers,
                   state.shared_from_this());
  });
}

// run() with the context's own workspace.
template <class Buffers>
Status run_in_context(const Plan& plan, Buffers buffers, const Context& context) noexcept {
  return guarded_run([&]() -> Status {
    ProcessState* const state = context.state().here();
    if (state == nullptr) return {StatusCode::kOutOfMemory, std::string()};
    const std::lock_guard lock(state->workspace_mutex);
    buffers.workspace.bytes = plan.workspace_bytes();
    if (DeviceQueue* const queue = context.state().queue.get();
        queue != nullptr && !plan.body()->host_workspace) {
      Status status = queue->check_process();
      Result<void*> memory = status.ok() ? queue->workspace(buffers.workspace.bytes) : Result<void*>(status);
      if (!memory.ok()) {
        status = memory.status();
        return {status.code(), fmt::format("{}: {}", to_string(plan.op()), status.message())};
      }
      buffers.workspace.data = memory.value();
    } else if (buffers.workspace.bytes > 0) {
      buffers.workspace.data = state->workspace(buffers.workspace.bytes);
      if (buffers.workspace.data == nullptr) return {StatusCode::kOutOfMemory, std::string()};
    }
    return run(plan, buffers, context);
  });
}

// The one-call form of every operator.
template <class Args, class Buffers>
Status plan_and_run(const Args& args, const Buffers& buffers, const Context& context) noexcept {
  const Result<Plan> planned = plan(args, context);
  if (!planned.ok()) return planned.status();
  return run_in_context(planned.value(), buffers, context);
}

}  // namespace kvferry::internal
