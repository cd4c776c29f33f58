# SPDX-License-Identifier: Apache-2.0
"""Every operator and its plan once: that each parameter reaches the library. Semantics are tested elsewhere."""

from __future__ import annotations

import collections
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kvferry


def call(
    name: str, planned: bool, *tensors: Any, attributes: dict[str, Any] | None = None, **named: Any
) -> None:
    attributes = attributes or {}
    if planned:
        plan = getattr(kvferry, f"plan_{name}")(*tensors, **named, **attributes)
        assert plan.op == name
        plan.run(*tensors, **named)
    else:
        getattr(kvferry, name)(*tensors, **named, **attributes)


planned = pytest.mark.parametrize("planned", [False, True], ids=["call", "plan"])


@planned
def test_scatter(planned: bool) -> None:
    key = np.arange(2 * 3 * 4, dtype=np.int32).reshape(2, 3, 4)
    cache = np.zeros((3, 2, 3, 4), np.int32)
    call("scatter_pa_kv_cache", planned, key, None, cache, None, np.array([5, 0]))
    np.testing.assert_array_equal(cache[2, 1], key[0])
    np.testing.assert_array_equal(cache[0, 0], key[1])
    heads_first, value_cache = np.zeros((3, 3, 2, 4), np.int32), np.zeros((3, 3, 2, 4), np.int32)
    attributes = {"scatter_mode": "Nhsd"}
    tensors = (key, -key, heads_first, value_cache, np.array([5, 0]))
    call("scatter_pa_kv_cache", planned, *tensors, attributes=attributes)
    np.testing.assert_array_equal(heads_first.swapaxes(1, 2), cache)
    np.testing.assert_array_equal(value_cache, -heads_first)


@planned
def test_scatter_nct_stays_within_the_tensor(planned: bool) -> None:
    packed = np.arange(2 * 24, dtype=np.int32).reshape(2, 24)
    key = packed[:, 12:].reshape(2, 3, 4)
    assert key.base is not None
    cache = np.zeros((1, 2, 3, 4), np.int32)
    attributes = {"scatter_mode": "Nct", "nct_strides": (24, 24)}
    call("scatter_pa_kv_cache", planned, key, None, cache, None, np.array([0, 1]), attributes=attributes)
    np.testing.assert_array_equal(cache[0], packed[:, 12:].reshape(2, 3, 4))
    attributes["nct_offsets"] = (1, 1)
    with pytest.raises(ValueError, match="scatter_pa_kv_cache: key"):
        call("scatter_pa_kv_cache", planned, key, None, cache, None, np.array([0, 1]), attributes=attributes)


class Selection:
    def __init__(self) -> None:
        self.full = np.arange(6 * 2 * 3, dtype=np.int16).reshape(6, 2, 3)
        self.selected = np.zeros((1, 4, 3), np.int16)
        self.caches = {
            "selection_k_rope": None,
            "selection_kv_cache": self.selected,
            "full_k_rope": None,
            "full_kv_cache": self.full,
        }
        self.state = {
            "selection_kv_block_table": np.zeros((1, 1), np.int32),
            "selection_kv_block_status": np.array([[[-1, -1, 0]]], np.int32),
            "selection_topk_indices": np.array([[[2, 0]]], np.int32),
            "full_kv_block_table": np.array([[5, 4, 3]], np.int32),
            "full_kv_actual_seq": np.array([6], np.int32),
            "full_q_actual_seq": None,
            "selection_kv_actual_seq": np.zeros(1, np.int32),
            "counters": np.zeros((1, 3), np.int32),
            "fetch_counts": np.zeros(1, np.int32),
            "status_row": np.array([0], np.int32),
        }
        self.attributes = {"selection_topk_block_size": 2, "q_len_mode": "all_rows"}
        self.expected = np.concatenate([self.full[3], self.full[5]])

    def check(self) -> None:
        np.testing.assert_array_equal(self.selected[0], self.expected)
        assert self.state["counters"].tolist() == [[0, 2, 0]]
        assert self.state["fetch_counts"].tolist() == [2]
        assert self.state["selection_kv_actual_seq"].tolist() == [4]


@planned
def test_selection(planned: bool) -> None:
    case = Selection()
    call("gather_selection_kv_cache", planned, **case.caches, **case.state, attributes=case.attributes)
    case.check()


@pytest.mark.parametrize("streamed", [False, True])
def test_selection_in_two_steps(streamed: bool) -> None:
    stream = kvferry.Stream()
    context = kvferry.Context(stream=stream if streamed else None)
    case = Selection()
    plan = kvferry.plan_gather_selection_kv_cache(
        **case.caches, **case.state, **case.attributes, context=context
    )
    with pytest.raises(ValueError):
        plan.copy(**case.caches)
    plan.schedule(**case.state, context=context)
    other = np.zeros_like(case.selected)
    plan.copy(**case.caches, context=context)
    plan.copy(**{**case.caches, "selection_kv_cache": other}, context=context)
    del plan
    stream.wait()
    case.check()
    np.testing.assert_array_equal(other, case.selected)


@planned
def test_copy_blocks(planned: bool) -> None:
    caches = [np.arange(4, dtype=np.int8), np.arange(12, dtype=np.float32).reshape(4, 3)]
    call("copy_blocks", planned, caches, np.array([[0, 3], [1, 2]]), count=np.array([1]))
    assert caches[0].tolist() == [0, 1, 2, 0]
    assert caches[1][3].tolist() == [0, 1, 2]


def test_any_sequence_is_a_list() -> None:
    cache = np.arange(3, dtype=np.int8)
    kvferry.copy_blocks(collections.deque([cache]), np.array([[0, 2]]))
    assert cache.tolist() == [0, 1, 0]


@planned
def test_swap_blocks(planned: bool) -> None:
    src, dst = [np.arange(6, dtype=np.int8).reshape(3, 2)], [np.zeros((5, 2), np.int8)]
    call("swap_blocks", planned, src, dst, np.array([[2, 4]], np.int32))
    assert dst[0][4].tolist() == [4, 5]
    assert not dst[0][:4].any()


@planned
@pytest.mark.parametrize("values", [False, True])
def test_transfer_layers(planned: bool, values: bool) -> None:
    pools = [np.arange(8, dtype=np.int8).reshape(4, 1, 1, 2) + 10 * i for i in range(2)]
    value_pools = [-pool for pool in pools] if values else None
    chunk = np.zeros((2, 2, 1 + values, 1, 1, 2), np.int8)
    attributes = {"chunk_layout": "page_first"}
    call("transfer_layers", planned, pools, value_pools, chunk, np.array([3, 1]), attributes=attributes)
    for i, block in enumerate([3, 1]):
        for layer in range(2):
            np.testing.assert_array_equal(chunk[i, layer, 0], pools[layer][block])
            np.testing.assert_array_equal(chunk[i, layer, -1], (value_pools or pools)[layer][block])
    for pool in pools:
        pool.flags.writeable = False
    attributes["direction"] = "chunk_to_pools"
    with pytest.raises(
        ValueError, match=r"transfer_layers: key_caches\[0\]: is written and the array is read-only"
    ):
        call("transfer_layers", planned, pools, value_pools, chunk, np.array([3, 1]), attributes=attributes)


@planned
def test_gather_dequant(planned: bool) -> None:
    cache = np.zeros((2, 1, 656), np.uint8)
    cache[1, 0, :512] = np.array(1.5, ml_dtypes.float8_e4m3fn).view(np.uint8)
    cache[1, 0, 512:528] = np.array([1, 2, 4, 8], np.float32).view(np.uint8)
    out = np.zeros((1, 576), ml_dtypes.bfloat16)
    call("gather_dequant", planned, cache, np.array([[1]]), np.array([1]), out, seq_offset=np.array([0]))
    assert out[0, ::128].astype(float).tolist() == [1.5, 3, 6, 12, 0]


@pytest.mark.parametrize("caches", [None, 3, np.zeros((2, 2, 2), np.int8)])
def test_lists_are_lists(caches: Any) -> None:
    with pytest.raises(TypeError, match="copy_blocks: caches: .*, expected a sequence of tensors"):
        kvferry.copy_blocks(caches, np.array([[0, 1]]))


def test_what_is_in_lists_is_named() -> None:
    caches = [np.zeros((2, 2), np.int8), [1]]
    with pytest.raises(TypeError, match=r"copy_blocks: caches\[1\]: list, expected a tensor"):
        kvferry.copy_blocks(caches, np.array([[0, 1]]))
    caches[1] = np.zeros((2, 2), np.int8)
    plan = kvferry.plan_copy_blocks(caches, np.array([[0, 1]]))
    with pytest.raises(
        ValueError, match=r"copy_blocks: caches\[1\]: is int8 \[2, 3\], expected int8 \[2, 2\]"
    ):
        plan.run([caches[0], np.zeros((2, 3), np.int8)], np.array([[0, 1]]))
    with pytest.raises(ValueError, match="copy_blocks: caches: 1 tensors are given, expected 2 as planned"):
        plan.run(caches[:1], np.array([[0, 1]]))


def test_stream_keeps_lists() -> None:
    class Watched(np.ndarray):
        pass

    stream = kvferry.Stream()
    caches = [np.arange(4, dtype=np.int8).view(Watched)]
    kvferry.copy_blocks(caches, np.array([[0, 1]]), context=kvferry.Context(stream=stream))
    cache = weakref.ref(caches.pop())
    assert cache() is not None
    stream.wait()
    assert cache() is None
