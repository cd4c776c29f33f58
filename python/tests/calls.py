# SPDX-License-Identifier: Apache-2.0
"""One small valid call of each operator, as NumPy arrays by the names of the API."""

from __future__ import annotations

from typing import Any

import numpy as np

from support import EXTENDED, dtype_of

OUTPUTS = {
    "gather_pa_kv_cache": ("key", "value"),
    **({"gather_dequant": ("out",)} if EXTENDED else {}),
    "scatter_pa_kv_cache": ("key_cache", "value_cache"),
    "gather_selection_kv_cache": (
        "selection_k_rope",
        "selection_kv_cache",
        "selection_kv_block_status",
        "selection_kv_actual_seq",
        "counters",
        "fetch_counts",
    ),
    "copy_blocks": ("caches",),
    "swap_blocks": ("dst",),
    "transfer_layers": ("chunk",),
    "group_memcpy": (),
}
OPTIONAL = (
    "seq_offset",
    "value",
    "value_cache",
    "count",
    "sizes",
    "status_row",
    "counters",
    "fetch_counts",
    "value_caches",
)
OPTIONS = {
    "group_memcpy": {"copy_bytes": 8},
    "gather_selection_kv_cache": {"selection_topk_block_size": 2},
}


def tensors(op: str) -> dict[str, Any]:
    """New arrays at each call; no zero byte in what is read, only zeros in what is written."""

    def data(*shape: int, dtype: str = "float16") -> Any:
        return np.arange(1, 1 + np.prod(shape), dtype="int64").astype(dtype).reshape(shape)

    def zeros(*shape: int, dtype: str = "float16") -> Any:
        return np.zeros(shape, dtype_of(dtype))

    def ints(*values: Any) -> Any:
        return np.array(values, np.int32)

    if op == "gather_pa_kv_cache":
        return {
            "key_cache": data(4, 2, 3, 8),
            "value_cache": data(5, 2, 1, 16, dtype="float32"),
            "block_tables": ints([0, 1], [2, 3]),
            "seq_lens": ints(3, 2),
            "key": zeros(5, 3, 8),
            "value": zeros(5, 1, 16, dtype="float32"),
            "seq_offset": ints(0, 2),
        }
    if op == "gather_dequant":
        cache = data(3, 2, 656, dtype="uint8")
        cache[..., 512:528] = np.ones(4, "<f4").view(np.uint8)
        return {
            "cache": cache,
            "block_tables": ints([0, 1], [2, 0]),
            "seq_lens": ints(3, 2),
            "out": zeros(5, 576, dtype="bfloat16"),
            "seq_offset": ints(0, 0),
        }
    if op == "scatter_pa_kv_cache":
        return {
            "key": data(3, 2, 4),
            "value": data(3, 1, 5, dtype="int8"),
            "key_cache": zeros(4, 2, 2, 4),
            "value_cache": zeros(5, 2, 1, 5, dtype="int8"),
            "slot_mapping": ints(5, -1, 2),
        }
    if op == "gather_selection_kv_cache":
        return {
            "selection_k_rope": zeros(4, 2, 3),
            "selection_kv_cache": zeros(4, 2, 5),
            "selection_kv_block_table": ints([0, 1], [2, 3]),
            "selection_kv_block_status": np.zeros((2, 1, 1, 3), np.int32),
            "selection_topk_indices": ints([[[1, 0]]], [[[0, 2]]]),
            "full_k_rope": data(5, 4, 3),
            "full_kv_cache": data(5, 4, 5),
            "full_kv_block_table": ints([0, 1], [2, 3]),
            "full_kv_actual_seq": ints(8, 7),
            "full_q_actual_seq": ints(1, 1),
            "selection_kv_actual_seq": zeros(2, dtype="int32"),
            "status_row": ints(0, 1),
            "counters": zeros(2, 3, dtype="int32"),
            "fetch_counts": zeros(2, dtype="int32"),
        }
    if op == "copy_blocks":
        return {
            "caches": [data(4, 2, 3), data(4, 5, dtype="uint8")],
            "mapping": ints([0, 1], [2, 3]),
            "count": ints(2),
        }
    if op == "swap_blocks":
        return {
            "src": [data(3, 2, 3), data(3, 5, dtype="uint8")],
            "dst": [zeros(4, 2, 3), zeros(4, 5, dtype="uint8")],
            "mapping": ints([0, 1], [2, 3]),
            "count": ints(2),
        }
    if op == "transfer_layers":
        return {
            "key_caches": [data(4, 2, 3, 5), data(4, 2, 3, 5)],
            "value_caches": [data(4, 2, 3, 5), data(4, 2, 3, 5)],
            "chunk": zeros(2, 3, 2, 2, 3, 5),
            "block_ids": ints(3, 0, 1),
        }
    assert op == "group_memcpy"
    # Nobody may follow these addresses: the calls that use them are refused, or copy nothing.
    return {"addr_table": np.zeros((2, 2), np.int64), "count": ints(0)}


def plain(op: str) -> tuple[list[Any], dict[str, Any]]:
    """The positional arguments in the order of the API, and the keywords."""
    all = tensors(op)
    keywords = {
        n: all.pop(n) for n in ("seq_offset", "count", "status_row", "counters", "fetch_counts") if n in all
    }
    return list(all.values()), {**keywords, **OPTIONS.get(op, {})}


def each_by_name(tensors: dict[str, Any]) -> Any:
    """(what messages call it, array)"""
    for name, value in tensors.items():
        if isinstance(value, list):
            yield from ((f"{name}[{i}]", one) for i, one in enumerate(value))
        else:
            yield name, value
