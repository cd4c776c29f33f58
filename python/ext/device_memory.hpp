// SPDX-License-Identifier: Apache-2.0
//
// DeviceMemory: what the functional forms write for a framework whose arrays cannot be written, and hand over
// to it by DLPack.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contexts.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry::python {

namespace nb = nanobind;

// A dense tensor in memory of a context's CUDA device. Errors name `op` and `name`.
//
// It is written on the context's stream. Whoever takes it gets it when that work is done, unless he says that
// he goes on on this stream.
class DeviceMemory {
 public:
  static DeviceMemory zeros(std::string op, std::string name, const PyContext& context,
                            const std::vector<std::int64_t>& shape, const std::string& dtype);
  // `tensor` must stay until somebody has waited.
  static DeviceMemory copy(std::string op, std::string name, const PyContext& context, nb::handle tensor);

  // As DLPack's specification for Python has them.
  nb::object dlpack(nb::handle stream, nb::handle max_version, nb::handle dl_device, nb::handle copy) const;
  nb::tuple dlpack_device() const;

 private:
  DeviceMemory(std::string op, std::string name, const PyContext& context, TensorView view, const void* from);
  void wait() const;

  std::string op_, name_;
  kvferry::Context context_;
  TensorView view_;
  std::shared_ptr<void> memory_;
};

void define_device_memory(nb::module_& module);

}  // namespace kvferry::python
