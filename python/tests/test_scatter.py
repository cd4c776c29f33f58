# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import oracle
from strategies import Draw, drawn, threads, ways
from support import Case, buffer, check, dtype_of, index


def cache_shape(
    mode: str, dtype: str, blocks: int, bs: int, heads: int, units: int
) -> tuple[tuple[int, ...], int]:
    """The cache and the head size; `units` are 32-byte units of a head (FRACTAL_NZ) or elements."""
    e = 32 // dtype_of(dtype).itemsize
    return {
        "None": ((blocks, bs, heads, units), units),
        "Nct": ((blocks, bs, heads, units), units),
        "Nhsd": ((blocks, heads, bs, units), units),
        "NZ4": ((blocks, heads * units, bs, e), units * e),
        "NZ5": ((blocks, heads, units, bs, e), units * e),
    }[mode]


def scatters(draw: Draw) -> Case:
    mode = draw.choice(("None", "Nhsd", "Nct", "NZ4", "NZ5"))
    nz = mode.startswith("NZ")
    bs, tokens = draw.randint(1, 5), draw.size(7)
    blocks = {"key": draw.size(4), "value": draw.size(4)}
    tensors: dict[str, Any] = {"value": None, "value_cache": None}
    strides: list[int] = []
    offsets: list[int] = []
    for name in ("key", "value") if draw.flag(0.75) else ("key",):
        dtype = draw.dtype()
        heads = draw.size(3, 0 if mode == "Nct" else 0.07)
        shape, size = cache_shape(mode, dtype, blocks[name], bs, heads, draw.randint(1, 2 if nz else 9))
        rows = tokens + draw.randint(0, 2)
        tensors[name] = buffer((rows, heads, size), dtype, 0 if mode == "Nct" else draw.layout())
        if mode == "Nct":  # as far as the memory of `rows` goes
            room = (rows - 1) * heads * size
            strides.append(draw.randint(1, max(1, room // max(tokens - 1, 1))))
            offsets.append(draw.randint(0, max(0, room - (tokens - 1) * strides[-1])))
        tensors[name + "_cache"] = buffer(shape, dtype, draw.layout(), output=True)
    dtype = draw.index_dtype()
    slots = min(blocks.values()) * bs
    if draw.flag() and slots >= tokens:  # nothing that reject could refuse
        mapping = [-1 if draw.flag(0.2) else slot for slot in draw.sample(range(slots), tokens)]
    else:
        mapping = draw.ids(tokens, draw.choice(list(blocks.values())) * bs, dtype)
    tensors["slot_mapping"] = index(mapping, dtype, draw.layout())
    options: dict[str, Any] = {
        "cache_mode": "PA_NZ" if nz else "Norm",
        "scatter_mode": "None" if nz else mode,
        "index_policy": draw.policy(),
    }
    if mode == "Nct":
        options["nct_strides"], options["nct_offsets"] = (*strides, 1)[:2], (*offsets, 0)[:2]
    return Case("scatter_pa_kv_cache", tensors, options)


@given(drawn(scatters), ways, threads)
def test_scatter(case: Case, way: str, threads: int) -> None:
    check(case, way, threads)


@pytest.mark.parametrize("mode", ["None", "Nhsd", "NZ4", "NZ5"])
@pytest.mark.parametrize("threads", [1, 3])
def test_large_scatters(mode: str, threads: int) -> None:
    """Large enough to be split."""
    tokens, blocks, bs = 700, 70, 16
    rng = np.random.default_rng(5)
    mapping = rng.permutation(blocks * bs)[:tokens]
    mapping[::9] = -1
    tensors: dict[str, Any] = {"slot_mapping": index(mapping, "int64")}
    for name, dtype in (("key", "float16"), ("value", "uint8")):
        shape, size = cache_shape(mode, dtype, blocks, bs, 2, 8 if "NZ" in mode else 128)
        tensors[name] = buffer((tokens, 2, size), dtype, 5)
        tensors[name + "_cache"] = buffer(shape, dtype, output=True)
    nz = mode.startswith("NZ")
    options = {"cache_mode": "PA_NZ" if nz else "Norm", "scatter_mode": "None" if nz else mode}
    check(Case("scatter_pa_kv_cache", tensors, options), "plan", threads)


def test_the_oracle_by_hand() -> None:
    key = np.array([1, 2, 3, 4], np.uint8).reshape(4, 1, 1, 1)
    cache = np.zeros((2, 2, 1, 1, 1), np.uint8)
    slots = np.array([3, -1, 3, 4])
    out = oracle.scatter_pa_kv_cache(key, None, cache, None, slots, index_policy="report")
    assert cache.ravel()[:3].tolist() == [0, 0, 0]
    assert (out.bad, out.batch, out.id, out.which) == (2, 2, 3, oracle.KEY | oracle.DUPLICATE)
    assert out.unspecified == [("key_cache", 0, (1, 1, 0, 0))]
    cache[:] = 0
    assert oracle.scatter_pa_kv_cache(key, None, cache, None, slots, index_policy="reject").refused
    assert not cache.any()
    nz = np.zeros((1, 2, 2, 16, 2), np.uint8)  # two units of 16 float16
    row = np.arange(64, dtype=np.uint8).reshape(1, 1, 32, 2)
    oracle.scatter_pa_kv_cache(row, None, nz, None, np.array([1]), cache_mode="PA_NZ")
    assert nz[0, 1, 1, 0].tolist() == [32, 33] and not nz[0, :, 0].any()
