// SPDX-License-Identifier: Apache-2.0
//
// An operator's table of fields to Python functions: the call, plan_<operator>, and <Operator>Plan.run.
//
// A table is a struct with
//   Args         the library's struct
//   kOp          its Operator
//   kName        "gather_pa_kv_cache"
//   kPlanName    "GatherPaKvCachePlan"
//   kPositional  how many of the fields may be given by position
//   kDoc         docstring of the call
//   kFields      std::tuple of fields, in Python's order
// and where the operator wants it
//   complete(args)                what Python does not tell
//   make_buffers(args, pointers)  with lists of tensors: the library's buffers, which refer to `pointers`
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <mutex>
#include <tuple>
#include <utility>

#include "contexts.hpp"
#include "fields.hpp"
#include "kvferry/memory.hpp"

namespace kvferry::python {

// Memory of the calling thread, for work that is over when the call returns.
Workspace thread_workspace(std::int64_t bytes);

// The workspace of a plan whose work is done in two calls.
struct SharedWorkspace {
  explicit SharedWorkspace(std::int64_t size)
      : memory(new std::byte[static_cast<std::size_t>(size)](), std::default_delete<std::byte[]>()) {}
  // On the device of the call.
  SharedWorkspace(std::int64_t size, Intake& intake);

  std::shared_ptr<void> memory;
  std::mutex mutex;  // taken without the GIL
};

template <class Table>
auto buffers_of(const typename Table::Args& args, std::vector<void*>& pointers) {
  if constexpr (requires { Table::make_buffers(args, pointers); })
    return Table::make_buffers(args, pointers);
  else
    return buffers(args);
}

// Enqueues `step`. What it allocated is free for what comes behind it on the stream.
template <class Step, class Buffers>
void launch_on_cuda(Step step, const Plan& plan, Buffers& buffers, Intake& intake, SharedWorkspace* shared) {
  const PyContext& context = intake.context();
  const std::int64_t bytes = plan.workspace_bytes();
  const std::shared_ptr<void> memory = shared == nullptr ? intake.device_memory(bytes) : nullptr;
  if (memory != nullptr) buffers.workspace = {memory.get(), bytes};
  Status status;
  {
    const ReleasedGil released;
    const std::lock_guard lock(shared == nullptr ? context.workspace_mutex : shared->mutex);
    if (shared == nullptr && memory == nullptr && bytes > 0) {
      const Result<void*> own = device_workspace(context.context, bytes);
      status = own.status();
      if (own.ok()) buffers.workspace = {own.value(), bytes};
    }
    if (status.ok()) status = step(plan, buffers, context.context);
  }
  raise_unless_ok(status);
}

// Does `step`, run() or one like it, in the call or on the context's stream.
template <class Table, class Step>
void launch(Step step, const Plan& plan, const Given<typename Table::Args>& given, Intake& intake,
            std::shared_ptr<SharedWorkspace> shared = nullptr) {
  const PyContext& context = intake.context();
  std::vector<void*> pointers;
  auto buffers = buffers_of<Table>(given.args, pointers);
  if constexpr (requires { buffers.error_record; }) buffers.error_record = given.record;
  if (shared != nullptr) buffers.workspace = {shared->memory.get(), plan.workspace_bytes()};

  if (intake.on_cuda()) return launch_on_cuda(step, plan, buffers, intake, shared.get());
  if (context.stream == nullptr) {
    if (shared == nullptr) buffers.workspace = thread_workspace(plan.workspace_bytes());
    Status status;
    {
      const ReleasedGil released;
      const auto lock = shared ? std::unique_lock(shared->mutex) : std::unique_lock<std::mutex>();
      status = step(plan, buffers, context.context);
    }
    return raise_unless_ok(status);
  }
  if (shared == nullptr && plan.workspace_bytes() > 0) {
    shared = std::make_shared<SharedWorkspace>(plan.workspace_bytes());
    buffers.workspace = {shared->memory.get(), plan.workspace_bytes()};
  }
  context.stream->keep({intake.take_owners(), std::move(pointers), std::move(shared)});
  raise_unless_ok(step(plan, buffers, context.context));
}

constexpr auto kRunStep = [](const Plan& plan, const auto& buffers, const Context& context) {
  return run(plan, buffers, context);
};

template <class Table>
struct OperatorPlan {
  Plan plan;
  Given<typename Table::Args> planned;  // without pointers
  Device device;
  mutable std::shared_ptr<SharedWorkspace> shared;
};

template <class Table, std::size_t I>
using FieldOf = std::tuple_element_t<I, std::remove_const_t<decltype(Table::kFields)>>;
template <class Table, std::size_t I>
using PythonOf = typename FieldOf<Table, I>::Python;

// The fields that a function has: their indices, and how many.
template <class Table, unsigned use>
inline constexpr auto kFieldsWith = [] {
  std::pair<std::array<std::size_t, std::tuple_size_v<decltype(Table::kFields)>>, std::size_t> picked{};
  std::size_t index = 0;
  const auto look = [&](const auto& field) {
    if ((field.uses & use) != 0) picked.first[picked.second++] = index;
    ++index;
  };
  std::apply([&](const auto&... field) { (look(field), ...); }, Table::kFields);
  return picked;
}();

template <class Table, unsigned use>
constexpr auto fields_with() {
  return []<std::size_t... N>(std::index_sequence<N...>) {
    return std::index_sequence<kFieldsWith<Table, use>.first[N]...>();
  }
  (std::make_index_sequence<kFieldsWith<Table, use>.second>());
}

// Attributes first: they say which of the tensors are written.
template <class Table, std::size_t... I>
void read_fields(Intake& intake, Given<typename Table::Args>& to, const PythonOf<Table, I>&... values) {
  const auto read = [&]<std::size_t i>(bool tensors, const auto& value) {
    if (kIsTensor<FieldOf<Table, i>> == tensors) std::get<i>(Table::kFields).read(intake, to, value);
  };
  (read.template operator()<I>(false, values), ...);
  (read.template operator()<I>(true, values), ...);
  if (intake.must_look_again()) (read.template operator()<I>(true, values), ...);
  if (to.record_object.is_valid()) to.record = intake.record(std::exchange(to.record_object, {}));
  if constexpr (requires { Table::complete(to.args); }) Table::complete(to.args);
}

template <class Table, std::size_t... I, class Visit>
void each_tensor(Visit visit) {
  const auto one = [&](const auto& field) {
    if constexpr (kIsTensor<std::remove_cvref_t<decltype(field)>>) visit(field);
  };
  (one(std::get<I>(Table::kFields)), ...);
}

template <class Table, std::size_t... I>
OperatorPlan<Table> make_plan(Intake& intake, const PythonOf<Table, I>&... values) {
  OperatorPlan<Table> made;
  read_fields<Table, I...>(intake, made.planned, values...);
  Result<Plan> result = plan(made.planned.args, intake.context().context);
  intake.raise_unless_ok(result.status());
  made.plan = std::move(result).value();
  made.device = intake.device();
  return made;
}

template <class Table, std::size_t... I, class Step>
void run_plan(Step step, const OperatorPlan<Table>& plan, bool shares_workspace, const PyContext* context,
              const PythonOf<Table, I>&... values) {
  Intake intake(Table::kOp, context);
  Given<typename Table::Args> given;
  given.args = plan.planned.args;
  read_fields<Table, I...>(intake, given, values...);
  each_tensor<Table, I...>(
      [&](const auto& field) { field.require_planned(Table::kOp, given.args, plan.planned.args); });
  if (intake.device() != plan.device)
    raise(PyExc_ValueError, "{}: the context is of device {}, expected {} as planned", Table::kName,
          to_string(intake.device()), to_string(plan.device));
  if (shares_workspace && plan.shared == nullptr)
    plan.shared = intake.on_cuda() ? std::make_shared<SharedWorkspace>(plan.plan.workspace_bytes(), intake)
                                   : std::make_shared<SharedWorkspace>(plan.plan.workspace_bytes());
  launch<Table>(step, plan.plan, given, intake, shares_workspace ? plan.shared : nullptr);
}

// nb::arg for each field, nb::kw_only where the positional ones end.
template <class Table, std::size_t... I>
auto arguments() {
  constexpr std::size_t kContext = std::tuple_size_v<decltype(Table::kFields)>;
  constexpr std::size_t first_keyword = std::min({(I >= Table::kPositional ? I : kContext)..., kContext});
  const auto one = []<std::size_t i>() {
    auto argument = std::get<i>(Table::kFields).template argument<(i >= Table::kPositional)>();
    if constexpr (i == first_keyword)
      return std::tuple(nb::kw_only(), argument);
    else
      return std::tuple(argument);
  };
  const auto context = [] {
    auto argument = nb::arg("context").none() = nb::none();
    if constexpr (first_keyword == kContext)
      return std::tuple(nb::kw_only(), argument);
    else
      return std::tuple(argument);
  };
  return std::tuple_cat(one.template operator()<I>()..., context());
}

template <class Table, std::size_t... I>
std::string signature(const std::string& name, bool method, const std::string& returns) {
  std::string text = fmt::format("def {}(", name);
  if (method) text += "self, ";
  bool star = false;
  const auto add = [&](bool keyword, const std::string& parameter) {
    if (keyword && !std::exchange(star, star || keyword)) text += "*, ";
    text += parameter;
  };
  (add(I >= Table::kPositional, std::get<I>(Table::kFields).signature(I >= Table::kPositional) + ", "), ...);
  add(true, "context: Context | None = None");
  return text + ") -> " + returns;
}

// Scope is the module or the plan's class; `body` takes the class's object, if so, the fields' values and the
// context.
template <class Table, class Scope, class Body, std::size_t... I>
void define(Scope& scope, const std::string& name, bool method, const std::string& returns,
            const std::string& doc, Body body, std::index_sequence<I...>) {
  const std::string text = signature<Table, I...>(name, method, returns);
  std::apply(
      [&](const auto&... extra) {
        scope.def(name.c_str(), body, extra..., nb::sig(text.c_str()), doc.c_str());
      },
      arguments<Table, I...>());
}

template <class Table, std::size_t... I>
void define_call(nb::module_& module, std::index_sequence<I...> indices) {
  define<Table>(
      module, Table::kName, false, "None", Table::kDoc,
      [](PythonOf<Table, I>... values, const PyContext* context) {
        Intake intake(Table::kOp, context);
        const OperatorPlan<Table> made = make_plan<Table, I...>(intake, values...);
        launch<Table>(kRunStep, made.plan, made.planned, intake);
      },
      indices);
}

template <class Table, std::size_t... I>
void define_plan(nb::module_& module, std::index_sequence<I...> indices) {
  define<Table>(
      module, fmt::format("plan_{}", Table::kName), false, Table::kPlanName,
      fmt::format("Checks a call of {} once; run() then does it for tensors of these shapes.\n\n"
                  "The tensors tell shapes and dtypes; the plan keeps no reference to them.",
                  Table::kName),
      [](PythonOf<Table, I>... values, const PyContext* context) {
        Intake intake(Table::kOp, context);
        OperatorPlan<Table> made = make_plan<Table, I...>(intake, values...);
        each_tensor<Table, I...>([&](const auto& field) { field.forget_pointers(made.planned); });
        return made;
      },
      indices);
}

// A method of the plan that does `step`.
template <class Table, class Step, std::size_t... I>
void define_step(nb::class_<OperatorPlan<Table>>& plan_class, const char* name, const char* doc, Step step,
                 bool shares_workspace, std::index_sequence<I...> indices) {
  define<Table>(
      plan_class, name, true, "None", doc,
      [step, shares_workspace](const OperatorPlan<Table>& self, PythonOf<Table, I>... values,
                               const PyContext* context) {
        run_plan<Table, I...>(step, self, shares_workspace, context, values...);
      },
      indices);
}

template <class Table>
nb::class_<OperatorPlan<Table>> define_operator(nb::module_& module) {
  using PlanClass = OperatorPlan<Table>;
  const std::string doc = fmt::format(
      "A checked call of {}, without tensors. Made by plan_{}.\n\n"
      "Any number of threads may run it at once.",
      Table::kName, Table::kName);
  nb::class_<PlanClass> plan_class(module, Table::kPlanName, doc.c_str());
  plan_class
      .def_prop_ro(
          "op", [](const PlanClass& self) { return to_string(self.plan.op()); }, "Name of the operator.")
      .def_prop_ro(
          "implementation", [](const PlanClass& self) { return self.plan.implementation(); },
          "Name of the implementation that runs, such as \"avx2\".")
      .def_prop_ro(
          "workspace_bytes", [](const PlanClass& self) { return self.plan.workspace_bytes(); },
          "Scratch memory of one run; it is managed here.")
      .def(
          "describe", [](const PlanClass& self) { return self.plan.describe(); },
          "Text for people: implementation, rows, split, workspace. Not for parsing.");
  define_step<Table>(
      plan_class, "run",
      "Does the call. The tensors must have the planned dtypes, shapes and strides, the memory may "
      "differ.",
      kRunStep, false, fields_with<Table, kRun>());
  define_call<Table>(module, fields_with<Table, kCall>());
  define_plan<Table>(module, fields_with<Table, kPlan>());
  return plan_class;
}

}  // namespace kvferry::python
