// SPDX-License-Identifier: Apache-2.0
//
// What is used of DLPack's ABI, version 1 (https://dmlc.github.io/dlpack): tensors in capsules, and the table
// of functions that a type offers as __dlpack_c_exchange_api__.
#pragma once

#include <cstdint>

namespace kvferry::python::dlpack {

inline constexpr std::uint32_t kMajor = 1;

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

enum DeviceNumber : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBFloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4M3FN = 10,
  kFloat8E5M2 = 12,
};

struct Device {
  std::int32_t type;
  std::int32_t index;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  DataType dtype;
  const std::int64_t* shape;
  const std::int64_t* strides;  // elements; null: dense
  std::uint64_t byte_offset;
};

// In capsules named "dltensor". Those of others are only read: the capsule's destructor calls the deleter.
struct ManagedTensor {
  Tensor tensor;
  void* manager;
  void (*deleter)(ManagedTensor*);
};

inline constexpr std::uint64_t kReadOnly = 1;
inline constexpr std::uint64_t kCopied = 2;

// In capsules named "dltensor_versioned".
struct VersionedTensor {
  Version version;
  void* manager;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  Tensor tensor;
};

// How an allocator tells what went wrong.
using SetError = void (*)(void* to, const char* kind, const char* message);

// In capsules named "dlpack_exchange_api". Functions that are not called here have no type; all return -1
// where they fail.
struct ExchangeApi {
  Version version;
  const ExchangeApi* older;
  // A tensor like the prototype, which has no data, from the framework's allocator on its current stream.
  int (*allocate)(Tensor* prototype, VersionedTensor** out, void* error, SetError set_error);
  void (*export_managed)();
  void (*import_managed)();
  // Fills a tensor that the object keeps owning. -1: a Python error is set. May be null.
  int (*borrow)(void* object, Tensor* out);
  // The stream that the framework launches on. -1: a Python error is set.
  int (*current_stream)(std::int32_t device_type, std::int32_t device_index, void** out);
};

}  // namespace kvferry::python::dlpack
