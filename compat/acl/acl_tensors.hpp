// SPDX-License-Identifier: Apache-2.0
//
// What stands behind ACL's tensors, arrays and lists.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "aclnn/acl_meta.h"

struct aclTensor {
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;
  std::vector<std::int64_t> storage_dims;
  std::int64_t offset = 0;
  aclDataType dtype = ACL_DT_UNDEFINED;
  aclFormat format = ACL_FORMAT_UNDEFINED;
  void* data = nullptr;
};

struct aclScalar {
  std::array<std::byte, 16> value{};
  aclDataType dtype = ACL_DT_UNDEFINED;
};

struct aclIntArray {
  std::vector<std::int64_t> values;
};
struct aclFloatArray {
  std::vector<float> values;
};
struct aclBoolArray {
  std::vector<bool> values;
};

// They own their members.
struct aclTensorList {
  std::vector<std::unique_ptr<const aclTensor>> members;
};
struct aclScalarList {
  std::vector<std::unique_ptr<const aclScalar>> members;
};
