// SPDX-License-Identifier: Apache-2.0
//
// Intake: Python tensors to views of their memory. Nothing is copied. Fastest first: types with DLPack's
// exchange API (torch), NumPy arrays, anything with __dlpack__.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "kvferry/plan.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry::python {

namespace nb = nanobind;

enum class Access { kRead, kWrite };

// How messages call a tensor: "key", or with an index "caches[3]".
struct TensorName {
  const char* name;
  Py_ssize_t index = -1;
};

// The tensors of one call. Views are valid while the caller holds the tensors and this object lives.
class Intake {
 public:
  // `keep_tensors`: hold the tensors too, for work that runs after the caller has gone on.
  Intake(Operator op, bool keep_tensors) : op_(op), keep_tensors_(keep_tensors) {}

  TensorView tensor(TensorName name, nb::handle object, Access access);
  // Of a sequence.
  std::vector<TensorView> list(const char* name, nb::handle objects, Access access);

  Operator op() const { return op_; }
  // Keeps what this call's work needs but its caller may drop.
  void hold(nb::handle object) {
    if (keep_tensors_) owners_.push_back(nb::borrow(object));
  }
  std::vector<nb::object> take_owners() { return std::move(owners_); }

 private:
  void keep(nb::object object) { owners_.push_back(std::move(object)); }

  Operator op_;
  bool keep_tensors_;
  std::vector<nb::object> owners_;
};

}  // namespace kvferry::python
