// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the ACL front end share.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "aclnn/acl_kvferry.h"
#include "compat/acl/acl_device.hpp"

namespace kvferry::acl {

inline std::string last_error() {
  const char* text = aclGetRecentErrMsg();
  return text == nullptr ? std::string() : text;
}

// A dense tensor with memory of its own.
template <class T>
class OwnTensor {
 public:
  OwnTensor(aclDataType dtype, std::vector<std::int64_t> dims, T fill)
      : dtype_(dtype), dims_(std::move(dims)) {
    std::size_t count = 1;
    for (const std::int64_t n : dims_) count *= static_cast<std::size_t>(n);
    data.assign(count, fill);
    make();
  }
  OwnTensor(aclDataType dtype, std::vector<std::int64_t> dims, std::vector<T> values)
      : data(std::move(values)), dtype_(dtype), dims_(std::move(dims)) {
    make();
  }
  ~OwnTensor() { aclDestroyTensor(tensor); }
  OwnTensor(const OwnTensor&) = delete;
  OwnTensor& operator=(const OwnTensor&) = delete;

  std::vector<T> data;
  aclTensor* tensor = nullptr;

 private:
  void make() {
    tensor = aclCreateTensor(dims_.data(), dims_.size(), dtype_, nullptr, 0, ACL_FORMAT_ND, dims_.data(),
                             dims_.size(), data.data());
  }

  aclDataType dtype_;
  std::vector<std::int64_t> dims_;
};

class OwnStream {
 public:
  OwnStream() { EXPECT_EQ(aclrtCreateStream(&handle), ACL_SUCCESS); }
  ~OwnStream() { EXPECT_EQ(aclrtDestroyStream(handle), ACL_SUCCESS); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  aclrtStream handle = nullptr;
};

// Holds a stream up until it is opened, or dies.
class Gate {
 public:
  explicit Gate(aclrtStream stream) : state_(std::make_shared<State>()) {
    EXPECT_TRUE(device().find_stream(stream)->push(std::make_unique<Blocked>(state_)).ok());
  }
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() {
    const std::lock_guard lock(state_->mutex);
    state_->open = true;
    state_->changed.notify_all();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
  };
  class Blocked final : public Task {
   public:
    explicit Blocked(std::shared_ptr<State> state) : state_(std::move(state)) {}
    Status run(const Context&) noexcept override {
      std::unique_lock lock(state_->mutex);
      state_->changed.wait(lock, [this] { return state_->open; });
      return {};
    }

   private:
    std::shared_ptr<State> state_;
  };

  std::shared_ptr<State> state_;
};

// A setting for one test.
struct Rejecting {
  Rejecting() { EXPECT_EQ(aclKvferrySetIndexPolicy("reject"), ACLNN_SUCCESS); }
  ~Rejecting() { EXPECT_EQ(aclKvferrySetIndexPolicy("default"), ACLNN_SUCCESS); }
  Rejecting(const Rejecting&) = delete;
  Rejecting& operator=(const Rejecting&) = delete;
};

}  // namespace kvferry::acl
