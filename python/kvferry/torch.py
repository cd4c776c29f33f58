# SPDX-License-Identifier: Apache-2.0
"""`import kvferry.torch` registers torch.ops.kvferry.*: the operators for PyTorch programs, compiled too.

    gather_pa_kv_cache      scatter_pa_kv_cache     gather_selection_kv_cache   group_memcpy
    copy_blocks             swap_blocks             transfer_layers             gather_dequant

take the arguments of the functions of `kvferry` with the same names, in their order and with their defaults,
but for `context` and `error_record` (they run with the default context) and the strides and offsets of
scatter_mode "Nct", for which a strided view does. `<operator>_functional` returns new tensors instead of
writing to what it is given; an optional tensor that is None comes back empty.

Tensors are on the CPU, or on a CUDA device with pinned memory of the host beside it: then work is enqueued on
torch's current stream of the device, and scratch memory comes from torch. There are no derivatives: in grad mode, a tensor that requires grad is refused.

group_memcpy writes to addresses, which no schema can name: it has no functional form. A compiled graph never
drops a call, and keeps calls in order, but does not know what memory they touch: tensors behind the addresses
must not be read or written by the same graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import kvferry
from kvferry._torch_library import Operators

__all__: list[str] = []

_operators = Operators("kvferry")
_POLICY = "str index_policy='default'"
_COUNT = f"Tensor? count=None, {_POLICY}"
_LENGTHS = f"Tensor? seq_offset=None, bool is_seq_lens_cumsum=False, {_POLICY}"


def _tensor(result: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0) if result is None else result


# gather_pa_kv_cache


def _fake_gather(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    num_tokens: int,
    *,
    cache_mode: str = "Norm",
    **options: Any,
) -> tuple[Tensor, Tensor]:
    def rows(cache: Tensor) -> Tensor:
        row = (cache.shape[1] * cache.shape[3],) if cache_mode == "PA_NZ" else cache.shape[2:]
        return cache.new_empty((num_tokens, *row))

    return rows(key_cache), rows(value_cache)


_CACHES = "Tensor key_cache, Tensor value_cache, Tensor block_tables, Tensor seq_lens"
_GATHER = f"*, str cache_mode='Norm', {_LENGTHS}"
_operators.define(
    f"gather_pa_kv_cache({_CACHES}, Tensor(a!) key, Tensor(b!) value, {_GATHER}) -> ()",
    kvferry.gather_pa_kv_cache,
)
_operators.define(
    f"gather_pa_kv_cache_functional({_CACHES}, SymInt num_tokens, {_GATHER}) -> (Tensor, Tensor)",
    kvferry.gather_pa_kv_cache_functional,
    fake=_fake_gather,
)


# scatter_pa_kv_cache


def _scatter(key: Tensor, value: Tensor | None, *caches: Any, **options: Any) -> tuple[Tensor, Tensor]:
    keys, values = kvferry.scatter_pa_kv_cache_functional(key, value, *caches, **options)
    return keys, _tensor(values, keys)


def _fake_scatter(
    key: Tensor, value: Tensor | None, key_cache: Tensor, value_cache: Tensor | None, *_: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    return key_cache.clone(), _tensor(value_cache, key_cache).clone()


_TOKENS = "Tensor key, Tensor? value"
_SCATTER = f"Tensor slot_mapping, *, str cache_mode='Norm', str scatter_mode='None', {_POLICY}"
_operators.define(
    f"scatter_pa_kv_cache({_TOKENS}, Tensor(a!) key_cache, Tensor(b!)? value_cache, {_SCATTER}) -> ()",
    kvferry.scatter_pa_kv_cache,
)
_operators.define(
    f"scatter_pa_kv_cache_functional({_TOKENS}, Tensor key_cache, Tensor? value_cache, {_SCATTER}) "
    "-> (Tensor, Tensor)",
    _scatter,
    fake=_fake_scatter,
)


# gather_selection_kv_cache


def _selection(*args: Any, **options: Any) -> tuple[Tensor, ...]:
    actual_seq, k_rope, kv_cache, *state = kvferry.gather_selection_kv_cache_functional(*args, **options)
    return actual_seq, _tensor(k_rope, kv_cache), kv_cache, *state


def fake_selection(
    selection_k_rope: Tensor | None,
    selection_kv_cache: Tensor,
    selection_kv_block_table: Tensor,
    selection_kv_block_status: Tensor,
    *_: Any,
    **options: Any,
) -> tuple[Tensor, ...]:
    """Also that of kvferry.compat.npu."""
    return (
        selection_kv_block_table.new_empty(selection_kv_block_table.shape[0]),
        _tensor(selection_k_rope, selection_kv_cache).clone(),
        selection_kv_cache.clone(),
        selection_kv_block_table.clone(),
        selection_kv_block_status.clone(),
    )


_FULL = (
    "Tensor selection_topk_indices, Tensor? full_k_rope, Tensor full_kv_cache, Tensor full_kv_block_table, "
    "Tensor full_kv_actual_seq, Tensor? full_q_actual_seq"
)
_SELECTION = "int selection_topk_block_size=64, str q_len_mode='counts', Tensor? status_row=None"
_operators.define(
    "gather_selection_kv_cache(Tensor(a!)? selection_k_rope, Tensor(b!) selection_kv_cache, "
    f"Tensor selection_kv_block_table, Tensor(c!) selection_kv_block_status, {_FULL}, "
    f"Tensor(d!) selection_kv_actual_seq, *, {_SELECTION}, Tensor(e!)? counters=None, "
    f"Tensor(f!)? fetch_counts=None, {_POLICY}) -> ()",
    kvferry.gather_selection_kv_cache,
)
_operators.define(
    "gather_selection_kv_cache_functional(Tensor? selection_k_rope, Tensor selection_kv_cache, "
    f"Tensor selection_kv_block_table, Tensor selection_kv_block_status, {_FULL}, *, {_SELECTION}, "
    f"{_POLICY}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _selection,
    fake=fake_selection,
)


# group_memcpy


_operators.define(
    "group_memcpy(Tensor addr_table, int copy_bytes=0, *, Tensor? sizes=None, Tensor? count=None, "
    "int? host_count=None, bool skip_null=False, bool checked=False) -> ()",
    kvferry.group_memcpy,
    effect=True,
)


# copy_blocks, swap_blocks


_operators.define(f"copy_blocks(Tensor(a!)[] caches, Tensor mapping, *, {_COUNT}) -> ()", kvferry.copy_blocks)
_operators.define(
    f"copy_blocks_functional(Tensor[] caches, Tensor mapping, *, {_COUNT}) -> Tensor[]",
    kvferry.copy_blocks_functional,
    fake=lambda caches, *_, **options: [cache.clone() for cache in caches],
)
_operators.define(
    f"swap_blocks(Tensor[] src, Tensor(a!)[] dst, Tensor mapping, *, {_COUNT}) -> ()", kvferry.swap_blocks
)
_operators.define(
    f"swap_blocks_functional(Tensor[] src, Tensor[] dst, Tensor mapping, *, {_COUNT}) -> Tensor[]",
    kvferry.swap_blocks_functional,
    fake=lambda src, dst, *_, **options: [cache.clone() for cache in dst],
)


# transfer_layers


def _fake_chunk(
    key_caches: Sequence[Tensor],
    value_caches: Sequence[Tensor] | None,
    block_ids: Tensor,
    *,
    chunk_layout: str = "layer_first",
    **options: Any,
) -> Tensor:
    layers, blocks = len(key_caches), block_ids.shape[0]
    outer = (layers, blocks) if chunk_layout == "layer_first" else (blocks, layers)
    return key_caches[0].new_empty((*outer, 2 if value_caches else 1, *key_caches[0].shape[1:]))


# Either side may be the one that is written.
_operators.define(
    "transfer_layers(Tensor(a!)[] key_caches, Tensor(b!)[]? value_caches, Tensor(c!) chunk, "
    f"Tensor block_ids, *, str chunk_layout='layer_first', str direction='pools_to_chunk', {_POLICY}) -> ()",
    kvferry.transfer_layers,
)
_operators.define(
    "transfer_layers_functional(Tensor[] key_caches, Tensor[]? value_caches, Tensor block_ids, *, "
    f"str chunk_layout='layer_first', {_POLICY}) -> Tensor",
    kvferry.transfer_layers_functional,
    fake=_fake_chunk,
)


# gather_dequant


_QUANTISED = "Tensor cache, Tensor block_tables, Tensor seq_lens"
_operators.define(
    f"gather_dequant({_QUANTISED}, Tensor(a!) out, *, {_LENGTHS}) -> ()", kvferry.gather_dequant
)
_operators.define(
    f"gather_dequant_functional({_QUANTISED}, SymInt num_tokens, *, {_LENGTHS}) -> Tensor",
    kvferry.gather_dequant_functional,
    fake=lambda cache, tables, lens, num_tokens, **options: cache.new_empty(
        (num_tokens, 576), dtype=torch.bfloat16
    ),
)
