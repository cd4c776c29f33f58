// SPDX-License-Identifier: Apache-2.0
//
// aclCreate..., aclDestroy..., aclGet... of tensors, arrays and lists.
#include "acl_tensors.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "acl_error.hpp"
#include "aclnn/acl_kvferry.h"

namespace kvferry::acl {
namespace {

std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& dims) {
  std::vector<std::int64_t> strides(dims.size());
  std::uint64_t step = 1;  // a product that overflows may wrap: such a view is refused
  for (std::size_t i = dims.size(); i-- > 0;) {
    strides[i] = static_cast<std::int64_t>(step);
    step *= static_cast<std::uint64_t>(dims[i]);
  }
  return strides;
}

// A count beyond all memory is std::length_error here; `values + count` would wrap.
template <class T>
std::vector<T> copied(const T* values, std::uint64_t count) {
  std::vector<T> copy(count);
  std::copy_n(values, count, copy.begin());
  return copy;
}

int null_pointer(const char* function) {
  return fail(ACLNN_ERR_PARAM_NULLPTR, std::string(function) + ": an argument is null");
}

// A new object from `size` values, or null.
template <class Object, class Value, class Make>
Object* create(const char* function, const Value* values, std::uint64_t size, Make make) noexcept {
  Object* made = nullptr;
  guarded(ACLNN_ERR_INNER, [&] {
    if (values == nullptr && size > 0) return null_pointer(function);
    made = make().release();
    return ACLNN_SUCCESS;
  });
  return made;
}

template <class Object>
aclnnStatus destroy(const Object* object) noexcept {
  delete object;
  return ACLNN_SUCCESS;
}

template <class Object, class Value>
aclnnStatus read(const char* function, const Object* object, Value* to, Value Object::*member) noexcept {
  return guarded(ACLNN_ERR_INNER, [&] {
    if (object == nullptr || to == nullptr) return null_pointer(function);
    *to = object->*member;
    return ACLNN_SUCCESS;
  });
}

template <class Object, class Values>
aclnnStatus read_size(const char* function, const Object* object, std::uint64_t* size,
                      Values Object::*values) noexcept {
  return guarded(ACLNN_ERR_INNER, [&] {
    if (object == nullptr || size == nullptr) return null_pointer(function);
    *size = (object->*values).size();
    return ACLNN_SUCCESS;
  });
}

aclnnStatus read_dims(const char* function, const aclTensor* tensor, std::int64_t** dims,
                      std::uint64_t* count, std::vector<std::int64_t> aclTensor::*member) noexcept {
  return guarded(ACLNN_ERR_INNER, [&] {
    if (tensor == nullptr || dims == nullptr || count == nullptr) return null_pointer(function);
    const std::vector<std::int64_t>& values = tensor->*member;
    auto copy = std::make_unique<std::int64_t[]>(values.size());
    std::copy(values.begin(), values.end(), copy.get());
    *dims = copy.release();  // the caller deletes it: ACL's rule
    *count = values.size();
    return ACLNN_SUCCESS;
  });
}

}  // namespace
}  // namespace kvferry::acl

using namespace kvferry::acl;

size_t aclDataTypeSize(aclDataType dataType) {
  switch (dataType) {
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_BOOL:
    case ACL_HIFLOAT8:
    case ACL_FLOAT8_E5M2:
    case ACL_FLOAT8_E4M3FN:
    case ACL_FLOAT8_E8M0:
      return 1;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16:
      return 2;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
    case ACL_COMPLEX32:
      return 4;
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_DOUBLE:
    case ACL_COMPLEX64:
      return 8;
    case ACL_COMPLEX128:
      return 16;
    case ACL_DT_UNDEFINED:
    case ACL_STRING:
    case ACL_INT4:
    case ACL_UINT1:
      break;
  }
  return 0;
}

aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType,
                           const int64_t* stride, int64_t offset, aclFormat format,
                           const int64_t* storageDims, uint64_t storageDimsNum, void* tensorData) {
  return create<aclTensor>("aclCreateTensor", viewDims, viewDimsNum, [&] {
    auto tensor = std::make_unique<aclTensor>();
    const int code = aclInitTensor(tensor.get(), viewDims, viewDimsNum, dataType, stride, offset, format,
                                   storageDims, storageDimsNum, tensorData);
    if (code != ACLNN_SUCCESS) tensor.reset();
    return tensor;
  });
}

aclnnStatus aclInitTensor(aclTensor* tensor, const int64_t* viewDims, uint64_t viewDimsNum,
                          aclDataType dataType, const int64_t* stride, int64_t offset, aclFormat format,
                          const int64_t* storageDims, uint64_t storageDimsNum, void* tensorDataAddr) {
  return guarded(ACLNN_ERR_INNER, [&] {
    if (tensor == nullptr || (viewDims == nullptr && viewDimsNum > 0) ||
        (storageDims == nullptr && storageDimsNum > 0))
      return null_pointer("aclInitTensor");
    aclTensor made;
    made.dims = copied(viewDims, viewDimsNum);
    made.strides = stride == nullptr ? dense_strides(made.dims) : copied(stride, viewDimsNum);
    made.storage_dims = copied(storageDims, storageDimsNum);
    made.offset = offset;
    made.dtype = dataType;
    made.format = format;
    made.data = tensorDataAddr;
    *tensor = std::move(made);
    return ACLNN_SUCCESS;
  });
}

aclScalar* aclCreateScalar(void* value, aclDataType dataType) {
  return create<aclScalar>("aclCreateScalar", static_cast<const char*>(value), 1, [&] {
    auto scalar = std::make_unique<aclScalar>();
    std::memcpy(scalar->value.data(), value, aclDataTypeSize(dataType));
    scalar->dtype = dataType;
    return scalar;
  });
}

aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  return create<aclIntArray>("aclCreateIntArray", value, size,
                             [&] { return std::make_unique<aclIntArray>(aclIntArray{copied(value, size)}); });
}

aclFloatArray* aclCreateFloatArray(const float* value, uint64_t size) {
  return create<aclFloatArray>("aclCreateFloatArray", value, size, [&] {
    return std::make_unique<aclFloatArray>(aclFloatArray{copied(value, size)});
  });
}

aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  return create<aclBoolArray>("aclCreateBoolArray", value, size, [&] {
    return std::make_unique<aclBoolArray>(aclBoolArray{copied(value, size)});
  });
}

aclTensorList* aclCreateTensorList(const aclTensor* const* value, uint64_t size) {
  return create<aclTensorList>("aclCreateTensorList", value, size, [&] {
    auto list = std::make_unique<aclTensorList>();
    list->members.reserve(size);  // behind it nothing throws: a list that was not made took nothing over
    for (std::uint64_t i = 0; i < size; ++i) list->members.emplace_back(value[i]);
    return list;
  });
}

aclScalarList* aclCreateScalarList(const aclScalar* const* value, uint64_t size) {
  return create<aclScalarList>("aclCreateScalarList", value, size, [&] {
    auto list = std::make_unique<aclScalarList>();
    list->members.reserve(size);
    for (std::uint64_t i = 0; i < size; ++i) list->members.emplace_back(value[i]);
    return list;
  });
}

aclnnStatus aclDestroyTensor(const aclTensor* tensor) {
  return destroy(tensor);
}
aclnnStatus aclDestroyScalar(const aclScalar* scalar) {
  return destroy(scalar);
}
aclnnStatus aclDestroyIntArray(const aclIntArray* array) {
  return destroy(array);
}
aclnnStatus aclDestroyFloatArray(const aclFloatArray* array) {
  return destroy(array);
}
aclnnStatus aclDestroyBoolArray(const aclBoolArray* array) {
  return destroy(array);
}
aclnnStatus aclDestroyTensorList(const aclTensorList* array) {
  return destroy(array);
}
aclnnStatus aclDestroyScalarList(const aclScalarList* array) {
  return destroy(array);
}

aclnnStatus aclGetViewShape(const aclTensor* tensor, int64_t** viewDims, uint64_t* viewDimsNum) {
  return read_dims("aclGetViewShape", tensor, viewDims, viewDimsNum, &aclTensor::dims);
}
aclnnStatus aclGetStorageShape(const aclTensor* tensor, int64_t** storageDims, uint64_t* storageDimsNum) {
  return read_dims("aclGetStorageShape", tensor, storageDims, storageDimsNum, &aclTensor::storage_dims);
}
aclnnStatus aclGetViewStrides(const aclTensor* tensor, int64_t** stridesValue, uint64_t* stridesNum) {
  return read_dims("aclGetViewStrides", tensor, stridesValue, stridesNum, &aclTensor::strides);
}
aclnnStatus aclGetViewOffset(const aclTensor* tensor, int64_t* offset) {
  return read("aclGetViewOffset", tensor, offset, &aclTensor::offset);
}
aclnnStatus aclGetFormat(const aclTensor* tensor, aclFormat* format) {
  return read("aclGetFormat", tensor, format, &aclTensor::format);
}
aclnnStatus aclGetDataType(const aclTensor* tensor, aclDataType* dataType) {
  return read("aclGetDataType", tensor, dataType, &aclTensor::dtype);
}
aclnnStatus aclGetRawTensorAddr(const aclTensor* tensor, void** addr) {
  return read("aclGetRawTensorAddr", tensor, addr, &aclTensor::data);
}

aclnnStatus aclSetRawTensorAddr(aclTensor* tensor, void* addr) {
  return guarded(ACLNN_ERR_INNER, [&] {
    if (tensor == nullptr) return null_pointer("aclSetRawTensorAddr");
    tensor->data = addr;
    return ACLNN_SUCCESS;
  });
}

aclnnStatus aclGetIntArraySize(const aclIntArray* array, uint64_t* size) {
  return read_size("aclGetIntArraySize", array, size, &aclIntArray::values);
}
aclnnStatus aclGetFloatArraySize(const aclFloatArray* array, uint64_t* size) {
  return read_size("aclGetFloatArraySize", array, size, &aclFloatArray::values);
}
aclnnStatus aclGetBoolArraySize(const aclBoolArray* array, uint64_t* size) {
  return read_size("aclGetBoolArraySize", array, size, &aclBoolArray::values);
}
aclnnStatus aclGetTensorListSize(const aclTensorList* tensorList, uint64_t* size) {
  return read_size("aclGetTensorListSize", tensorList, size, &aclTensorList::members);
}
aclnnStatus aclGetScalarListSize(const aclScalarList* scalarList, uint64_t* size) {
  return read_size("aclGetScalarListSize", scalarList, size, &aclScalarList::members);
}

void aclKvferryDeleteDims(const int64_t* dims) {
  delete[] dims;
}
