// SPDX-License-Identifier: Apache-2.0
//
// Tensors, arrays and lists.
#include "acl_testing.hpp"

namespace kvferry::acl {
namespace {

using Dims = std::vector<std::int64_t>;

template <class Getter>
Dims get(Getter getter, const aclTensor* tensor) {
  std::int64_t* dims = nullptr;
  std::uint64_t count = 0;
  EXPECT_EQ(getter(tensor, &dims, &count), ACLNN_SUCCESS);
  Dims result(dims, dims + count);
  aclKvferryDeleteDims(dims);
  return result;
}

TEST(AclTensors, KeepWhatTheyAreMadeFrom) {
  Dims dims = {2, 3, 4};
  Dims strides = {100, 1, 3}, storage = {300};
  char data = 0;
  aclTensor* tensor = aclCreateTensor(dims.data(), 3, ACL_BF16, strides.data(), 5, ACL_FORMAT_FRACTAL_NZ,
                                      storage.data(), 1, &data);
  ASSERT_NE(tensor, nullptr);
  dims.assign(3, 9);  // copied
  EXPECT_EQ(get(aclGetViewShape, tensor), (Dims{2, 3, 4}));
  EXPECT_EQ(get(aclGetViewStrides, tensor), strides);
  EXPECT_EQ(get(aclGetStorageShape, tensor), storage);
  std::int64_t offset = 0;
  EXPECT_EQ(aclGetViewOffset(tensor, &offset), ACLNN_SUCCESS);
  EXPECT_EQ(offset, 5);
  aclFormat format = ACL_FORMAT_UNDEFINED;
  EXPECT_EQ(aclGetFormat(tensor, &format), ACLNN_SUCCESS);
  EXPECT_EQ(format, ACL_FORMAT_FRACTAL_NZ);
  aclDataType dtype = ACL_DT_UNDEFINED;
  EXPECT_EQ(aclGetDataType(tensor, &dtype), ACLNN_SUCCESS);
  EXPECT_EQ(dtype, ACL_BF16);
  void* address = nullptr;
  EXPECT_EQ(aclGetRawTensorAddr(tensor, &address), ACLNN_SUCCESS);
  EXPECT_EQ(address, &data);
  EXPECT_EQ(aclSetRawTensorAddr(tensor, &dims), ACLNN_SUCCESS);
  EXPECT_EQ(aclGetRawTensorAddr(tensor, &address), ACLNN_SUCCESS);
  EXPECT_EQ(address, &dims);

  const Dims other = {7, 5};
  EXPECT_EQ(aclInitTensor(tensor, other.data(), 2, ACL_INT8, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr),
            ACLNN_SUCCESS);
  EXPECT_EQ(get(aclGetViewShape, tensor), other);
  EXPECT_EQ(get(aclGetViewStrides, tensor), (Dims{5, 1})) << "no strides: dense";
  EXPECT_EQ(get(aclGetStorageShape, tensor), Dims());
  EXPECT_EQ(aclDestroyTensor(tensor), ACLNN_SUCCESS);
}

TEST(AclTensors, CountsBeyondMemory) {
  const std::int64_t one = 1;
  const float value = 1;
  // Times 8 or 4 bytes they wrap to nothing.
  for (const std::uint64_t count :
       {std::uint64_t{1} << 61, std::uint64_t{1} << 62, (std::uint64_t{1} << 61) + 1}) {
    EXPECT_EQ(aclCreateTensor(&one, count, ACL_INT8, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr),
              nullptr);
    EXPECT_EQ(aclCreateTensor(&one, count, ACL_INT8, &one, 0, ACL_FORMAT_ND, nullptr, 0, nullptr), nullptr);
    EXPECT_EQ(aclCreateTensor(&one, 1, ACL_INT8, nullptr, 0, ACL_FORMAT_ND, &one, count, nullptr), nullptr);
    EXPECT_EQ(aclCreateIntArray(&one, count), nullptr);
    EXPECT_EQ(aclCreateFloatArray(&value, count), nullptr);
  }
}

TEST(AclTensors, Nulls) {
  EXPECT_EQ(aclCreateTensor(nullptr, 1, ACL_INT8, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr), nullptr);
  const std::int64_t one = 1;
  EXPECT_EQ(aclCreateTensor(&one, 1, ACL_INT8, nullptr, 0, ACL_FORMAT_ND, nullptr, 1, nullptr), nullptr);
  EXPECT_NE(last_error().find("null"), std::string::npos);
  aclTensor* scalar = aclCreateTensor(nullptr, 0, ACL_INT8, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr);
  ASSERT_NE(scalar, nullptr);
  EXPECT_EQ(get(aclGetViewShape, scalar), Dims());
  std::uint64_t count = 0;
  std::int64_t* dims = nullptr;
  for (const auto getter : {aclGetViewShape, aclGetViewStrides, aclGetStorageShape}) {
    EXPECT_EQ(getter(nullptr, &dims, &count), 161001);
    EXPECT_EQ(getter(scalar, nullptr, &count), 161001);
    EXPECT_EQ(getter(scalar, &dims, nullptr), 161001);
  }
  EXPECT_EQ(aclGetViewOffset(scalar, nullptr), 161001);
  EXPECT_EQ(aclGetFormat(nullptr, nullptr), 161001);
  EXPECT_EQ(aclGetDataType(scalar, nullptr), 161001);
  EXPECT_EQ(aclGetRawTensorAddr(nullptr, nullptr), 161001);
  EXPECT_EQ(aclSetRawTensorAddr(nullptr, nullptr), 161001);
  EXPECT_EQ(aclInitTensor(nullptr, nullptr, 0, ACL_INT8, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr),
            161001);
  EXPECT_EQ(aclDestroyTensor(scalar), ACLNN_SUCCESS);

  EXPECT_EQ(aclCreateScalar(nullptr, ACL_INT8), nullptr);
  EXPECT_EQ(aclCreateIntArray(nullptr, 1), nullptr);
  EXPECT_EQ(aclCreateFloatArray(nullptr, 1), nullptr);
  EXPECT_EQ(aclCreateBoolArray(nullptr, 1), nullptr);
  EXPECT_EQ(aclCreateTensorList(nullptr, 1), nullptr);
  EXPECT_EQ(aclCreateScalarList(nullptr, 1), nullptr);
  EXPECT_EQ(aclDestroyTensor(nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclDestroyScalar(nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclDestroyIntArray(nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclDestroyFloatArray(nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclDestroyBoolArray(nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclDestroyTensorList(nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclDestroyScalarList(nullptr), ACLNN_SUCCESS);
  EXPECT_EQ(aclGetIntArraySize(nullptr, &count), 161001);
  EXPECT_EQ(aclGetFloatArraySize(nullptr, &count), 161001);
  EXPECT_EQ(aclGetBoolArraySize(nullptr, &count), 161001);
  EXPECT_EQ(aclGetTensorListSize(nullptr, &count), 161001);
  EXPECT_EQ(aclGetScalarListSize(nullptr, &count), 161001);
}

TEST(AclTensors, ArraysAndLists) {
  std::uint64_t count = 0;
  const std::int64_t ints[] = {4, 5, 6};
  aclIntArray* int_array = aclCreateIntArray(ints, 3);
  EXPECT_EQ(aclGetIntArraySize(int_array, &count), ACLNN_SUCCESS);
  EXPECT_EQ(count, 3U);
  EXPECT_EQ(aclDestroyIntArray(int_array), ACLNN_SUCCESS);
  const float floats[] = {1, 2};
  aclFloatArray* float_array = aclCreateFloatArray(floats, 2);
  EXPECT_EQ(aclGetFloatArraySize(float_array, &count), ACLNN_SUCCESS);
  EXPECT_EQ(count, 2U);
  EXPECT_EQ(aclDestroyFloatArray(float_array), ACLNN_SUCCESS);
  const bool bools[] = {true};
  aclBoolArray* bool_array = aclCreateBoolArray(bools, 1);
  EXPECT_EQ(aclGetBoolArraySize(bool_array, &count), ACLNN_SUCCESS);
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(aclDestroyBoolArray(bool_array), ACLNN_SUCCESS);

  // Lists own their members: a leak checker sees it.
  const aclTensor* tensors[] = {
      aclCreateTensor(ints, 1, ACL_INT8, nullptr, 0, ACL_FORMAT_ND, ints, 1, nullptr),
      aclCreateTensor(ints, 2, ACL_INT8, nullptr, 0, ACL_FORMAT_ND, ints, 2, nullptr)};
  aclTensorList* list = aclCreateTensorList(tensors, 2);
  EXPECT_EQ(aclGetTensorListSize(list, &count), ACLNN_SUCCESS);
  EXPECT_EQ(count, 2U);
  EXPECT_EQ(aclDestroyTensorList(list), ACLNN_SUCCESS);
  double value = 2.5;
  const aclScalar* scalars[] = {aclCreateScalar(&value, ACL_DOUBLE)};
  aclScalarList* scalar_list = aclCreateScalarList(scalars, 1);
  EXPECT_EQ(aclGetScalarListSize(scalar_list, &count), ACLNN_SUCCESS);
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(aclDestroyScalarList(scalar_list), ACLNN_SUCCESS);
  aclIntArray* empty = aclCreateIntArray(nullptr, 0);
  EXPECT_EQ(aclGetIntArraySize(empty, &count), ACLNN_SUCCESS);
  EXPECT_EQ(count, 0U);
  EXPECT_EQ(aclDestroyIntArray(empty), ACLNN_SUCCESS);
}

}  // namespace
}  // namespace kvferry::acl
