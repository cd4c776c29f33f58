// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/launch.cuh"
#include "backends/cuda/layer_transfer.hpp"

namespace kvferry::internal::cuda {

template cudaError_t launch<LayerTransfer>(const LayerTransfer::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<LayerReport>(const LayerReport::Params&, std::uint32_t, cudaStream_t);

}  // namespace kvferry::internal::cuda
