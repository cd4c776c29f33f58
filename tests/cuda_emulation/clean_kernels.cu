// SPDX-License-Identifier: Apache-2.0
//
// Whether nvcc accepts every member of DeviceContext, and both ways to launch. Nobody calls these.
#include "tests/cuda_emulation/clean_kernels.hpp"

#include "backends/cuda/launch.cuh"

namespace kvferry::internal::cuda {

// More shared memory than a kernel has without asking.
struct Large : TreeSum {
  template <class X>
  struct Shared : TreeSum::Shared<X> {
    SharedArray<X, Vec16, 4096> room;
  };
  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    TreeSum::run(x, sh, p);
  }
};

template cudaError_t launch<TreeSum>(const TreeSum::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<WarpOperations>(const WarpOperations::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<LastBlock>(const LastBlock::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<Doorbell>(const Doorbell::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<AsyncRing>(const AsyncRing::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<BulkRows>(const BulkRows::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<Add>(const Add::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<Large>(const Large::Params&, std::uint32_t, cudaStream_t);

}  // namespace kvferry::internal::cuda
