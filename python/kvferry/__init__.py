# SPDX-License-Identifier: Apache-2.0
"""Operators that move KV caches of LLM inference.

The functions work in place on tensors of any framework: NumPy arrays, and objects that offer their memory by
DLPack, such as those of torch, JAX and CuPy. Nothing is copied that the operator does not say. `plan_<operator>`
checks a call once, to run it many times; `<operator>_functional` returns new tensors instead.

Errors: ValueError for what breaks a rule of the operator, TypeError for what is no tensor, IndexError for a bad
index under index_policy="reject", NotImplementedError, RuntimeError for what this machine cannot do, MemoryError.
On any error nothing is written.
"""

from ._core import (
    BAD_COLUMN,
    BAD_DESTINATION,
    BAD_DUPLICATE,
    BAD_KEY,
    BAD_SOURCE,
    BAD_VALUE,
    BackendInfo,
    Context,
    CopyBlocksPlan,
    ErrorRecord,
    GatherDequantPlan,
    GatherPaKvCachePlan,
    GatherSelectionKvCachePlan,
    GroupMemcpyPlan,
    ScatterPaKvCachePlan,
    Stream,
    SwapBlocksPlan,
    TransferLayersPlan,
    backends,
    copy_blocks,
    gather_dequant,
    gather_pa_kv_cache,
    gather_selection_kv_cache,
    group_memcpy,
    plan_copy_blocks,
    plan_gather_dequant,
    plan_gather_pa_kv_cache,
    plan_gather_selection_kv_cache,
    plan_group_memcpy,
    plan_scatter_pa_kv_cache,
    plan_swap_blocks,
    plan_transfer_layers,
    scatter_pa_kv_cache,
    swap_blocks,
    transfer_layers,
    version,
)
from .functional import (
    copy_blocks_functional,
    gather_dequant_functional,
    gather_pa_kv_cache_functional,
    gather_selection_kv_cache_functional,
    scatter_pa_kv_cache_functional,
    swap_blocks_functional,
    transfer_layers_functional,
)

__version__ = version

__all__ = [
    "BAD_COLUMN",
    "BAD_DESTINATION",
    "BAD_DUPLICATE",
    "BAD_KEY",
    "BAD_SOURCE",
    "BAD_VALUE",
    "BackendInfo",
    "Context",
    "CopyBlocksPlan",
    "ErrorRecord",
    "GatherDequantPlan",
    "GatherPaKvCachePlan",
    "GatherSelectionKvCachePlan",
    "GroupMemcpyPlan",
    "ScatterPaKvCachePlan",
    "Stream",
    "SwapBlocksPlan",
    "TransferLayersPlan",
    "__version__",
    "backends",
    "copy_blocks",
    "copy_blocks_functional",
    "gather_dequant",
    "gather_dequant_functional",
    "gather_pa_kv_cache",
    "gather_pa_kv_cache_functional",
    "gather_selection_kv_cache",
    "gather_selection_kv_cache_functional",
    "group_memcpy",
    "plan_copy_blocks",
    "plan_gather_dequant",
    "plan_gather_pa_kv_cache",
    "plan_gather_selection_kv_cache",
    "plan_group_memcpy",
    "plan_scatter_pa_kv_cache",
    "plan_swap_blocks",
    "plan_transfer_layers",
    "scatter_pa_kv_cache",
    "scatter_pa_kv_cache_functional",
    "swap_blocks",
    "swap_blocks_functional",
    "transfer_layers",
    "transfer_layers_functional",
    "version",
]
