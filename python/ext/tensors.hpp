// SPDX-License-Identifier: Apache-2.0
//
// Intake: Python tensors to views of their memory. Nothing is copied. Fastest first: types with DLPack's
// exchange API (torch), NumPy arrays, anything with __dlpack__.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "contexts.hpp"
#include "kvferry/plan.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry::python {

namespace nb = nanobind;

enum class Access { kRead, kWrite };

// How messages call a tensor: "key", or with an index "caches[3]".
struct TensorName {
  const char* name;
  Py_ssize_t index = -1;

  std::string text() const { return index < 0 ? name : fmt::format("{}[{}]", name, index); }
};

// The tensors of one call. Views are valid while the caller holds the tensors and this object lives.
class Intake {
 public:
  // With the caller's context, if any. One with a stream runs the work after the caller has gone on: the
  // tensors are held too.
  Intake(Operator op, const PyContext* context) : op_(op), context_(context) {}

  TensorView tensor(TensorName name, nb::handle object, Access access);
  // Of a sequence.
  std::vector<TensorView> list(const char* name, nb::handle objects, Access access);

  Operator op() const { return op_; }
  // The caller's, or the default one for the tensors' device.
  const PyContext& context() const { return context_or_default(context_, device_); }
  // Raises what plan() said, with the tensor that asked for a device, if the caller's context did not.
  void raise_unless_ok(const Status& status) const;

  // What the work needs and the caller may drop.
  void hold(nb::handle object) {
    if (context_ != nullptr && context_->stream != nullptr) owners_.push_back(nb::borrow(object));
  }
  std::vector<nb::object> take_owners() { return std::move(owners_); }

 private:
  TensorView view(TensorName name, nb::handle object, Access access);
  void keep(nb::object object) { owners_.push_back(std::move(object)); }

  Operator op_;
  const PyContext* context_;
  // Of the first tensor that is not on the CPU: the library wants all on one.
  Device device_;
  TensorName device_tensor_{};
  std::vector<nb::object> owners_;
};

}  // namespace kvferry::python
