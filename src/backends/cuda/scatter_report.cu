// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/launch.cuh"
#include "backends/cuda/scatter_report.hpp"

namespace kvferry::internal::cuda {

template cudaError_t launch<ScatterReport>(const ScatterReport::Params&, std::uint32_t, cudaStream_t);

}  // namespace kvferry::internal::cuda
