# SPDX-License-Identifier: Apache-2.0
"""`import kvferry.compat.npu` gives CPU and CUDA tensors the operators of torch_npu and of CANN's custom operators:

    torch.ops.npu.npu_gather_pa_kv_cache            torch.ops.npu.npu_gather_pa_kv_cache_functional
    torch.ops.npu.npu_scatter_pa_kv_cache
    torch.ops.custom.npu_gather_selection_kv_cache  torch.ops.custom.npu_gather_selection_kv_cache_functional
    torch.ops.custom.npu_group_memcpy

Arguments, order and defaults are the published ones; npu_gather_pa_kv_cache also takes cache_mode: None is
"PA_NZ" if key has two dimensions, else "Norm". npu_scatter_pa_kv_cache's default is "PA_NZ", as published.
npu_group_memcpy is in `custom` because that is where CANN's operators outside of torch_npu are.

If one of them is defined already, as with torch_npu, the import fails and defines none.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

import kvferry
from kvferry._torch_library import Operators
from kvferry.torch import fake_selection

__all__: list[str] = []

_npu, _custom = Operators("npu"), Operators("custom")
_calls: Any = kvferry  # the schemas have looked at the types


def _gather(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cache_mode: str | None = None,
    **options: Any,
) -> None:
    mode = cache_mode or ("PA_NZ" if key.dim() == 2 else "Norm")
    _calls.gather_pa_kv_cache(
        key_cache, value_cache, block_tables, seq_lens, key, value, cache_mode=mode, **options
    )


def _copy_key_and_value(*args: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    return args[4].clone(), args[5].clone()


def _gather_functional(*args: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    key, value = _copy_key_and_value(*args)
    _gather(args[0], args[1], args[2], args[3], key, value, **options)
    return key, value


def _scatter(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    cache_mode: str = "PA_NZ",
    **unsupported: Tensor | None,
) -> None:
    for name, tensor in unsupported.items():
        if tensor is not None:
            raise NotImplementedError(
                f"npu_scatter_pa_kv_cache: {name} selects a compressing mode, which KVFerry does not have"
            )
    try:
        _calls.scatter_pa_kv_cache(key, value, key_cache, value_cache, slot_mapping, cache_mode=cache_mode)
    except ValueError as error:
        if cache_mode != "PA_NZ" or key_cache.shape[2:] != key.shape[1:]:
            raise
        raise ValueError(
            f"{error}; PA_NZ is the default of npu_scatter_pa_kv_cache: for caches "
            "[blocks, block size, heads, head size] write cache_mode='Norm'"
        ) from None


def _new_actual_seq(*args: Tensor, **options: Any) -> Tensor:
    return args[2].new_empty(args[2].shape[0])


def _selection(*args: Tensor, **options: Any) -> Tensor:
    actual_seq = _new_actual_seq(*args)
    _calls.gather_selection_kv_cache(*args, actual_seq, **options)
    return actual_seq


def _group_memcpy(addr_table: Tensor, copy_bytes: int) -> None:
    _calls.group_memcpy(addr_table, copy_bytes)


for _operators, _name in (
    (_npu, "npu_gather_pa_kv_cache"),
    (_npu, "npu_gather_pa_kv_cache_functional"),
    (_npu, "npu_scatter_pa_kv_cache"),
    (_custom, "npu_gather_selection_kv_cache"),
    (_custom, "npu_gather_selection_kv_cache_functional"),
    (_custom, "npu_group_memcpy"),
):
    if _operators.defined(_name):
        raise ImportError(
            f"kvferry.compat.npu: torch.ops.{_operators.namespace}.{_name} is defined already, by torch_npu "
            "or CANN's custom operators: use that one, or kvferry.torch"
        )

_CACHES = "Tensor key_cache, Tensor value_cache, Tensor block_tables, Tensor seq_lens"
_GATHER = "*, Tensor? seq_offset=None, bool is_seq_lens_cumsum=False, str? cache_mode=None"
_npu.define(f"npu_gather_pa_kv_cache({_CACHES}, Tensor(a!) key, Tensor(b!) value, {_GATHER}) -> ()", _gather)
_npu.define(
    f"npu_gather_pa_kv_cache_functional({_CACHES}, Tensor key, Tensor value, {_GATHER}) -> (Tensor, Tensor)",
    _gather_functional,
    fake=_copy_key_and_value,
)
_npu.define(
    "npu_scatter_pa_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_mapping, *, Tensor? compress_lens=None, Tensor? compress_seq_offsets=None, "
    "Tensor? seq_lens=None, str cache_mode='PA_NZ') -> ()",
    _scatter,
)

_FULL = (
    "Tensor selection_topk_indices, Tensor full_k_rope, Tensor full_kv_cache, Tensor full_kv_block_table, "
    "Tensor full_kv_actual_seq, Tensor full_q_actual_seq, *, int selection_topk_block_size=64"
)
_custom.define(
    "npu_gather_selection_kv_cache(Tensor(a!) selection_k_rope, Tensor(b!) selection_kv_cache, "
    f"Tensor(c!) selection_kv_block_table, Tensor(d!) selection_kv_block_status, {_FULL}) -> Tensor",
    _selection,
    fake=_new_actual_seq,
)
_custom.define(
    "npu_gather_selection_kv_cache_functional(Tensor selection_k_rope, Tensor selection_kv_cache, "
    f"Tensor selection_kv_block_table, Tensor selection_kv_block_status, {_FULL}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    kvferry.gather_selection_kv_cache_functional,
    fake=fake_selection,
)
_custom.define("npu_group_memcpy(Tensor addr_table, int copy_bytes) -> ()", _group_memcpy, effect=True)
