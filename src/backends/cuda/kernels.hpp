// SPDX-License-Identifier: Apache-2.0
//
// The one list of kernels: the library launches what is in it, a .cu file instantiates it for GPUs
// (<name>.cu), the tests execute it.
#pragma once

#include <cstddef>
#include <type_traits>

#include "backends/cuda/block_copy.hpp"
#include "backends/cuda/group_copy.hpp"
#include "backends/cuda/layer_transfer.hpp"
#include "backends/cuda/paged_dequant.hpp"
#include "backends/cuda/paged_gather.hpp"
#include "backends/cuda/paged_reads.hpp"
#include "backends/cuda/paged_scatter.hpp"
#include "backends/cuda/scatter_report.hpp"
#include "backends/cuda/selection_copy.hpp"
#include "backends/cuda/selection_planner.hpp"
#include "backends/cuda/selection_states.hpp"

namespace kvferry::internal::cuda {

template <class... Kernel>
struct KernelList {
  static constexpr std::size_t kSize = sizeof...(Kernel);
  template <class K>
  static constexpr std::size_t index() {
    constexpr bool kSame[] = {std::is_same_v<K, Kernel>...};
    std::size_t i = 0;
    while (i < kSize && !kSame[i]) ++i;
    return i;
  }
};

using Kernels =
    KernelList<BlockCopy, BlockCopyGiven, BlockReport, GroupCopy, GroupCopyGiven, GroupCopySized, GroupSums,
               LayerReport, LayerTransfer, PagedCut, PagedDequant, PagedGather, PagedScatter, ScatterReport,
               SelectionCopy, SelectionFinish, SelectionPlanner, SelectionStates>;

}  // namespace kvferry::internal::cuda
