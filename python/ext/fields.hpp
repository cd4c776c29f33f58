// SPDX-License-Identifier: Apache-2.0
//
// Fields: one line says of a parameter what Python calls it, where in the library's Args it goes, what Python
// may pass and which functions have it. An operator is a table of them; binding.hpp makes its functions.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "errors.hpp"
#include "kvferry/plan.hpp"
#include "kvferry/tensor.hpp"
#include "tensors.hpp"

namespace kvferry::python {

namespace nb = nanobind;

// The functions that a field may be a parameter of.
enum Use : unsigned { kCall = 1, kPlan = 2, kRun = 4, kSchedule = 8, kCopy = 16 };

// The arguments of one call, and what they refer to. May be moved, not copied: args has spans of `lists`.
template <class Args>
struct Given {
  Args args;
  std::array<std::vector<TensorView>, 2> lists;
  nb::handle record_object;
  ErrorRecord* record = nullptr;

  Given() = default;
  Given(Given&&) noexcept = default;
  Given& operator=(Given&&) noexcept = default;
};

std::size_t read_choice(Operator op, const char* name, std::span<const char* const> choices,
                        nb::handle value);
std::string quoted(std::span<const char* const> choices);  // "Norm", "PA_NZ"
void require_planned(Operator op, TensorName name, const TensorView& seen, const TensorView& planned);

using ViewList = std::span<const TensorView>;

// A parameter that may be None, in the table behind `*`, has None as its default.
template <class Args, class Member>
struct TensorField {
  using Python = nb::handle;
  static constexpr bool kList = std::is_same_v<Member, ViewList>;
  static constexpr bool kOptional = std::is_same_v<Member, std::optional<TensorView>>;

  const char* name;
  Member Args::*member;
  bool (*written)(const Args&);
  unsigned uses = kCall | kPlan | kRun;
  std::size_t list = 0;       // where in Given::lists
  bool list_or_none = false;  // None is an empty list

  void read(Intake& intake, Given<Args>& to, nb::handle value) const {
    const Access access = written(to.args) ? Access::kWrite : Access::kRead;
    if constexpr (kList) {
      to.lists[list].clear();
      if (!value.is_none() || !list_or_none) to.lists[list] = intake.list(name, value, access);
      to.args.*member = to.lists[list];
    } else if constexpr (kOptional) {
      to.args.*member = std::nullopt;
      if (!value.is_none()) to.args.*member = intake.tensor({name}, value, access);
    } else {
      to.args.*member = intake.tensor({name}, value, access);
    }
  }

  // The library's run() takes pointers alone.
  void require_planned(Operator op, const Args& seen, const Args& planned) const {
    const ViewList views = list_of(seen.*member), plans = list_of(planned.*member);
    if (views.size() != plans.size())
      raise(PyExc_ValueError, "{}: {}: {} given, expected {} as planned", to_string(op), name,
            kList           ? std::to_string(views.size()) + " tensors are"
            : views.empty() ? "None is"
                            : "a tensor is",
            kList           ? std::to_string(plans.size())
            : plans.empty() ? "None"
                            : "a tensor");
    for (std::size_t i = 0; i < views.size(); ++i)
      kvferry::python::require_planned(op, {name, kList ? static_cast<Py_ssize_t>(i) : -1}, views[i],
                                       plans[i]);
  }

  void forget_pointers(Given<Args>& in) const {
    if constexpr (kList) {
      for (TensorView& view : in.lists[list]) view.data = nullptr;
    } else if constexpr (kOptional) {
      if (in.args.*member) (in.args.*member)->data = nullptr;
    } else {
      (in.args.*member).data = nullptr;
    }
  }

  template <bool keyword>
  auto argument() const {
    if constexpr (keyword && kOptional)
      return nb::arg(name).none() = nb::none();
    else
      return nb::arg(name).none();
  }
  std::string signature(bool keyword) const {
    const std::string type =
        kList ? "collections.abc.Sequence[kvferry._types.Tensor]" : "kvferry._types.Tensor";
    return fmt::format("{}: {}{}{}", name, type, kOptional || list_or_none ? " | None" : "",
                       keyword && kOptional ? " = None" : "");
  }

 private:
  static ViewList list_of(const TensorView& view) { return {&view, 1}; }
  static ViewList list_of(ViewList views) { return views; }
  static ViewList list_of(const std::optional<TensorView>& view) {
    return view ? list_of(*view) : ViewList();
  }
};

// A string for an enumeration whose values count from 0.
template <class Args, class Enum>
struct ChoiceField {
  using Python = nb::handle;

  const char* name;
  Enum Args::*member;
  std::span<const char* const> choices;  // the first is the default
  unsigned uses = kCall | kPlan;

  void read(Intake& intake, Given<Args>& to, nb::handle value) const {
    to.args.*member = static_cast<Enum>(read_choice(intake.op(), name, choices, value));
  }
  template <bool keyword>
  auto argument() const {
    return nb::arg(name) = choices.front();
  }
  std::string signature(bool) const {
    return fmt::format("{}: typing.Literal[{}] = \"{}\"", name, quoted(choices), choices.front());
  }
};

// A number, a flag, a pair.
template <class Args, class Member>
struct ValueField {
  using Python = Member;

  const char* name;
  Member Args::*member;
  Member fallback;
  const char* type_and_fallback;  // of the signature
  unsigned uses = kCall | kPlan;

  void read(Intake&, Given<Args>& to, const Member& value) const { to.args.*member = value; }
  template <bool keyword>
  auto argument() const {
    if constexpr (std::is_same_v<Member, std::optional<std::int64_t>>)
      return nb::arg(name).none() = nb::none();
    else
      return nb::arg(name) = fallback;
  }
  std::string signature(bool) const { return fmt::format("{}: {}", name, type_and_fallback); }
};

// Looked at behind the tensors, which say where the call runs.
template <class Args>
struct RecordField {
  using Python = nb::handle;

  const char* name = "error_record";
  unsigned uses = kCall | kRun | kSchedule;

  void read(Intake&, Given<Args>& to, nb::handle value) const { to.record_object = value; }
  template <bool keyword>
  auto argument() const {
    return nb::arg(name).none() = nb::none();
  }
  std::string signature(bool) const {
    return fmt::format("{}: ErrorRecord | kvferry._types.Tensor | None = None", name);
  }
};

template <class>
inline constexpr bool kIsTensor = false;
template <class Args, class Member>
inline constexpr bool kIsTensor<TensorField<Args, Member>> = true;

// What tables are written with.
template <class Args>
constexpr bool never(const Args&) {
  return false;
}
template <class Args>
constexpr bool always(const Args&) {
  return true;
}
inline constexpr unsigned kEverywhere = kCall | kPlan | kRun;
template <class Args, class Member>
constexpr auto tensor(const char* name, Member Args::*member, bool (*written)(const Args&),
                      unsigned uses = kEverywhere) {
  return TensorField<Args, Member>{name, member, written, uses};
}
template <class Args, class Member>
constexpr auto in(const char* name, Member Args::*member, unsigned uses = kEverywhere) {
  return tensor(name, member, never<Args>, uses);
}
template <class Args, class Member>
constexpr auto out(const char* name, Member Args::*member, unsigned uses = kEverywhere) {
  return tensor(name, member, always<Args>, uses);
}
template <class Args>
constexpr auto list(const char* name, ViewList Args::*member, std::size_t place, bool (*written)(const Args&),
                    bool list_or_none = false) {
  return TensorField<Args, ViewList>{name, member, written, kEverywhere, place, list_or_none};
}
template <class Args, class Enum>
constexpr auto choice(const char* name, Enum Args::*member, std::span<const char* const> choices) {
  return ChoiceField<Args, Enum>{name, member, choices};
}
template <class Args, class Member>
constexpr auto value(const char* name, Member Args::*member, Member fallback, const char* type_and_fallback) {
  return ValueField<Args, Member>{name, member, fallback, type_and_fallback};
}

inline constexpr const char* kCacheModes[] = {"Norm", "PA_NZ"};
inline constexpr const char* kIndexPolicies[] = {"default", "report", "reject"};
template <class Args>
constexpr auto index_policy() {
  return choice("index_policy", &Args::index_policy, kIndexPolicies);
}

}  // namespace kvferry::python
