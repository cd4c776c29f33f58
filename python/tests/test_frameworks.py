# SPDX-License-Identifier: Apache-2.0
"""NumPy, torch, JAX, ml_dtypes: the same bytes from each, and never a copy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import calls
import kvferry
import oracle
from support import EXTENDED, KV_DTYPES, dtype_of

OPS = [op for op in calls.OUTPUTS if op != "group_memcpy"]


def map_arrays(tensors: dict[str, Any], function: Any) -> dict[str, Any]:
    return {n: [function(a) for a in v] if isinstance(v, list) else function(v) for n, v in tensors.items()}


def bits(array: Any) -> bytes:
    return np.ascontiguousarray(array).view(np.uint8).tobytes()


def to_torch(array: Any) -> Any:
    """Shares memory."""
    torch = pytest.importorskip("torch")
    if array.dtype.name in EXTENDED:
        return torch.from_numpy(array.view(f"u{array.itemsize}")).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def to_jax(array: Any) -> Any:
    jnp = pytest.importorskip("jax.numpy")
    return jnp.asarray(array)


def options(op: str) -> dict[str, Any]:
    return calls.OPTIONS.get(op, {})


@pytest.mark.parametrize("op", OPS)
def test_torch_and_numpy_give_the_same_bytes(op: str) -> None:
    """Through shared memory: what torch tensors got is seen in the arrays, so nothing was copied."""
    pytest.importorskip("torch")
    mine, other = calls.tensors(op), calls.tensors(op)
    getattr(kvferry, op)(**mine, **options(op))
    getattr(kvferry, op)(**map_arrays(other, to_torch), **options(op))
    for (name, a), (_, b) in zip(calls.each_by_name(mine), calls.each_by_name(other), strict=True):
        assert bits(a) == bits(b), name


@pytest.mark.parametrize("op", OPS)
def test_inputs_of_three_frameworks_at_once(op: str) -> None:
    pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    kinds = [to_torch, to_jax, lambda a: a]
    for turn in range(3):
        mine, other = calls.tensors(op), calls.tensors(op)
        getattr(kvferry, op)(**mine, **options(op))
        mixed: dict[str, Any] = {}
        for i, (name, value) in enumerate(other.items()):
            make = kinds[(i + turn) % 3]
            if name in calls.OUTPUTS[op] and make is to_jax:
                make = to_torch
            mixed[name] = [make(a) for a in value] if isinstance(value, list) else make(value)
        with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
            getattr(kvferry, op)(**mixed, **options(op))
        for (name, a), (_, b) in zip(calls.each_by_name(mine), calls.each_by_name(other), strict=True):
            assert bits(a) == bits(b), name


ALL_DTYPES = list(dict.fromkeys((*KV_DTYPES, "bfloat16", "float8_e5m2", "float8_e4m3fn")))


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_every_bit_pattern_survives(kind: str, dtype: str) -> None:
    """NaN payloads, -0.0 and subnormal numbers included. (JAX arrays are inputs only.)"""

    def of(raw: Any) -> Any:
        if kind == "torch":
            torch = pytest.importorskip("torch")
            return torch.from_numpy(raw).view(getattr(torch, dtype)).reshape(2, -1)
        if dtype not in KV_DTYPES:
            pytest.skip("ml_dtypes is not installed")
        array = raw.view(dtype_of(dtype)).reshape(2, -1)
        return to_jax(array) if kind == "jax" else array

    raw = np.arange(2**16, dtype=np.uint16).view(np.uint8)
    memory = np.zeros_like(raw)
    src = of(raw)
    dst = memory.view(dtype_of(dtype)).reshape(2, -1) if kind == "jax" else of(memory)
    kvferry.swap_blocks([src], [dst], np.array([[0, 1], [1, 0]]))
    assert memory.tobytes() == raw[raw.size // 2 :].tobytes() + raw[: raw.size // 2].tobytes()


def test_zero_copy_by_pointers() -> None:
    """group_memcpy takes addresses: those that torch, JAX and NumPy say."""
    torch = pytest.importorskip("torch")
    jnp = pytest.importorskip("jax.numpy")
    array, tensor = np.zeros(64, np.uint8), torch.zeros(64, dtype=torch.uint8)
    fixed = jnp.arange(64, dtype=jnp.uint8)
    source = fixed.unsafe_buffer_pointer()
    table = np.array([[source, array.ctypes.data], [source, tensor.data_ptr()]])
    kvferry.group_memcpy(table, 64)
    assert array.tolist() == tensor.tolist() == list(range(64))


def test_views_of_torch() -> None:
    """Transposed, sliced, stepped and expanded views, as they are."""
    torch = pytest.importorskip("torch")
    store = torch.arange(4 * 6 * 5 * 8).to(torch.float16).reshape(4, 6, 5, 8)
    for view in (
        store.transpose(1, 2),
        store[:, ::2],
        store[1:, :, 2:4, ::3],
        store.permute(3, 0, 2, 1),
        store[:, :1].expand(4, 6, 5, 8),
        store.unbind(1)[2][:, :, None],
    ):
        assert not view.is_contiguous()
        target = (
            torch.zeros(view.shape, dtype=view.dtype).permute(0, 3, 2, 1).contiguous().permute(0, 3, 2, 1)
        )
        pointer = target.data_ptr()
        n = min(view.shape[0], 3)
        kvferry.swap_blocks([view], [target], torch.stack([torch.arange(n), torch.arange(n).flip(0)], 1))
        assert torch.equal(target[:n], view[:n].flip(0)) and target.data_ptr() == pointer


def test_views_of_numpy() -> None:
    store = np.arange(4 * 6 * 5 * 8, dtype=np.int32).reshape(4, 6, 5, 8)
    for view in (
        store.T,
        store[::-1, :, ::-2],
        np.broadcast_to(store[:, :1], store.shape),
        store[:, 2, :, None],
    ):
        shape = np.zeros((*view.shape, 2), view.dtype)
        target = shape[..., 1][..., ::-1]
        n = min(view.shape[0], 3)
        kvferry.swap_blocks([view], [target], np.stack([np.arange(n), np.arange(n)[::-1]], 1))
        assert (target[:n] == view[:n][::-1]).all() and not shape[..., 0].any()


def test_subclasses_of_torch() -> None:
    torch = pytest.importorskip("torch")

    class Mine(torch.Tensor):
        pass

    dst = torch.zeros(2, 4).as_subclass(Mine)
    kvferry.swap_blocks([torch.nn.Parameter(torch.ones(2, 4))], [dst], np.array([[0, 1]]))
    assert dst.sum() == 4 and type(dst) is Mine


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_no_reference_is_kept(kind: str) -> None:
    """After calls, plans, and calls that were refused."""
    make = to_torch if kind == "torch" else lambda a: a
    tensors = map_arrays(calls.tensors("swap_blocks"), make)
    src, dst, mapping = tensors["src"], tensors["dst"], tensors["mapping"]
    plan = kvferry.plan_swap_blocks(src, dst, mapping)
    objects = [*src, *dst, mapping, src, dst, src[0].dtype, type(src[0])]
    before = [sys.getrefcount(thing) for thing in objects]
    for _ in range(50):
        kvferry.swap_blocks(src, dst, mapping)
        plan.run(src, dst, mapping)
        with pytest.raises(ValueError):
            plan.run(src, dst, mapping[:1])
        with pytest.raises(TypeError):
            kvferry.swap_blocks(src, dst, None)
    after = [sys.getrefcount(thing) for thing in objects]
    assert all(b - a < 25 for a, b in zip(before, after, strict=True)), list(zip(before, after, strict=True))


def test_memory_that_is_mapped(tmp_path: Any) -> None:
    """A file: read-only as an input, and no output."""
    path = tmp_path / "cache"
    np.arange(24, dtype=np.int16).tofile(path)
    mapped = np.memmap(path, np.int16, "r", shape=(3, 8))
    dst = np.zeros((3, 8), np.int16)
    kvferry.swap_blocks([mapped], [dst], np.array([[2, 0]]))
    assert dst[0].tolist() == list(range(16, 24))
    with pytest.raises(ValueError, match=r"swap_blocks: dst\[0\].*read-only"):
        kvferry.swap_blocks([dst], [mapped], np.array([[2, 0]]))
    assert np.fromfile(path, np.int16).tolist() == list(range(24))


# ---------------------------------------------------------------------------------------------------- records


def test_error_records() -> None:
    record = kvferry.ErrorRecord()
    names = ("BAD_KEY", "BAD_VALUE", "BAD_COLUMN", "BAD_DUPLICATE", "BAD_SOURCE", "BAD_DESTINATION")
    assert [getattr(kvferry, name) for name in names] == [
        oracle.KEY, oracle.VALUE, oracle.COLUMN, oracle.DUPLICATE, oracle.SOURCE, oracle.DESTINATION
    ]  # fmt: skip
    cache = np.zeros((3, 2), np.uint8)
    for mapping in ([[0, 1], [2, 7]], [[5, 1], [0, 2]]):  # calls accumulate, the lowest entry stays
        kvferry.copy_blocks([cache], np.array(mapping), index_policy="report", error_record=record)
    assert (record.bad, record.batch, record.column, record.id) == (2, 0, 0, 5)
    assert record.which == kvferry.BAD_SOURCE and record.op == "copy_blocks"
    assert "2" in repr(record) and "5" in repr(record)
    record.clear()
    assert (record.bad, record.batch, record.column, record.id, record.which, record.op) == (
        0,
        0,
        0,
        0,
        0,
        "",
    )


def test_nct_reads_the_storage() -> None:
    """Token t is read at offset + t * stride, whatever the strides of key."""
    storage = np.arange(64, dtype=np.int16)
    key, cache = storage.reshape(4, 2, 8), np.zeros((2, 2, 2, 8), np.int16)
    value, value_cache = storage.reshape(4, 1, 16)[:, :, :3], np.zeros((2, 2, 1, 3), np.int16)
    value = np.ascontiguousarray(value)
    kvferry.scatter_pa_kv_cache(
        key,
        value,
        cache,
        value_cache,
        np.array([3, 0]),
        scatter_mode="Nct",
        nct_strides=(10, 4),
        nct_offsets=(5, 2),
    )
    assert cache[1, 1].ravel().tolist() == list(range(5, 21)) and cache[0, 0].ravel().tolist() == list(
        range(15, 31)
    )
    flat = value.ravel()
    assert value_cache[1, 1].ravel().tolist() == flat[2:5].tolist()
    assert value_cache[0, 0].ravel().tolist() == flat[6:9].tolist()
    cache[:] = 0
    with pytest.raises(ValueError, match="scatter_pa_kv_cache: key.*storage"):
        kvferry.scatter_pa_kv_cache(
            key,
            None,
            cache,
            None,
            np.array([3, 0]),
            scatter_mode="Nct",
            nct_strides=(44, 1),
            nct_offsets=(5, 0),
        )
    assert not cache.any()
