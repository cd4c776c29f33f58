// SPDX-License-Identifier: Apache-2.0
//
// What the samples of the ACL front end share: a tensor with memory of its own, and a check that ends.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "acl/acl.h"
#include "aclnn/aclnn_base.h"

inline void require(int code, const char* what) {
  if (code == 0) return;
  const char* text = aclGetRecentErrMsg();
  std::fprintf(stderr, "%s: %d %s\n", what, code, text == nullptr ? "" : text);
  std::exit(1);
}

inline void require_true(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

template <class T>
struct Tensor {
  std::vector<T> data;
  aclTensor* handle = nullptr;

  Tensor(std::vector<int64_t> dims, aclDataType dtype, std::vector<T> values,
         aclFormat format = ACL_FORMAT_ND)
      : data(std::move(values)) {
    handle = aclCreateTensor(dims.data(), dims.size(), dtype, nullptr, 0, format, dims.data(), dims.size(),
                             data.data());
    require(handle == nullptr, "aclCreateTensor");
  }
  ~Tensor() { aclDestroyTensor(handle); }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
};
