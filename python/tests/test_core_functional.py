# SPDX-License-Identifier: Apache-2.0
"""The allocating forms: what they return, for each kind of tensor, and that arguments stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kvferry

Convert = Callable[[np.ndarray], Any]


def to_torch(array: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_jax(array: np.ndarray) -> Any:
    return pytest.importorskip("jax.numpy").asarray(array)


def to_numpy(tensor: Any) -> np.ndarray:
    if type(tensor).__module__ == "torch" and str(tensor.dtype) == "torch.bfloat16":
        return np.asarray(tensor.float())
    return np.asarray(tensor)


@pytest.fixture(params=["numpy", "torch", "jax"])
def convert(request: pytest.FixtureRequest) -> Convert:
    return {"numpy": lambda array: array, "torch": to_torch, "jax": to_jax}[request.param]


def cache(dtype: Any = np.float32, blocks: int = 4) -> np.ndarray:
    return (np.arange(blocks * 2 * 3 * 4) % 50).reshape(blocks, 2, 3, 4).astype(dtype)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, ml_dtypes.bfloat16])
def test_gather(convert: Convert, dtype: Any) -> None:
    keys = convert(cache(dtype))
    key, value = kvferry.gather_pa_kv_cache_functional(
        keys, convert(-cache(dtype)), convert(ints([3, 1])), convert(ints(3)), 5
    )
    assert type(key) is type(value) is type(keys)
    assert key.dtype == keys.dtype
    expected = np.concatenate([cache(dtype)[3], cache(dtype)[1, :1], np.zeros((2, 3, 4), dtype)])
    np.testing.assert_array_equal(to_numpy(key).astype(float), expected.astype(float))
    np.testing.assert_array_equal(to_numpy(value).astype(float), -expected.astype(float))


def test_gather_nz(convert: Convert) -> None:
    keys = convert(np.arange(2 * 3 * 2 * 8, dtype=np.float32).reshape(2, 3, 2, 8))
    key, _ = kvferry.gather_pa_kv_cache_functional(
        keys, keys, convert(ints([1])), convert(ints(2)), 2, cache_mode="PA_NZ"
    )
    np.testing.assert_array_equal(to_numpy(key), to_numpy(keys)[1].swapaxes(0, 1).reshape(2, 24))


def test_jax_takes_the_memory_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    gather = kvferry._core.gather_pa_kv_cache

    def spy(*tensors: Any, **options: Any) -> None:
        written.extend(tensors[4:6])
        gather(*tensors, **options)

    keys = to_jax(cache(ml_dtypes.bfloat16))
    monkeypatch.setattr(kvferry.functional._core, "gather_pa_kv_cache", spy)
    results = kvferry.gather_pa_kv_cache_functional(keys, keys, ints([3, 1]), ints(3), 5)
    assert [r.unsafe_buffer_pointer() for r in results] == [w.ctypes.data for w in written]


def test_scatter(convert: Convert) -> None:
    keys, new = convert(cache()), convert(-np.ones((1, 3, 4), np.float32))
    key_cache, value_cache = kvferry.scatter_pa_kv_cache_functional(new, None, keys, None, convert(ints(5)))
    assert value_cache is None
    assert type(key_cache) is type(keys)
    np.testing.assert_array_equal(to_numpy(keys), cache())
    np.testing.assert_array_equal(to_numpy(key_cache)[2, 1], to_numpy(new)[0])
    np.testing.assert_array_equal(to_numpy(key_cache)[:2], cache()[:2])


def test_selection(convert: Convert) -> None:
    full = np.arange(6 * 2 * 3, dtype=np.float32).reshape(6, 2, 3)
    selected, status = convert(np.zeros((1, 4, 3), np.float32)), convert(ints([[-1, -1, 0]]))
    actual_seq, rope, kv_cache, table, new_status = kvferry.gather_selection_kv_cache_functional(
        None,
        selected,
        convert(ints([0])),
        status,
        convert(ints([[2, 0]])),
        None,
        convert(full),
        convert(ints([5, 4, 3])),
        convert(ints(6)),
        None,
        selection_topk_block_size=2,
        q_len_mode="all_rows",
    )
    assert rope is None
    assert type(actual_seq) is type(kv_cache) is type(new_status) is type(selected)
    assert to_numpy(actual_seq).tolist() == [4]
    assert to_numpy(table).tolist() == [[0]]
    assert to_numpy(new_status).tolist() == [[[2, 0, 4]]]
    assert to_numpy(status).tolist() == [[[-1, -1, 0]]]
    np.testing.assert_array_equal(to_numpy(kv_cache)[0], np.concatenate([full[3], full[5]]))
    assert not to_numpy(selected).any()


def test_blocks(convert: Convert) -> None:
    caches, other = [convert(cache())], [convert(np.zeros((2, 2, 3, 4), np.float32))]
    copied = kvferry.copy_blocks_functional(caches, convert(ints([3, 0])))
    np.testing.assert_array_equal(to_numpy(copied[0])[0], cache()[3])
    swapped = kvferry.swap_blocks_functional(caches, other, convert(ints([3, 1])))
    np.testing.assert_array_equal(to_numpy(swapped[0])[1], cache()[3])
    assert type(copied[0]) is type(swapped[0]) is type(caches[0])
    np.testing.assert_array_equal(to_numpy(caches[0]), cache())
    assert not to_numpy(other[0]).any()


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_transfer_layers(convert: Convert, layout: Any) -> None:
    pools = [convert(cache()), convert(-cache())]
    chunk = kvferry.transfer_layers_functional(
        pools, pools[::-1], convert(ints(3, 0, 3)), chunk_layout=layout
    )
    assert type(chunk) is type(pools[0])
    by_layer = to_numpy(chunk) if layout == "layer_first" else to_numpy(chunk).swapaxes(0, 1)
    np.testing.assert_array_equal(by_layer[0, :, 0], cache()[[3, 0, 3]])
    np.testing.assert_array_equal(by_layer[0, :, 1], -cache()[[3, 0, 3]])
    with pytest.raises(ValueError, match="transfer_layers_functional: key_caches: is empty"):
        kvferry.transfer_layers_functional([], None, convert(ints(3)))


def test_gather_dequant(convert: Convert) -> None:
    rows = np.zeros((2, 1, 656), np.uint8)
    rows[1, 0, 512:528] = np.ones(4, np.float32).view(np.uint8)
    rows[1, 0, 0] = np.array(1.5, ml_dtypes.float8_e4m3fn).view(np.uint8)
    out = kvferry.gather_dequant_functional(convert(rows), convert(ints([1])), convert(ints(1)), 2)
    assert type(out) is type(convert(rows))
    assert str(out.dtype).removeprefix("torch.") == "bfloat16"
    assert out.shape == (2, 576)
    assert to_numpy(out)[0, :2].astype(float).tolist() == [1.5, 0]


def test_refused() -> None:
    with pytest.raises(
        TypeError, match="copy_blocks_functional: caches.0.: list, expected an array of NumPy"
    ):
        kvferry.copy_blocks_functional([[1]], ints([0, 0]))
    with pytest.raises(ValueError, match="copy_blocks_functional: context has a stream"):
        kvferry.copy_blocks_functional(
            [cache()], ints([0, 0]), context=kvferry.Context(stream=kvferry.Stream())
        )
