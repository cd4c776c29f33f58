// SPDX-License-Identifier: Apache-2.0
//
// Errors of the library, and of the front end itself, as Python exceptions.
#pragma once

#include <Python.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "kvferry/status.hpp"

namespace kvferry::python {

[[noreturn]] void raise(PyObject* type, const std::string& message);

template <class... Values>
[[noreturn]] void raise(PyObject* type, fmt::format_string<Values...> text, Values&&... values) {
  raise(type, fmt::format(text, std::forward<Values>(values)...));
}

void raise_unless_ok(const Status& status);

}  // namespace kvferry::python
