// SPDX-License-Identifier: Apache-2.0
//
// The two phases: what they refuse, when bytes move, how long executors live.
#include <cstdlib>
#include <numeric>
#include <thread>

#include "acl_testing.hpp"
#include "aclnnop/aclnn_gather_pa_kv_cache.h"
#include "aclnnop/aclnn_gather_selection_kv_cache.h"
#include "aclnnop/aclnn_group_memcpy.h"
#include "aclnnop/aclnn_scatter_pa_kv_cache.h"
#include "compat/acl/acl_executor.hpp"
#include "compat/acl/acl_settings.hpp"

namespace kvferry::acl {
namespace {

using Bytes = std::vector<std::uint8_t>;

bool says(const char* part) {
  return last_error().find(part) != std::string::npos;
}

template <class T>
std::vector<T> counting(std::size_t n) {
  std::vector<T> values(n);
  std::iota(values.begin(), values.end(), T{0});
  return values;
}

// One sequence of 3 tokens out of blocks 2 and 0 of 3 blocks of 2 tokens; a token is one byte, its number.
struct SmallGather {
  OwnTensor<std::uint8_t> key_cache{ACL_UINT8, {3, 2, 1, 1}, counting<std::uint8_t>(6)};
  OwnTensor<std::uint8_t> value_cache{ACL_UINT8, {3, 2, 1, 1}, counting<std::uint8_t>(6)};
  OwnTensor<std::int32_t> tables{ACL_INT32, {1, 2}, std::vector<std::int32_t>{2, 0}};
  OwnTensor<std::int32_t> lens{ACL_INT32, {1}, 3};
  OwnTensor<std::uint8_t> key{ACL_UINT8, {3, 1, 1}, 99};
  OwnTensor<std::uint8_t> value{ACL_UINT8, {3, 1, 1}, 99};
  std::uint64_t bytes = 0;
  aclOpExecutor* executor = nullptr;

  int phase_one() {
    return aclnnGatherPaKvCacheGetWorkspaceSize(key_cache.tensor, value_cache.tensor, tables.tensor,
                                                lens.tensor, key.tensor, value.tensor, nullptr, nullptr,
                                                false, &bytes, &executor);
  }
  int phase_two(aclrtStream stream) {
    workspace.resize(bytes);
    return aclnnGatherPaKvCache(workspace.data(), bytes, executor, stream);
  }
  Bytes workspace;
};

const Bytes kGathered = {4, 5, 0};
const Bytes kUntouched = {99, 99, 99};

TEST(AclExecutor, SecondPhaseReturnsBeforeBytesMove) {
  const OwnStream stream, other;
  SmallGather call, beside;
  ASSERT_EQ(call.phase_one(), ACLNN_SUCCESS);
  ASSERT_EQ(beside.phase_one(), ACLNN_SUCCESS);
  Gate gate(stream.handle);
  EXPECT_EQ(call.phase_two(stream.handle), ACLNN_SUCCESS);
  EXPECT_EQ(beside.phase_two(other.handle), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(other.handle), ACL_SUCCESS);
  EXPECT_EQ(beside.key.data, kGathered);
  EXPECT_EQ(call.key.data, kUntouched);
  call.tables.data = {1, 1};  // read when it runs
  gate.open();
  EXPECT_EQ(aclrtSynchronizeStream(stream.handle), ACL_SUCCESS);
  EXPECT_EQ(call.key.data, (Bytes{2, 3, 2}));
  EXPECT_EQ(call.value.data, (Bytes{2, 3, 2}));
}

TEST(AclExecutor, FirstPhaseCopiesTensorsAndAttributes) {
  const OwnStream stream;
  SmallGather call;
  char mode[] = "Norm";
  ASSERT_EQ(aclnnGatherPaKvCacheGetWorkspaceSize(
                call.key_cache.tensor, call.value_cache.tensor, call.tables.tensor, call.lens.tensor,
                call.key.tensor, call.value.tensor, nullptr, mode, false, &call.bytes, &call.executor),
            ACLNN_SUCCESS);
  mode[0] = 'X';
  for (aclTensor** tensor : {&call.key_cache.tensor, &call.key.tensor}) {
    aclDestroyTensor(*tensor);
    *tensor = nullptr;
  }
  EXPECT_EQ(call.phase_two(stream.handle), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream.handle), ACL_SUCCESS);
  EXPECT_EQ(call.key.data, kGathered);
}

TEST(AclExecutor, IsGoodForOneRun) {
  SmallGather call;
  ASSERT_EQ(call.phase_one(), ACLNN_SUCCESS);
  EXPECT_EQ(call.phase_two(nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
  EXPECT_EQ(call.key.data, kGathered);
  call.key.data = kUntouched;
  EXPECT_EQ(call.phase_two(nullptr), 161002);
  EXPECT_TRUE(says("it has run"));
  EXPECT_EQ(aclSetAclOpExecutorRepeatable(call.executor), 161002);
  EXPECT_EQ(aclDestroyAclOpExecutor(call.executor), 161002);
  EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
  EXPECT_EQ(call.key.data, kUntouched);
}

TEST(AclExecutor, UnusedOnesAreDestroyed) {
  SmallGather call;
  ASSERT_EQ(call.phase_one(), ACLNN_SUCCESS);
  EXPECT_EQ(aclDestroyAclOpExecutor(call.executor), ACLNN_SUCCESS);
  EXPECT_EQ(aclDestroyAclOpExecutor(call.executor), 161002);
  EXPECT_EQ(call.phase_two(nullptr), 161002);
  EXPECT_EQ(aclDestroyAclOpExecutor(nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(executors().size(), 0U);
}

TEST(AclExecutor, RepeatableOnesRunWithOtherAddresses) {
  const OwnStream stream;
  SmallGather call;
  ASSERT_EQ(call.phase_one(), ACLNN_SUCCESS);
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(call.executor), ACLNN_SUCCESS);
  Bytes other_cache = {60, 61, 62, 63, 64, 65}, other_key = kUntouched, other_value = kUntouched;
  {
    const Gate gate(stream.handle);  // both runs are enqueued before the first one moves anything
    EXPECT_EQ(call.phase_two(stream.handle), ACLNN_SUCCESS);
    EXPECT_EQ(aclSetTensorAddr(call.executor, 0, call.key_cache.tensor, other_cache.data()), ACLNN_SUCCESS);
    EXPECT_EQ(aclSetOutputTensorAddr(call.executor, 0, call.key.tensor, other_key.data()), ACLNN_SUCCESS);
    EXPECT_EQ(aclSetOutputTensorAddr(call.executor, 1, call.value.tensor, other_value.data()), ACLNN_SUCCESS);
    EXPECT_EQ(call.phase_two(stream.handle), ACLNN_SUCCESS);
  }
  EXPECT_EQ(aclrtSynchronizeStream(stream.handle), ACL_SUCCESS);
  EXPECT_EQ(call.key.data, kGathered);
  EXPECT_EQ(other_key, (Bytes{64, 65, 60}));
  EXPECT_EQ(other_value, kGathered);

  std::vector<std::int32_t> other_tables = {1, 2};
  EXPECT_EQ(aclSetInputTensorAddr(call.executor, 2, call.tables.tensor, other_tables.data()), ACLNN_SUCCESS);
  EXPECT_EQ(AclSetTensorAddr(call.executor, 4, call.key.tensor, call.key.data.data()), ACLNN_SUCCESS);
  EXPECT_EQ(AclSetOutputTensorAddr(call.executor, 1, call.value.tensor, call.value.data.data()),
            ACLNN_SUCCESS);
  EXPECT_EQ(AclSetInputTensorAddr(call.executor, 0, call.key_cache.tensor, other_cache.data()),
            ACLNN_SUCCESS);
  EXPECT_EQ(AclSetAclOpExecutorRepeatable(call.executor), ACLNN_SUCCESS);
  EXPECT_EQ(call.phase_two(stream.handle), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream.handle), ACL_SUCCESS);
  EXPECT_EQ(call.key.data, (Bytes{62, 63, 64}));
  EXPECT_EQ(call.value.data, (Bytes{2, 3, 4}));
  EXPECT_EQ(aclDestroyAclOpExecutor(call.executor), ACLNN_SUCCESS);
  EXPECT_EQ(call.phase_two(stream.handle), 161002);
}

TEST(AclExecutor, SettersRefuse) {
  SmallGather call;
  ASSERT_EQ(call.phase_one(), ACLNN_SUCCESS);
  char byte = 0;
  EXPECT_EQ(aclSetTensorAddr(call.executor, 6, call.lens.tensor, &byte), 161002) << "seqOffset was null";
  EXPECT_TRUE(says("null in the first phase"));
  EXPECT_EQ(aclSetTensorAddr(call.executor, 7, call.lens.tensor, &byte), 161002);
  EXPECT_EQ(aclSetInputTensorAddr(call.executor, SIZE_MAX, call.lens.tensor, &byte), 161002);
  EXPECT_EQ(aclSetOutputTensorAddr(call.executor, 2, call.key.tensor, &byte), 161002);
  for (const auto setter : {aclSetTensorAddr, aclSetInputTensorAddr, aclSetOutputTensorAddr}) {
    EXPECT_EQ(setter(nullptr, 0, call.key.tensor, &byte), 561103);
    EXPECT_EQ(setter(call.executor, 0, nullptr, &byte), 561103);
    EXPECT_EQ(setter(call.executor, 0, call.key.tensor, nullptr), 561103);
  }
  EXPECT_EQ(aclSetAclOpExecutorRepeatable(nullptr), 561103);
  EXPECT_EQ(call.phase_two(nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  EXPECT_EQ(call.key.data, kGathered) << "a refused setter changed something";
}

TEST(AclExecutor, SecondPhaseRefusesAndKeepsTheExecutor) {
  SmallGather call;
  const Rejecting reject;  // needs a workspace
  ASSERT_EQ(call.phase_one(), ACLNN_SUCCESS);
  ASSERT_GT(call.bytes, 0U);
  Bytes workspace(call.bytes);
  EXPECT_EQ(aclnnGatherPaKvCache(workspace.data(), call.bytes - 1, call.executor, nullptr), 161002);
  EXPECT_TRUE(says("workspaceSize"));
  EXPECT_EQ(aclnnGatherPaKvCache(nullptr, call.bytes, call.executor, nullptr), 161001);
  EXPECT_EQ(aclnnGatherPaKvCache(workspace.data(), call.bytes, nullptr, nullptr), 161001);
  EXPECT_EQ(aclnnScatterPaKvCache(workspace.data(), call.bytes, call.executor, nullptr), 161002);
  EXPECT_TRUE(says("executor is of gather_pa_kv_cache"));
  EXPECT_EQ(aclnnGatherPaKvCache(workspace.data(), call.bytes, call.executor, call.executor), 361001);
  EXPECT_EQ(call.phase_two(nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  EXPECT_EQ(call.key.data, kGathered);
}

TEST(AclExecutor, RejectedWorkIsToldOnceAndStopsNothing) {
  const OwnStream stream;
  SmallGather bad, good;
  {
    const Rejecting reject;
    bad.tables.data = {2, -1};
    ASSERT_EQ(bad.phase_one(), ACLNN_SUCCESS) << "index values are not read";
  }
  ASSERT_EQ(good.phase_one(), ACLNN_SUCCESS);
  EXPECT_EQ(bad.phase_two(stream.handle), ACLNN_SUCCESS);
  EXPECT_EQ(good.phase_two(stream.handle), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream.handle), 507000);
  EXPECT_TRUE(says("block_tables")) << last_error();
  EXPECT_EQ(bad.key.data, kUntouched);
  EXPECT_EQ(bad.value.data, kUntouched);
  EXPECT_EQ(good.key.data, kGathered);
  EXPECT_EQ(aclrtSynchronizeStream(stream.handle), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
}

TEST(AclExecutor, SynchronizeDeviceTellsOfFailuresToo) {
  const OwnStream stream;
  SmallGather bad;
  const Rejecting reject;
  bad.tables.data = {7, 0};
  ASSERT_EQ(bad.phase_one(), ACLNN_SUCCESS);
  EXPECT_EQ(bad.phase_two(stream.handle), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeDevice(), 507000);
  EXPECT_EQ(aclrtSynchronizeStream(stream.handle), ACL_SUCCESS);
}

TEST(AclPhaseOne, NullPointers) {
  SmallGather c;
  const auto phase_one = [&](int without) {
    const auto with = [&](int i, aclTensor* tensor) { return i == without ? nullptr : tensor; };
    c.executor = reinterpret_cast<aclOpExecutor*>(1);
    return aclnnGatherPaKvCacheGetWorkspaceSize(
        with(0, c.key_cache.tensor), with(1, c.value_cache.tensor), with(2, c.tables.tensor),
        with(3, c.lens.tensor), with(4, c.key.tensor), with(5, c.value.tensor), nullptr, nullptr, false,
        without == 6 ? nullptr : &c.bytes, without == 7 ? nullptr : &c.executor);
  };
  const char* names[] = {"keyCache", "valueCache", "blockTables",   "seqLens",
                         "keyRef",   "valueRef",   "workspaceSize", "executor"};
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(phase_one(i), 161001) << names[i];
    EXPECT_TRUE(says(names[i])) << last_error();
    EXPECT_EQ(c.executor, i == 7 ? reinterpret_cast<aclOpExecutor*>(1) : nullptr);
  }
  EXPECT_EQ(executors().size(), 0U);
  // Null goes before everything else that is wrong.
  char wrong[] = "norm";
  EXPECT_EQ(aclnnGatherPaKvCacheGetWorkspaceSize(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                                 nullptr, wrong, false, &c.bytes, &c.executor),
            161001);
  uint64_t bytes = 0;
  EXPECT_EQ(aclnnGroupMemcpyGetWorkspaceSize(nullptr, 1, &bytes, &c.executor), 161001);
}

TEST(AclPhaseOne, ModesByName) {
  SmallGather c;
  for (const char* wrong : {"norm", "NORM", "", "PA_NZ ", "ND"}) {
    std::string mode = wrong;
    EXPECT_EQ(aclnnGatherPaKvCacheGetWorkspaceSize(c.key_cache.tensor, c.value_cache.tensor, c.tables.tensor,
                                                   c.lens.tensor, c.key.tensor, c.value.tensor, nullptr,
                                                   mode.data(), false, &c.bytes, &c.executor),
              161002)
        << wrong;
    EXPECT_TRUE(says("cacheMode")) << last_error();
  }

  OwnTensor<std::int32_t> slots{ACL_INT32, {3}, std::vector<std::int32_t>{5, 0, 2}};
  struct Scatter {
    const char* mode = nullptr;
    const char* scatter = nullptr;
    const aclTensor* compress = nullptr;
    const aclIntArray* strides = nullptr;
    const aclIntArray* offsets = nullptr;
  };
  const auto phase_one = [&](const Scatter& s) {
    std::string mode = s.mode == nullptr ? "" : s.mode, scatter = s.scatter == nullptr ? "" : s.scatter;
    return aclnnScatterPaKvCacheGetWorkspaceSize(
        c.key.tensor, c.key_cache.tensor, slots.tensor, nullptr, nullptr, s.compress, nullptr, nullptr,
        s.mode == nullptr ? nullptr : mode.data(), s.scatter == nullptr ? nullptr : scatter.data(), s.strides,
        s.offsets, &c.bytes, &c.executor);
  };
  EXPECT_EQ(phase_one({.scatter = "none"}), 161002);
  EXPECT_TRUE(says("scatterModeOptional"));
  for (const char* mode : {"Alibi", "Rope", "Omni"}) EXPECT_EQ(phase_one({.scatter = mode}), 561003);
  EXPECT_EQ(phase_one({.compress = slots.tensor}), 561003);
  EXPECT_TRUE(says("compressLensOptional"));
  EXPECT_EQ(phase_one({.mode = "PA_NZ", .scatter = "NHSD"}), 161002);

  EXPECT_EQ(phase_one({.scatter = "Nct"}), 161001);
  const std::int64_t ones[] = {1, 1, 1};
  aclIntArray* two = aclCreateIntArray(ones, 2);
  aclIntArray* three = aclCreateIntArray(ones, 3);
  EXPECT_EQ(phase_one({.scatter = "Nct", .strides = two}), 161001);
  EXPECT_EQ(phase_one({.scatter = "Nct", .strides = two, .offsets = three}), 161002);
  EXPECT_TRUE(says("offsetsOptional: 3 values, expected 2"));
  EXPECT_EQ(phase_one({.scatter = "Nct", .strides = two, .offsets = two}), 161002) << "beyond the storage";
  EXPECT_EQ(executors().size(), 0U);
  EXPECT_EQ(phase_one({.strides = three}), ACLNN_SUCCESS) << "read by Nct only";
  EXPECT_EQ(aclnnScatterPaKvCache(nullptr, 0, c.executor, nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  EXPECT_EQ(c.key_cache.data, (Bytes{99, 1, 99, 3, 4, 99})) << "K alone: value tensors are null";
  aclDestroyIntArray(two);
  aclDestroyIntArray(three);
}

TEST(AclPhaseOne, FormatsAndDtypes) {
  SmallGather c;
  const std::int64_t dims[] = {3, 2, 1, 1};
  const auto with = [&](aclDataType dtype, aclFormat format) {
    aclInitTensor(c.key_cache.tensor, dims, 4, dtype, nullptr, 0, format, dims, 4, c.key_cache.data.data());
    const int code = c.phase_one();
    EXPECT_EQ(aclDestroyAclOpExecutor(c.executor), ACLNN_SUCCESS);  // null after a refusal
    return code;
  };
  for (const auto format : {ACL_FORMAT_ND, ACL_FORMAT_NCHW, ACL_FORMAT_NHWC, ACL_FORMAT_NCL, ACL_FORMAT_NC,
                            ACL_FORMAT_NCDHW, ACL_FORMAT_NDHWC, ACL_FORMAT_HWCN})
    EXPECT_EQ(with(ACL_UINT8, format), ACLNN_SUCCESS) << format;
  for (const auto format :
       {ACL_FORMAT_FRACTAL_NZ, ACL_FORMAT_FRACTAL_Z, ACL_FORMAT_NC1HWC0, ACL_FORMAT_UNDEFINED}) {
    EXPECT_EQ(with(ACL_UINT8, format), 161002) << format;
    EXPECT_TRUE(says("keyCache: format"));
  }
  for (const auto dtype : {ACL_DT_UNDEFINED, ACL_BOOL, ACL_DOUBLE, ACL_FLOAT8_E8M0, ACL_INT4}) {
    EXPECT_EQ(with(dtype, ACL_FORMAT_ND), 161002) << dtype;
    EXPECT_TRUE(says("keyCache: dtype"));
  }
  const std::int64_t huge[] = {INT64_MAX, 3};
  aclInitTensor(c.key_cache.tensor, dims, 4, ACL_UINT8, nullptr, 0, ACL_FORMAT_ND, huge, 2,
                c.key_cache.data.data());
  EXPECT_EQ(c.phase_one(), 161002);
  EXPECT_TRUE(says("storageDims"));
}

TEST(AclPhaseOne, ViewsWithStridesAndOffset) {
  SmallGather c;
  // Blocks 0, 1 of every second byte, from byte 1 on; outputs back to front.
  Bytes storage = counting<std::uint8_t>(13);
  const std::int64_t dims[] = {3, 2, 1, 1}, strides[] = {4, 2, 1, 1}, storage_dims[] = {13};
  aclInitTensor(c.key_cache.tensor, dims, 4, ACL_UINT8, strides, 1, ACL_FORMAT_ND, storage_dims, 1,
                storage.data());
  const std::int64_t out_dims[] = {3, 1, 1}, backwards[] = {-1, 1, 1}, out_storage[] = {3};
  aclInitTensor(c.key.tensor, out_dims, 3, ACL_UINT8, backwards, 2, ACL_FORMAT_ND, out_storage, 1,
                c.key.data.data());
  ASSERT_EQ(c.phase_one(), ACLNN_SUCCESS) << last_error();
  EXPECT_EQ(c.phase_two(nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  EXPECT_EQ(c.key.data, (Bytes{1, 11, 9}));
}

TEST(AclPhaseOne, EmptyOutputsAreASuccessWithAnExecutor) {
  SmallGather c;
  const std::int64_t none[] = {0, 1, 1};
  for (aclTensor* tensor : {c.key.tensor, c.value.tensor})
    aclInitTensor(tensor, none, 3, ACL_UINT8, nullptr, 0, ACL_FORMAT_ND, none, 3, nullptr);
  ASSERT_EQ(c.phase_one(), ACLNN_SUCCESS) << last_error();
  EXPECT_EQ(c.bytes, 0U);
  EXPECT_NE(c.executor, nullptr);
  EXPECT_EQ(aclnnGatherPaKvCache(nullptr, 0, c.executor, nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);

  OwnTensor<std::int64_t> table{ACL_INT64, {2}, 0};
  ASSERT_EQ(aclnnGroupMemcpyGetWorkspaceSize(table.tensor, 0, &c.bytes, &c.executor), ACLNN_SUCCESS);
  EXPECT_EQ(c.bytes, 0U);
  EXPECT_EQ(aclnnGroupMemcpy(nullptr, 0, c.executor, nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclnnGroupMemcpyGetWorkspaceSize(table.tensor, -1, &c.bytes, &c.executor), 161002);
}

TEST(AclPhaseOne, SelectionWithAndWithoutQueryLengths) {
  OwnTensor<std::uint8_t> rope{ACL_INT8, {0}, Bytes()}, full_rope{ACL_INT8, {0}, Bytes()};
  OwnTensor<std::uint8_t> selection{ACL_INT8, {1, 2, 1}, 99}, full{ACL_INT8, {2, 2, 1}, Bytes{7, 8, 9, 10}};
  OwnTensor<std::int32_t> table{ACL_INT32, {1, 1}, 0}, status{ACL_INT32, {1, 1, 1, 3}, -1};
  OwnTensor<std::int32_t> topk{ACL_INT32, {1, 1, 1, 2}, std::vector<std::int32_t>{3, 0}};
  OwnTensor<std::int32_t> full_table{ACL_INT32, {1, 2}, std::vector<std::int32_t>{0, 1}};
  OwnTensor<std::int32_t> kv{ACL_INT32, {1}, 4}, q{ACL_INT32, {1}, 1}, out{ACL_INT32, {1}, -5};
  std::uint64_t bytes = 0;
  aclOpExecutor* executor = nullptr;
  const auto phase_one = [&](aclTensor* ropes, const aclTensor* q_lens) {
    return aclnnGatherSelectionKvCacheGetWorkspaceSize(
        ropes, selection.tensor, table.tensor, status.tensor, topk.tensor, full_rope.tensor, full.tensor,
        full_table.tensor, kv.tensor, q_lens, 1, out.tensor, &bytes, &executor);
  };
  EXPECT_EQ(phase_one(nullptr, q.tensor), 161001);
  EXPECT_TRUE(says("selectionKRopeRef"));
  EXPECT_EQ(phase_one(rope.tensor, nullptr), 161001);
  EXPECT_TRUE(says("fullQActualSeq"));
  EXPECT_EQ(aclKvferrySetSelectionQLen("all"), 161002);
  ASSERT_EQ(aclKvferrySetSelectionQLen("all_rows"), ACLNN_SUCCESS);
  EXPECT_EQ(phase_one(rope.tensor, nullptr), ACLNN_SUCCESS) << last_error();
  ASSERT_EQ(aclKvferrySetSelectionQLen("counts"), ACLNN_SUCCESS);
  // selectionKvActualSeqOut is number 10 of all, and the fifth that is written.
  std::int32_t tokens = -5;
  EXPECT_EQ(aclSetOutputTensorAddr(executor, 4, out.tensor, &tokens), ACLNN_SUCCESS);
  Bytes workspace(bytes);
  EXPECT_EQ(aclnnGatherSelectionKvCache(workspace.data(), bytes, executor, nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  EXPECT_EQ(selection.data, (Bytes{10, 7}));
  EXPECT_EQ(tokens, 2);
  EXPECT_EQ(out.data[0], -5);
}

TEST(AclSettings, ComeFromTheEnvironmentUntilACallSetsThem) {
  const Names<int, 2> names = {{{"one", 1}, {"two", 2}}};
  int value = 0;
  unsetenv("KVFERRY_TEST_SETTING");
  const Setting<int, 2> unset("KVFERRY_TEST_SETTING", names);
  EXPECT_TRUE(unset.get(value).ok());
  EXPECT_EQ(value, 1);
  setenv("KVFERRY_TEST_SETTING", "two", 1);
  EXPECT_TRUE(unset.get(value).ok());
  EXPECT_EQ(value, 1) << "read again";
  const Setting<int, 2> two("KVFERRY_TEST_SETTING", names);
  EXPECT_TRUE(two.get(value).ok());
  EXPECT_EQ(value, 2);
  setenv("KVFERRY_TEST_SETTING", "three", 1);
  Setting<int, 2> wrong("KVFERRY_TEST_SETTING", names);
  const Status status = wrong.get(value);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "KVFERRY_TEST_SETTING: 'three', expected one of 'one' 'two'");
  EXPECT_FALSE(wrong.set("f", nullptr).ok());
  EXPECT_TRUE(wrong.set("f", "one").ok());
  EXPECT_TRUE(wrong.get(value).ok());
  EXPECT_EQ(value, 1);
  unsetenv("KVFERRY_TEST_SETTING");
}

TEST(AclExecutor, DescribesItsPlan) {
  SmallGather c;
  ASSERT_EQ(c.phase_one(), ACLNN_SUCCESS);
  const std::string text = aclKvferryDescribe(c.executor);
  EXPECT_NE(text.find("tiling key 1100"), std::string::npos) << text;
  EXPECT_EQ(aclDestroyAclOpExecutor(c.executor), ACLNN_SUCCESS);
  EXPECT_EQ(aclKvferryDescribe(c.executor), nullptr);
  EXPECT_EQ(aclKvferryDescribe(nullptr), nullptr);
}

// A leak checker sees what stays behind.
TEST(AclExecutor, ThousandsOfCallsLeaveNothing) {
  const OwnStream stream;
  for (int i = 0; i < 3000; ++i) {
    SmallGather used, unused, repeated;
    ASSERT_EQ(used.phase_one(), ACLNN_SUCCESS);
    ASSERT_EQ(unused.phase_one(), ACLNN_SUCCESS);
    ASSERT_EQ(repeated.phase_one(), ACLNN_SUCCESS);
    ASSERT_EQ(aclSetAclOpExecutorRepeatable(repeated.executor), ACLNN_SUCCESS);
    ASSERT_EQ(used.phase_two(stream.handle), ACLNN_SUCCESS);
    ASSERT_EQ(repeated.phase_two(stream.handle), ACLNN_SUCCESS);
    ASSERT_EQ(repeated.phase_two(stream.handle), ACLNN_SUCCESS);
    ASSERT_EQ(aclDestroyAclOpExecutor(unused.executor), ACLNN_SUCCESS);
    ASSERT_EQ(aclDestroyAclOpExecutor(repeated.executor), ACLNN_SUCCESS) << "while it may still run";
    ASSERT_EQ(aclrtSynchronizeStream(stream.handle), ACL_SUCCESS);
    ASSERT_EQ(used.key.data, kGathered);
    ASSERT_EQ(repeated.key.data, kGathered);
  }
  EXPECT_EQ(executors().size(), 0U);
}

TEST(AclExecutor, TwoThreadsWithAStreamEach) {
  const auto work = [] {
    const OwnStream stream;
    for (int i = 0; i < 500; ++i) {
      SmallGather one_shot, repeated, shared;
      ASSERT_EQ(one_shot.phase_one(), ACLNN_SUCCESS);
      ASSERT_EQ(repeated.phase_one(), ACLNN_SUCCESS);
      ASSERT_EQ(shared.phase_one(), ACLNN_SUCCESS);
      ASSERT_EQ(aclSetAclOpExecutorRepeatable(repeated.executor), ACLNN_SUCCESS);
      ASSERT_EQ(one_shot.phase_two(stream.handle), ACLNN_SUCCESS);
      ASSERT_EQ(repeated.phase_two(stream.handle), ACLNN_SUCCESS);
      ASSERT_EQ(shared.phase_two(nullptr), ACLNN_SUCCESS);  // a stream that both threads use
      ASSERT_EQ(aclDestroyAclOpExecutor(repeated.executor), ACLNN_SUCCESS);
      ASSERT_EQ(aclrtSynchronizeStream(stream.handle), ACL_SUCCESS);
      ASSERT_EQ(one_shot.key.data, kGathered);
      ASSERT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
      ASSERT_EQ(shared.key.data, kGathered);
    }
  };
  std::thread first(work), second(work);
  first.join();
  second.join();
  EXPECT_EQ(executors().size(), 0U);
}

}  // namespace
}  // namespace kvferry::acl
