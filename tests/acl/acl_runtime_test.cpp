// SPDX-License-Identifier: Apache-2.0
//
// Devices, contexts, streams, events and memory.
#include <chrono>
#include <cstring>
#include <thread>

#include "acl_testing.hpp"

namespace kvferry::acl {
namespace {

using std::chrono::milliseconds;

bool says(const char* part) {
  return last_error().find(part) != std::string::npos;
}

TEST(AclRuntime, InitAndFinalize) {
  EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclInit(nullptr), 100002);
  EXPECT_TRUE(says("aclInit"));
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
  EXPECT_EQ(aclFinalize(), 100037);
  EXPECT_EQ(aclInit("no such file"), ACL_SUCCESS);  // not read
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
}

TEST(AclRuntime, Devices) {
  std::uint32_t count = 0;
  EXPECT_EQ(aclrtGetDeviceCount(&count), ACL_SUCCESS);
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(aclrtGetDeviceCount(nullptr), 107000);
  for (const std::int32_t bad : {-1, 1}) {
    EXPECT_EQ(aclrtSetDevice(bad), 107001);
    EXPECT_EQ(aclrtResetDevice(bad), 107001);
    aclrtContext context = nullptr;
    EXPECT_EQ(aclrtCreateContext(&context, bad), 107001);
  }
  EXPECT_TRUE(says("device 1"));
  std::thread([] {
    EXPECT_EQ(aclGetRecentErrMsg(), nullptr) << "another thread's error";
    std::int32_t device = -1;
    EXPECT_EQ(aclrtGetDevice(&device), 107002);
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtGetDevice(&device), ACL_SUCCESS);
    EXPECT_EQ(device, 0);
    EXPECT_EQ(aclrtGetDevice(nullptr), 107000);
  }).join();
  EXPECT_STREQ(aclrtGetSocName(), "Ascend950");
  EXPECT_EQ(aclKvferrySetProfile("a2"), ACLNN_SUCCESS);
  EXPECT_STREQ(aclrtGetSocName(), "Ascend910B");
  EXPECT_EQ(aclKvferrySetProfile("910"), 161002);
  EXPECT_TRUE(says("'910', expected one of '950' 'a2'"));
  EXPECT_EQ(aclKvferrySetProfile("950"), ACLNN_SUCCESS);
}

TEST(AclRuntime, Contexts) {
  std::thread([] {
    aclrtContext none = nullptr;
    EXPECT_EQ(aclrtGetCurrentContext(&none), 107002);
    aclrtContext first = nullptr, second = nullptr, seen = nullptr;
    EXPECT_EQ(aclrtCreateContext(&first, 0), ACL_SUCCESS);
    EXPECT_EQ(aclrtCreateContext(&second, 0), ACL_SUCCESS);
    EXPECT_EQ(aclrtGetCurrentContext(&seen), ACL_SUCCESS);
    EXPECT_EQ(seen, second);
    EXPECT_EQ(aclrtSetCurrentContext(first), ACL_SUCCESS);
    EXPECT_EQ(aclrtGetCurrentContext(&seen), ACL_SUCCESS);
    EXPECT_EQ(seen, first);
    EXPECT_EQ(aclrtDestroyContext(first), ACL_SUCCESS);
    EXPECT_EQ(aclrtGetCurrentContext(&seen), 107002);
    EXPECT_EQ(aclrtSetCurrentContext(first), 107017);
    EXPECT_EQ(aclrtDestroyContext(first), 107017);
    EXPECT_EQ(aclrtDestroyContext(second), ACL_SUCCESS);
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtGetCurrentContext(&seen), ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyContext(seen), 107017) << "the device's own";
    EXPECT_EQ(aclrtDestroyContext(nullptr), 107000);
  }).join();
}

TEST(AclRuntime, Memory) {
  for (const auto allocate : {aclrtMalloc, aclrtMallocAlign32}) {
    void* memory = nullptr;
    EXPECT_EQ(allocate(&memory, 33, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 64, 0U);
    std::memset(memory, 1, 64);  // rounded up: an address sanitizer would speak
    EXPECT_EQ(aclrtFree(memory), ACL_SUCCESS);
    EXPECT_EQ(allocate(&memory, 0, ACL_MEM_MALLOC_HUGE_FIRST), 107000);
    EXPECT_EQ(allocate(nullptr, 8, ACL_MEM_MALLOC_HUGE_FIRST), 107000);
    EXPECT_EQ(allocate(&memory, 8, static_cast<aclrtMemMallocPolicy>(6)), 107000);
    EXPECT_EQ(allocate(&memory, SIZE_MAX, ACL_MEM_MALLOC_HUGE_FIRST), 207001);
    EXPECT_EQ(memory, nullptr);
  }
  void* host = nullptr;
  EXPECT_EQ(aclrtMallocHost(&host, 8), ACL_SUCCESS);
  EXPECT_EQ(aclrtFreeHost(host), ACL_SUCCESS);
  EXPECT_EQ(aclrtMallocHost(&host, 0), 107000);
  EXPECT_EQ(aclrtFree(nullptr), 107000);
  EXPECT_EQ(aclrtFreeHost(nullptr), 107000);
}

TEST(AclRuntime, CopiesAndFills) {
  char from[8] = "abcdefg", to[8] = {};
  for (int kind = 0; kind <= 4; ++kind) {
    std::memset(to, 0, sizeof to);
    EXPECT_EQ(aclrtMemcpy(to, 8, from, 4, static_cast<aclrtMemcpyKind>(kind)), ACL_SUCCESS);
    EXPECT_STREQ(to, "abcd");
  }
  EXPECT_EQ(aclrtMemcpy(to, 3, from, 4, ACL_MEMCPY_DEFAULT), 107000);
  EXPECT_TRUE(says("4 bytes, but the destination has room for 3"));
  EXPECT_EQ(aclrtMemcpy(nullptr, 8, from, 4, ACL_MEMCPY_DEFAULT), 107000);
  EXPECT_EQ(aclrtMemcpy(to, 8, nullptr, 4, ACL_MEMCPY_DEFAULT), 107000);
  EXPECT_EQ(aclrtMemcpy(to, 8, from, 4, static_cast<aclrtMemcpyKind>(5)), 107000);
  EXPECT_STREQ(to, "abcd");
  EXPECT_EQ(aclrtMemset(to, 8, 'x', 2), ACL_SUCCESS);
  EXPECT_STREQ(to, "xxcd");
  EXPECT_EQ(aclrtMemset(to, 1, 'y', 2), 107000);
  EXPECT_EQ(aclrtMemset(nullptr, 1, 'y', 1), 107000);

  const OwnStream stream;
  {
    const Gate gate(stream.handle);
    EXPECT_EQ(aclrtMemcpyAsync(to, 8, from, 8, ACL_MEMCPY_HOST_TO_DEVICE, stream.handle), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemsetAsync(to, 8, 'z', 1, stream.handle), ACL_SUCCESS);
    EXPECT_STREQ(to, "xxcd") << "before the stream got there";
  }
  EXPECT_EQ(aclrtMemcpyAsync(to, 3, from, 4, ACL_MEMCPY_DEFAULT, stream.handle), 107000);
  EXPECT_EQ(aclrtMemsetAsync(to, 1, 'y', 2, stream.handle), 107000);
  EXPECT_EQ(aclrtSynchronizeStream(stream.handle), ACL_SUCCESS);
  EXPECT_STREQ(to, "zbcdefg");
}

TEST(AclRuntime, HandlesOfWhatIsGoneOrSomethingElse) {
  aclrtStream stream = nullptr;
  aclrtEvent event = nullptr;
  EXPECT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
  EXPECT_EQ(aclrtRecordEvent(stream, stream), 107017);
  EXPECT_EQ(aclrtRecordEvent(event, event), 107017);
  EXPECT_EQ(aclrtSynchronizeStream(event), 107017);
  EXPECT_EQ(aclrtDestroyStream(event), 107017);
  EXPECT_EQ(aclrtDestroyStream(nullptr), 107017);
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyStream(stream), 107017);
  EXPECT_TRUE(says("aclrtDestroyStream: stream"));
  EXPECT_EQ(aclrtRecordEvent(event, stream), 107017);
  char byte = 0;
  EXPECT_EQ(aclrtMemsetAsync(&byte, 1, 1, 1, stream), 107017);
  EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeEvent(event), 107017);
  EXPECT_EQ(aclrtCreateStream(nullptr), 107000);
  EXPECT_EQ(aclrtCreateEvent(nullptr), 107000);
}

TEST(AclRuntime, StreamsKeepOrderAndRunBesideEachOther) {
  const OwnStream blocked, other;
  std::vector<char> a(1000), b(1000);
  Gate gate(blocked.handle);
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (const char value : {'1', '2'})
      ASSERT_EQ(aclrtMemsetAsync(&a[i], 1, value, 1, blocked.handle), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemcpyAsync(&b[i], 1, &a[i], 1, ACL_MEMCPY_DEFAULT, blocked.handle), ACL_SUCCESS);
  }
  char byte = 0;
  EXPECT_EQ(aclrtMemsetAsync(&byte, 1, 7, 1, other.handle), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(other.handle), ACL_SUCCESS);
  EXPECT_EQ(byte, 7);
  EXPECT_EQ(a, std::vector<char>(1000));
  gate.open();
  EXPECT_EQ(aclrtSynchronizeStream(blocked.handle), ACL_SUCCESS);
  EXPECT_EQ(b, std::vector<char>(1000, '2'));
}

TEST(AclRuntime, EventsOrderStreams) {
  const OwnStream first, second;
  aclrtEvent event = nullptr;
  ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamWaitEvent(second.handle, event), ACL_SUCCESS);  // never recorded
  EXPECT_EQ(aclrtSynchronizeEvent(event), ACL_SUCCESS);
  char source = 0, copy = 0;
  Gate gate(first.handle);
  EXPECT_EQ(aclrtMemsetAsync(&source, 1, 5, 1, first.handle), ACL_SUCCESS);
  EXPECT_EQ(aclrtRecordEvent(event, first.handle), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamWaitEvent(second.handle, event), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpyAsync(&copy, 1, &source, 1, ACL_MEMCPY_DEFAULT, second.handle), ACL_SUCCESS);
  // A later record, and the end of the event, change nothing for who waits already.
  EXPECT_EQ(aclrtRecordEvent(event, nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeEvent(event), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(copy, 0);
  gate.open();
  EXPECT_EQ(aclrtSynchronizeStream(second.handle), ACL_SUCCESS);
  EXPECT_EQ(copy, 5);
}

TEST(AclRuntime, ElapsedTime) {
  const OwnStream stream;
  aclrtEvent begin = nullptr, end = nullptr;
  ASSERT_EQ(aclrtCreateEvent(&begin), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateEvent(&end), ACL_SUCCESS);
  float ms = -1;
  EXPECT_EQ(aclrtEventElapsedTime(&ms, begin, end), 107000);
  EXPECT_EQ(aclrtRecordEvent(begin, stream.handle), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeEvent(begin), ACL_SUCCESS);
  {
    const Gate gate(stream.handle);
    EXPECT_EQ(aclrtRecordEvent(end, stream.handle), ACL_SUCCESS);
    EXPECT_EQ(aclrtEventElapsedTime(&ms, begin, end), 107000) << "the end has not happened";
    std::this_thread::sleep_for(milliseconds(30));
  }
  EXPECT_EQ(aclrtSynchronizeEvent(end), ACL_SUCCESS);
  EXPECT_EQ(aclrtEventElapsedTime(&ms, begin, end), ACL_SUCCESS);
  EXPECT_GE(ms, 30);
  EXPECT_EQ(aclrtEventElapsedTime(nullptr, begin, end), 107000);
  EXPECT_EQ(aclrtDestroyEvent(begin), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyEvent(end), ACL_SUCCESS);
}

TEST(AclRuntime, SynchronizeDeviceWaitsForEveryStream) {
  const OwnStream stream;
  char byte = 0, of_default = 0;
  Gate gate(stream.handle), default_gate(nullptr);
  EXPECT_EQ(aclrtMemsetAsync(&byte, 1, 1, 1, stream.handle), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemsetAsync(&of_default, 1, 1, 1, nullptr), ACL_SUCCESS);
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(10));
    gate.open();
    std::this_thread::sleep_for(milliseconds(10));
    default_gate.open();
  });
  EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
  EXPECT_EQ(byte, 1);
  EXPECT_EQ(of_default, 1);
  opener.join();
}

TEST(AclRuntime, DestroyingWaitsWhileAnotherThreadSynchronizesTheDevice) {
  for (const bool reset : {false, true}) {
    aclrtStream stream = nullptr;
    ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
    char byte = 0, of_default = 0;
    Gate gate(stream), default_gate(nullptr);
    ASSERT_EQ(aclrtMemsetAsync(&byte, 1, 1, 1, stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemsetAsync(&of_default, 1, 1, 1, nullptr), ACL_SUCCESS);
    const auto held = device().all_streams();  // as aclrtSynchronizeDevice does while it waits
    std::thread opener([&] {
      std::this_thread::sleep_for(milliseconds(20));
      gate.open();
      default_gate.open();
    });
    EXPECT_EQ(reset ? aclrtResetDevice(0) : aclrtDestroyStream(stream), ACL_SUCCESS);
    EXPECT_EQ(byte, 1) << "reset " << reset;
    EXPECT_TRUE(!reset || of_default == 1);
    opener.join();
    EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
    for (const auto& one : held) EXPECT_TRUE(one->wait().ok());
  }
}

TEST(AclRuntime, ResetDeviceFinishesAndReleasesStreams) {
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  std::vector<char> bytes(100000);
  for (char& byte : bytes) ASSERT_EQ(aclrtMemsetAsync(&byte, 1, 3, 1, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
  EXPECT_EQ(bytes, std::vector<char>(100000, 3));
  EXPECT_EQ(aclrtSynchronizeStream(stream), 107017);
  char byte = 0;
  EXPECT_EQ(aclrtMemsetAsync(&byte, 1, 4, 1, nullptr), ACL_SUCCESS);  // a new default stream
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  EXPECT_EQ(byte, 4);
}

}  // namespace
}  // namespace kvferry::acl
