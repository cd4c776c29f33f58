// SPDX-License-Identifier: Apache-2.0
#include "errors.hpp"

#include <nanobind/nanobind.h>

namespace kvferry::python {
namespace {

PyObject* exception_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
    case StatusCode::kInvalidArgument:
    case StatusCode::kNull:
      return PyExc_ValueError;
    case StatusCode::kIndex:
      return PyExc_IndexError;
    case StatusCode::kUnimplemented:
      return PyExc_NotImplementedError;
    case StatusCode::kUnavailable:
      return PyExc_RuntimeError;
    case StatusCode::kOutOfMemory:
      return PyExc_MemoryError;
  }
  return PyExc_RuntimeError;
}

}  // namespace

void raise(PyObject* type, const std::string& message) {
  // Not PyErr_SetString(): what a caller passed may be in it, a null character too.
  const auto text = nanobind::steal(
      PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
  if (text.is_valid()) PyErr_SetObject(type, text.ptr());
  throw nanobind::python_error();
}

void raise_unless_ok(const Status& status) {
  if (!status.ok()) raise(exception_of(status.code()), status.message());
}

}  // namespace kvferry::python
