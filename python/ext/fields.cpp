// SPDX-License-Identifier: Apache-2.0
#include "fields.hpp"

#include <fmt/ranges.h>

namespace kvferry::python {

std::string quoted(std::span<const char* const> choices) {
  return fmt::format("\"{}\"", fmt::join(choices, "\", \""));
}

std::size_t read_choice(Operator op, const char* name, std::span<const char* const> choices,
                        nb::handle value) {
  if (!PyUnicode_Check(value.ptr()))
    raise(PyExc_TypeError, "{}: {}: {}, expected one of {}", to_string(op), name,
          nb::inst_name(value).c_str(), quoted(choices));
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (PyUnicode_CompareWithASCIIString(value.ptr(), choices[i]) == 0) return i;
  }
  raise(PyExc_ValueError, "{}: {} is {}, expected one of {}", to_string(op), name, nb::repr(value).c_str(),
        quoted(choices));
}

void require_planned(Operator op, TensorName name, const TensorView& seen, const TensorView& planned) {
  bool same = seen.dtype == planned.dtype && seen.rank == planned.rank && seen.shape == planned.shape;
  for (int axis = 0; same && axis < seen.rank; ++axis)
    same = seen.dim(axis) == 1 || seen.stride(axis) == planned.stride(axis);
  if (!same)
    raise(PyExc_ValueError, "{}: {}: is {}, expected {} as planned", to_string(op), name.text(),
          to_string(seen), to_string(planned));
  if (seen.device != planned.device)
    raise(PyExc_ValueError, "{}: {}: is on device type {} ({}), expected type {} ({}) as planned",
          to_string(op), name.text(), static_cast<int>(seen.device.type), seen.device.index,
          static_cast<int>(planned.device.type), planned.device.index);
}

}  // namespace kvferry::python
