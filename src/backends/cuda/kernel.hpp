// SPDX-License-Identifier: Apache-2.0
//
// What a kernel header needs: one source that nvcc compiles for the GPU and the C++ compiler for the tests,
// which execute it thread by thread and check every access.
//
// A kernel is a struct:
//
//   struct Kernel {
//     struct Params { ... };                        // trivially copyable, no raw pointers
//     static constexpr std::uint32_t kThreads = 256;  // of a block
//     static constexpr std::uint32_t kMinBlocks = 4;  // on a multiprocessor: bounds the registers
//     template <class X>
//     struct Shared { SharedArray<X, std::uint32_t, 256> sums; };
//     template <class X>
//     KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p);
//   };
//
// `x` is the context, DeviceContext on the GPU: all that CUDA adds to C++ is a member of it, and memory is
// read and written through it only. Shared arrays are read as a[i] and written with a.set(i, value): by
// value, so that both sides see every access. A kernel header includes no CUDA header and has no #if; a test
// holds that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#define KVFERRY_KERNEL_FN __device__ __forceinline__
#else
#define KVFERRY_KERNEL_FN inline
#endif

namespace kvferry::internal::cuda {

inline constexpr std::uint32_t kWarp = 32;
inline constexpr std::uint32_t kAllLanes = 0xffffffffU;

// What every driver takes.
inline constexpr std::size_t kMostParameterBytes = 4096;

// One load or store of 16 bytes.
struct alignas(16) Vec16 {
  std::uint32_t x, y, z, w;
};

template <class X, class T, std::uint32_t N>
using SharedArray = typename X::template SharedArray<T, N>;

namespace detail {

// An address with the memory that it belongs to in its type. Made by name only: a host pointer that is handed
// to a device parameter does not compile.
template <class T, class Space>
class TypedPtr {
 public:
  TypedPtr() = default;
  // `address` as the device sees it.
  static TypedPtr at(T* address) {
    TypedPtr pointer;
    pointer.address_ = address;
    return pointer;
  }
  // Of non-const for const.
  template <class U>
  requires(!std::is_same_v<U, T> && std::is_convertible_v<U*, T*>)
      // NOLINTNEXTLINE(google-explicit-constructor)
      TypedPtr(TypedPtr<U, Space> other)
      : address_(other.address_) {}

  KVFERRY_KERNEL_FN T* get() const { return address_; }

 private:
  template <class U, class S>
  friend class TypedPtr;
  T* address_ = nullptr;
};
struct DeviceSpace;
struct MappedSpace;

}  // namespace detail

// Memory of the device.
template <class T>
using DevicePtr = detail::TypedPtr<T, detail::DeviceSpace>;
// Host memory that is mapped into the device, by its device address.
template <class T>
using MappedPtr = detail::TypedPtr<T, detail::MappedSpace>;

// Those of the standard library are not callable from device code.
template <class T>
KVFERRY_KERNEL_FN T least(T a, T b) {
  return b < a ? b : a;
}
template <class T>
KVFERRY_KERNEL_FN T most(T a, T b) {
  return a < b ? b : a;
}
// The lowest set bit; 0 for 0.
KVFERRY_KERNEL_FN std::uint32_t lowest_bit(std::uint32_t bits) {
  return bits & (0U - bits);
}

// The same bits, as std::bit_cast.
template <class To, class From>
KVFERRY_KERNEL_FN To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

}  // namespace kvferry::internal::cuda
