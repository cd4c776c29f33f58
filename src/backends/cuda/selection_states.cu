// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/launch.cuh"
#include "backends/cuda/selection_states.hpp"

namespace kvferry::internal::cuda {

template cudaError_t launch<SelectionStates>(const SelectionStates::Params&, std::uint32_t, cudaStream_t);
template cudaError_t launch<SelectionFinish>(const SelectionFinish::Params&, std::uint32_t, cudaStream_t);

}  // namespace kvferry::internal::cuda
