// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/launch.cuh"
#include "backends/cuda/selection_copy.hpp"

namespace kvferry::internal::cuda {

template cudaError_t launch<SelectionCopy>(const SelectionCopy::Params&, std::uint32_t, cudaStream_t);

}  // namespace kvferry::internal::cuda
