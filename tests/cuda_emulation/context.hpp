// SPDX-License-Identifier: Apache-2.0
//
// The context of a kernel on the CPU: the members of DeviceContext, each of which tells the checks first.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backends/cuda/kernel.hpp"
#include "tests/cuda_emulation/machine.hpp"

namespace kvferry::emulation {

using internal::cuda::kAllLanes;
using internal::cuda::Vec16;

// An index that knows the place of its use: operator[] has no second parameter.
struct Index {
  std::int64_t value;
  Location at;

  // NOLINTNEXTLINE(google-explicit-constructor)
  Index(std::integral auto i, Location where = Location::here())
      : value(static_cast<std::int64_t>(i)), at(where) {}
};

template <class T, std::uint32_t N>
class SharedArray {
 public:
  T operator[](Index i) const {
    check(i.value, i.at);
    Machine::busy().read(cells_[i.value], i.at);
    return values_[i.value];
  }
  void set(std::int64_t i, T value, Location at = Location::here()) {
    check(i, at);
    Machine::busy().write(cells_[i], at);
    values_[i] = value;
  }

 private:
  friend class Context;
  static void check(std::int64_t i, Location at) {
    if (i < 0 || i >= N) Machine::busy().fail_index(i, N, at);
  }
  T* update(std::int64_t i, Location at) {
    check(i, at);
    Machine::busy().update(cells_[i], at);
    return &values_[i];
  }

  T values_[N];
  mutable Cell cells_[N];
};

class Context {
 public:
  template <class T, std::uint32_t N>
  using SharedArray = emulation::SharedArray<T, N>;
  using Mbarrier = emulation::Mbarrier;
  static constexpr bool kHasBulkCopy = true;

  Context(Machine& machine, std::uint32_t thread) : machine_(machine), thread_(thread) {}

  std::uint32_t thread() const { return thread_; }
  std::uint32_t threads() const { return machine_.threads(); }
  std::uint32_t block() const { return machine_.block(); }
  std::uint32_t blocks() const { return machine_.blocks(); }
  std::uint32_t lane() const { return thread_ % internal::cuda::kWarp; }
  std::uint32_t warp() const { return thread_ / internal::cuda::kWarp; }

  void sync(Location at = Location::here()) const { machine_.sync(at); }
  void sync_warp(std::uint32_t mask = kAllLanes, Location at = Location::here()) const {
    machine_.warp(WarpOperation::kSync, mask, 0, 0, at);
  }
  template <class T>
  T shfl(T value, std::uint32_t lane, std::uint32_t mask = kAllLanes, Location at = Location::here()) const {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = machine_.warp(WarpOperation::kShuffle, mask, bits, lane % internal::cuda::kWarp, at);
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  template <class T>
  T shfl_up(T value, std::uint32_t by, std::uint32_t mask = kAllLanes, Location at = Location::here()) const {
    return shfl(value, lane() >= by ? lane() - by : lane(), mask, at);
  }
  std::uint32_t ballot(bool predicate, std::uint32_t mask = kAllLanes, Location at = Location::here()) const {
    return static_cast<std::uint32_t>(machine_.warp(WarpOperation::kBallot, mask, predicate ? 1 : 0, 0, at));
  }
  std::uint32_t match_any(std::uint32_t value, std::uint32_t mask = kAllLanes,
                          Location at = Location::here()) const {
    return static_cast<std::uint32_t>(machine_.warp(WarpOperation::kMatch, mask, value, 0, at));
  }

  template <class T>
  T load(const T* p, Location at = Location::here()) const {
    machine_.read(p, sizeof(T), alignof(T), Access::kPlain, at);
    return *p;
  }
  template <class T>
  void store(T* p, T value, Location at = Location::here()) const {
    machine_.write(p, sizeof(T), alignof(T), at);
    *p = value;
  }
  template <class T>
  T load_once(const T* p, Location at = Location::here()) const {
    machine_.read(p, sizeof(T), alignof(T), Access::kOnce, at);
    return *p;
  }
  template <class T>
  void store_once(T* p, T value, Location at = Location::here()) const {
    store(p, value, at);
  }

  template <class T>
  T atomic_add(T* p, T value, Location at = Location::here()) const {
    return add(update(p, at), value);
  }
  template <class T>
  T atomic_min(T* p, T value, Location at = Location::here()) const {
    return min(update(p, at), value);
  }
  template <class T>
  T atomic_cas(T* p, T expected, T desired, Location at = Location::here()) const {
    return cas(update(p, at), expected, desired);
  }
  template <class T, std::uint32_t N>
  T atomic_add(SharedArray<T, N>& a, std::uint32_t i, T value, Location at = Location::here()) const {
    return add(a.update(i, at), value);
  }
  template <class T, std::uint32_t N>
  T atomic_min(SharedArray<T, N>& a, std::uint32_t i, T value, Location at = Location::here()) const {
    return min(a.update(i, at), value);
  }
  template <class T, std::uint32_t N>
  T atomic_cas(SharedArray<T, N>& a, std::uint32_t i, T expected, T desired,
               Location at = Location::here()) const {
    return cas(a.update(i, at), expected, desired);
  }

  std::uint32_t load_acquire(const std::uint32_t* p, Location at = Location::here()) const {
    machine_.acquire(p, at);
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
  }
  void store_release(std::uint32_t* p, std::uint32_t value, Location at = Location::here()) const {
    machine_.release(p, at);
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
  }
  std::uint32_t load_system(const std::uint32_t* p, Location at = Location::here()) const {
    machine_.call_host();
    return load_acquire(p, at);
  }

  template <std::uint32_t N>
  void copy_async(SharedArray<Vec16, N>& a, std::uint32_t i, const Vec16* from,
                  Location at = Location::here()) const {
    a.check(i, at);
    machine_.start_copy({&a.values_[i], &a.cells_[i], from, 1, at});
  }
  void copy_async_commit() const { machine_.commit_copies(); }
  template <std::uint32_t Pending>
  void copy_async_wait() const {
    machine_.wait_for_copies(Pending);
  }

  void mbar_init(Mbarrier& b, std::uint32_t arrivals, Location at = Location::here()) const {
    machine_.init_mbarrier(b, arrivals, at);
  }
  void mbar_arrive_expect(Mbarrier& b, std::uint32_t bytes, Location at = Location::here()) const {
    machine_.arrive(b, bytes, at);
  }
  void mbar_wait(Mbarrier& b, std::uint32_t parity, Location at = Location::here()) const {
    machine_.wait(b, parity, at);
  }
  template <std::uint32_t N>
  void bulk_load(SharedArray<Vec16, N>& a, std::uint32_t i, const Vec16* from, std::uint32_t bytes,
                 Mbarrier& b, Location at = Location::here()) const {
    if (bytes == 0 || bytes % sizeof(Vec16) != 0)
      machine_.fail(FindingKind::kMisaligned, at, "copies " + std::to_string(bytes) + " bytes in bulk");
    const auto vectors = static_cast<std::uint32_t>(bytes / sizeof(Vec16));
    a.check(i, at);
    a.check(std::int64_t{i} + vectors - 1, at);
    machine_.start_copy({&a.values_[i], &a.cells_[i], from, vectors, at, &b});
  }

 private:
  template <class T>
  T* update(T* p, Location at) const {
    machine_.update(p, sizeof(T), at);
    return p;
  }
  template <class T>
  static T add(T* p, T value) {
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
  }
  template <class T>
  static T min(T* p, T value) {
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (value < old &&
           !__atomic_compare_exchange_n(p, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
  }
  template <class T>
  static T cas(T* p, T expected, T desired) {
    __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
  }

  Machine& machine_;
  std::uint32_t thread_;
};

// Kernel K on the calling thread.
template <class K>
Report launch(std::uint32_t blocks, const typename K::Params& params, const LaunchOptions& options = {}) {
  using Params = typename K::Params;
  using Shared = typename K::template Shared<Context>;
  static_assert(std::is_trivially_copyable_v<Params>);
  const Job job = {[](Machine& machine, std::uint32_t thread, void* shared, const void* p) {
                     Context x(machine, thread);
                     K::run(x, *static_cast<Shared*>(shared), *static_cast<const Params*>(p));
                   },
                   []() -> std::shared_ptr<void> { return std::make_shared<Shared>(); }, &params,
                   K::kThreads};
  return Machine::here().launch(job, blocks, options);
}

}  // namespace kvferry::emulation
