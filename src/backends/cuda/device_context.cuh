// SPDX-License-Identifier: Apache-2.0
//
// The context of a kernel on the GPU: the hardware by its names in kernel headers, all of it inlined away.
// The context of the tests, tests/cuda_emulation/context.hpp, has the same members and says what breaks their
// rules.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backends/cuda/kernel.hpp"

namespace kvferry::internal::cuda {

template <class T, std::uint32_t N>
class DeviceSharedArray {
 public:
  __device__ __forceinline__ T operator[](std::uint32_t i) const { return values_[i]; }
  __device__ __forceinline__ void set(std::uint32_t i, T value) { values_[i] = value; }
  __device__ __forceinline__ T* address(std::uint32_t i) { return &values_[i]; }  // for contexts

 private:
  T values_[N];
};

struct DeviceMbarrier {
  std::uint64_t bits;
};

class DeviceContext {
  // The type of CUDA's atomics with the size and sign of T.
  template <class T>
  using Atomic = std::conditional_t<sizeof(T) == 8,
                                    std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>,
                                    std::conditional_t<std::is_signed_v<T>, int, unsigned>>;
  template <class T>
  __device__ __forceinline__ static Atomic<T>* atomic(T* p) {
    static_assert(sizeof(T) == sizeof(Atomic<T>));
    return reinterpret_cast<Atomic<T>*>(p);
  }
  // Addition and comparison for equality are the same for both signs; CUDA has them unsigned in 64 bits.
  template <class T>
  __device__ __forceinline__ static auto* unsigned_atomic(T* p) {
    return atomic(reinterpret_cast<std::make_unsigned_t<T>*>(p));
  }
  __device__ __forceinline__ static std::uint32_t shared_address(const void* p) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
  }

 public:
  template <class T, std::uint32_t N>
  using SharedArray = DeviceSharedArray<T, N>;
  using Mbarrier = DeviceMbarrier;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static constexpr bool kHasBulkCopy = true;
#else
  static constexpr bool kHasBulkCopy = false;
#endif

  __device__ __forceinline__ std::uint32_t thread() const {
    return threadIdx.x;
  }
  __device__ __forceinline__ std::uint32_t threads() const {
    return blockDim.x;
  }
  __device__ __forceinline__ std::uint32_t block() const {
    return blockIdx.x;
  }
  __device__ __forceinline__ std::uint32_t blocks() const {
    return gridDim.x;
  }
  __device__ __forceinline__ std::uint32_t lane() const {
    return threadIdx.x % kWarp;
  }
  __device__ __forceinline__ std::uint32_t warp() const {
    return threadIdx.x / kWarp;
  }

  __device__ __forceinline__ void sync() const {
    __syncthreads();
  }
  __device__ __forceinline__ void sync_warp(std::uint32_t mask = kAllLanes) const {
    __syncwarp(mask);
  }
  template <class T>
  __device__ __forceinline__ T shfl(T value, std::uint32_t lane, std::uint32_t mask = kAllLanes) const {
    return __shfl_sync(mask, value, static_cast<int>(lane));
  }
  template <class T>
  __device__ __forceinline__ T shfl_up(T value, std::uint32_t by, std::uint32_t mask = kAllLanes) const {
    return __shfl_up_sync(mask, value, by);
  }
  __device__ __forceinline__ std::uint32_t ballot(bool predicate, std::uint32_t mask = kAllLanes) const {
    return __ballot_sync(mask, predicate);
  }
  __device__ __forceinline__ std::uint32_t match_any(std::uint32_t value,
                                                     std::uint32_t mask = kAllLanes) const {
    return __match_any_sync(mask, value);
  }

  template <class T>
  __device__ __forceinline__ T load(const T* p) const {
    return *p;
  }
  template <class T>
  __device__ __forceinline__ void store(T* p, T value) const {
    *p = value;
  }
  // Streaming: read or written once, first to leave the caches. What load_once reads, nobody writes during
  // the launch: 16 bytes take the non-coherent path.
  template <class T>
  __device__ __forceinline__ T load_once(const T* p) const {
    return __ldcs(p);
  }
  template <class T>
  __device__ __forceinline__ void store_once(T* p, T value) const {
    __stcs(p, value);
  }
  __device__ __forceinline__ Vec16 load_once(const Vec16* p) const {
    Vec16 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
  }
  __device__ __forceinline__ void store_once(Vec16* p, Vec16 v) const {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
  }

  // Integers of 4 and 8 bytes, relaxed, of the whole device or of the block.
  template <class T>
  __device__ __forceinline__ T atomic_add(T* p, T value) const {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(atomicAdd(unsigned_atomic(p), static_cast<U>(value)));
  }
  template <class T>
  __device__ __forceinline__ T atomic_min(T* p, T value) const {
    return static_cast<T>(atomicMin(atomic(p), value));
  }
  template <class T>
  __device__ __forceinline__ T atomic_cas(T* p, T expected, T desired) const {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(atomicCAS(unsigned_atomic(p), static_cast<U>(expected), static_cast<U>(desired)));
  }
  template <class T, std::uint32_t N>
  __device__ __forceinline__ T atomic_add(DeviceSharedArray<T, N>& a, std::uint32_t i, T value) const {
    return atomic_add(a.address(i), value);
  }
  template <class T, std::uint32_t N>
  __device__ __forceinline__ T atomic_min(DeviceSharedArray<T, N>& a, std::uint32_t i, T value) const {
    return atomic_min(a.address(i), value);
  }
  template <class T, std::uint32_t N>
  __device__ __forceinline__ T atomic_cas(DeviceSharedArray<T, N>& a, std::uint32_t i, T expected,
                                          T desired) const {
    return atomic_cas(a.address(i), expected, desired);
  }

  // A word of 4 bytes that orders what is around it: what was written before the release is seen after the
  // acquire that reads it. Between the threads of the device, and (load_system) with the host.
  __device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* p) const {
    std::uint32_t value;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
  }
  __device__ __forceinline__ void store_release(std::uint32_t* p, std::uint32_t value) const {
    asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
  }
  __device__ __forceinline__ std::uint32_t load_system(const std::uint32_t* p) const {
    std::uint32_t value;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
  }

  // 16 bytes from global to shared memory past the first-level cache. copy_async_wait<n> waits for all groups
  // of this thread but the last n; other threads see the bytes after a barrier behind it.
  template <std::uint32_t N>
  __device__ __forceinline__ void copy_async(DeviceSharedArray<Vec16, N>& a, std::uint32_t i,
                                             const Vec16* from) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(a.address(i))), "l"(from)
                 : "memory");
  }
  __device__ __forceinline__ void copy_async_commit() const {
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  template <std::uint32_t Pending>
  __device__ __forceinline__ void copy_async_wait() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
  }

  // Bulk copies (kHasBulkCopy): any multiple of 16 bytes by one thread, announced to an mbarrier. The other
  // threads see the mbarrier after a barrier behind mbar_init.
  __device__ __forceinline__ void mbar_init(DeviceMbarrier& b, std::uint32_t arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&b)), "r"(arrivals)
                 : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __device__ __forceinline__ void mbar_arrive_expect(DeviceMbarrier& b, std::uint32_t bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&b)),
                 "r"(bytes)
                 : "memory");
  }
  // Until the phase of this parity is complete; the first phase has parity 0.
  __device__ __forceinline__ void mbar_wait(DeviceMbarrier& b, std::uint32_t parity) const {
    asm volatile(
        "{\n"
        "  .reg .pred done;\n"
        "WAIT:\n"
        "  mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "  @!done bra WAIT;\n"
        "}" ::"r"(shared_address(&b)),
        "r"(parity)
        : "memory");
  }
  template <std::uint32_t N>
  __device__ __forceinline__ void bulk_load(DeviceSharedArray<Vec16, N>& a, std::uint32_t i,
                                            const Vec16* from, std::uint32_t bytes, DeviceMbarrier& b) const {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(a.address(i))),
        "l"(from), "r"(bytes), "r"(shared_address(&b))
        : "memory");
  }
};

}  // namespace kvferry::internal::cuda
