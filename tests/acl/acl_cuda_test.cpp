// SPDX-License-Identifier: Apache-2.0
//
// The backend of KVFERRY_ACL_CUDA.
#include <array>
#include <cstring>

#include "acl_testing.hpp"
#include "aclnnop/aclnn_gather_pa_kv_cache.h"

namespace kvferry::acl {
namespace {

std::uint32_t device_count() {
  std::uint32_t count = 0;
  EXPECT_EQ(aclrtGetDeviceCount(&count), ACL_SUCCESS) << last_error();
  return count;
}

TEST(AclCuda, DevicesAreThoseThatThereAre) {
  const std::uint32_t count = device_count();
  for (const std::int32_t bad : {-1, static_cast<std::int32_t>(count)}) {
    EXPECT_EQ(aclrtSetDevice(bad), 107001);
    EXPECT_NE(last_error().find(count == 0 ? "this machine has none" : "expected 0 to"), std::string::npos)
        << last_error();
  }
}

// What CUDA says where there is no device, or no such memory.
TEST(AclCuda, FailuresSayWhy) {
  void* memory = nullptr;
  EXPECT_NE(aclrtMalloc(&memory, std::size_t{1} << 60, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
  EXPECT_EQ(memory, nullptr);
  EXPECT_NE(last_error().find("aclrtMalloc"), std::string::npos) << last_error();
  std::array<char, 8> host{};
  aclrtStream stream = to_handle(0x10);
  EXPECT_EQ(aclrtMemcpyAsync(host.data(), 8, host.data(), 8, ACL_MEMCPY_DEFAULT, stream), 107017);
}

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "needs a CUDA device";
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS) << last_error();
  }
};

template <class T>
class DeviceTensor {
 public:
  DeviceTensor(aclDataType dtype, std::vector<std::int64_t> dims, std::vector<T> values)
      : host(std::move(values)) {
    EXPECT_EQ(aclrtMalloc(&data_, bytes(), ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS) << last_error();
    EXPECT_EQ(aclrtMemcpy(data_, bytes(), host.data(), bytes(), ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
    tensor = aclCreateTensor(dims.data(), dims.size(), dtype, nullptr, 0, ACL_FORMAT_ND, dims.data(),
                             dims.size(), data_);
  }
  ~DeviceTensor() {
    aclDestroyTensor(tensor);
    EXPECT_EQ(aclrtFree(data_), ACL_SUCCESS);
  }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  const std::vector<T>& read() {
    EXPECT_EQ(aclrtMemcpy(host.data(), bytes(), data_, bytes(), ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    return host;
  }

  std::vector<T> host;
  aclTensor* tensor = nullptr;

 private:
  std::size_t bytes() const { return host.size() * sizeof(T); }
  void* data_ = nullptr;
};

TEST_F(OnDevice, GathersOnAStream) {
  using Values = std::vector<std::uint16_t>;
  DeviceTensor<std::uint16_t> cache(ACL_FLOAT16, {3, 2, 1, 1}, Values{0, 1, 2, 3, 4, 5});
  DeviceTensor<std::int32_t> tables(ACL_INT32, {1, 2}, {2, 0}), lens(ACL_INT32, {1}, {3});
  DeviceTensor<std::uint16_t> key(ACL_FLOAT16, {3, 1, 1}, Values(3, 99)),
      value(ACL_FLOAT16, {3, 1, 1}, Values(3, 99));
  std::uint64_t bytes = 0;
  aclOpExecutor* executor = nullptr;
  ASSERT_EQ(
      aclnnGatherPaKvCacheGetWorkspaceSize(cache.tensor, cache.tensor, tables.tensor, lens.tensor, key.tensor,
                                           value.tensor, nullptr, nullptr, false, &bytes, &executor),
      ACLNN_SUCCESS)
      << last_error();
  void* workspace = nullptr;
  ASSERT_EQ(aclrtMalloc(&workspace, bytes + 1, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  const OwnStream stream;
  EXPECT_EQ(aclnnGatherPaKvCache(workspace, bytes, executor, stream.handle), ACLNN_SUCCESS) << last_error();
  EXPECT_EQ(aclrtSynchronizeStream(stream.handle), ACL_SUCCESS) << last_error();
  EXPECT_EQ(key.read(), (Values{4, 5, 0}));
  EXPECT_EQ(value.read(), (Values{4, 5, 0}));
  EXPECT_EQ(aclrtFree(workspace), ACL_SUCCESS);
}

TEST_F(OnDevice, EventsOrderStreams) {
  const OwnStream first, second;
  void *pinned = nullptr, *memory = nullptr;
  ASSERT_EQ(aclrtMallocHost(&pinned, 32), ACL_SUCCESS);
  ASSERT_EQ(aclrtMalloc(&memory, 32, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  aclrtEvent begin = nullptr, end = nullptr;
  ASSERT_EQ(aclrtCreateEvent(&begin), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateEvent(&end), ACL_SUCCESS);
  float ms = -1;
  EXPECT_EQ(aclrtEventElapsedTime(&ms, begin, end), 107000) << "never recorded";
  EXPECT_EQ(aclrtRecordEvent(begin, first.handle), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemsetAsync(memory, 32, 7, 32, first.handle), ACL_SUCCESS);
  EXPECT_EQ(aclrtRecordEvent(end, first.handle), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamWaitEvent(second.handle, end), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpyAsync(pinned, 32, memory, 32, ACL_MEMCPY_DEVICE_TO_HOST, second.handle), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS) << last_error();
  EXPECT_EQ(aclrtEventElapsedTime(&ms, begin, end), ACL_SUCCESS);
  EXPECT_GE(ms, 0);
  const std::array<char, 32> expected = [] {
    std::array<char, 32> all{};
    all.fill(7);
    return all;
  }();
  EXPECT_EQ(std::memcmp(pinned, expected.data(), 32), 0);
  EXPECT_EQ(aclrtDestroyEvent(begin), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyEvent(end), ACL_SUCCESS);
  EXPECT_EQ(aclrtFree(memory), ACL_SUCCESS);
  EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
}

TEST_F(OnDevice, PageableMemoryIsRefused) {
  OwnTensor<std::uint16_t> cache(ACL_FLOAT16, {3, 2, 1, 1}, std::uint16_t{0});
  OwnTensor<std::int32_t> tables(ACL_INT32, {1, 2}, 0), lens(ACL_INT32, {1}, 3);
  OwnTensor<std::uint16_t> key(ACL_FLOAT16, {3, 1, 1}, std::uint16_t{0}),
      value(ACL_FLOAT16, {3, 1, 1}, std::uint16_t{0});
  std::uint64_t bytes = 0;
  aclOpExecutor* executor = nullptr;
  EXPECT_EQ(
      aclnnGatherPaKvCacheGetWorkspaceSize(cache.tensor, cache.tensor, tables.tensor, lens.tensor, key.tensor,
                                           value.tensor, nullptr, nullptr, false, &bytes, &executor),
      ACLNN_ERR_PARAM_INVALID);
  EXPECT_NE(last_error().find("key_cache: lives on device cpu:0"), std::string::npos) << last_error();
}

}  // namespace
}  // namespace kvferry::acl
