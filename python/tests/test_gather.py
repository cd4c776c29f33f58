# SPDX-License-Identifier: Apache-2.0
"""gather_pa_kv_cache and gather_dequant: which token goes to which row is one loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import oracle
from strategies import FAR, Draw, drawn, threads, ways
from support import EXTENDED, Case, buffer, check, dtype_of, index

needs_bfloat16 = pytest.mark.skipif(not EXTENDED, reason="ml_dtypes is not installed")


def reads(draw: Draw, blocks: int, bs: int) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Table, lengths and offset: tensors, options and the number of output rows."""
    batches, width, dtype, dirty = draw.randint(1, 4), draw.randint(1, 4), draw.index_dtype(), draw.flag(0.6)
    lens = [draw.randint(0, bs * width) for _ in range(batches)]
    total = sum(lens)
    if dirty and draw.flag():
        odd = (-1, -bs, bs * width + 1, 2 * bs * width, *FAR[dtype])
        lens = [draw.choice(odd) if draw.flag(0.3) else n for n in lens]
    cumsum = draw.flag()
    if cumsum:
        limit = 2 ** (31 if dtype == "int32" else 63)
        sums = [draw.choice((0, 0, 0, -2, 1)) if dirty else 0]
        for n in lens:
            sums.append(max(-limit, min(limit - 1, sums[-1] + n)))
        lens = sums
    table = draw.ids(batches * width, blocks, dtype, 0.25 if dirty else 0)
    tensors = {
        "block_tables": index(table, dtype, draw.layout(), (batches, width)),
        "seq_lens": index(lens, dtype, draw.layout()),
    }
    if draw.flag(0.4):
        far = (-1, -bs, bs - 1, *FAR[dtype])
        shifts = [
            draw.choice(far) if dirty and draw.flag(0.3) else draw.randint(0, bs) for _ in range(batches)
        ]
        tensors["seq_offset"] = index(shifts, dtype, draw.layout())
    options = {"is_seq_lens_cumsum": cumsum, "index_policy": draw.policy()}
    return tensors, options, max(0, total + draw.randint(-2, 3))


def gathers(draw: Draw) -> Case:
    bs = draw.randint(1, 5)
    blocks = {"key": draw.size(5), "value": draw.size(6)}
    tensors, options, rows = reads(draw, draw.choice((min(blocks.values()), blocks["value"])), bs)
    mode = draw.choice(("Norm", "PA_NZ"))
    for name in ("key", "value"):
        dtype, heads, size = draw.dtype(), draw.size(3), draw.randint(1, 9)
        if mode == "Norm":
            cache, out = (blocks[name], bs, heads, size), (rows, heads, size)
        else:
            e = 32 // dtype_of(dtype).itemsize
            cache, out = (blocks[name], heads, bs, e), (rows, heads * e)
        tensors[name + "_cache"] = buffer(cache, dtype, draw.layout())
        tensors[name] = buffer(out, dtype, draw.layout(), output=True)
    return Case("gather_pa_kv_cache", tensors, {**options, "cache_mode": mode})


@given(drawn(gathers), ways, threads)
def test_gather(case: Case, way: str, threads: int) -> None:
    check(case, way, threads)


def dequants(draw: Draw) -> Case:
    bs, blocks = draw.randint(1, 3), draw.size(4)
    tensors, options, rows = reads(draw, blocks, bs)
    dtype = draw.choice(("uint8", "int8"))
    tensors["cache"] = buffer((blocks, bs, 656), dtype, draw.layout(), last_dense=True)
    tensors["out"] = buffer((rows, 576), "bfloat16", draw.layout(), output=True)
    return Case("gather_dequant", tensors, options)


@needs_bfloat16
@given(drawn(dequants), ways, threads)
def test_dequant(case: Case, way: str, threads: int) -> None:
    check(case, way, threads)


@needs_bfloat16
@pytest.mark.parametrize(
    "scale", [1.0, -0.0, 1e-40, 2.0**-133, 3e38, float("inf"), float("nan"), 1.0039062, 0.33333334]
)
def test_dequant_of_every_byte(scale: float) -> None:
    cache = buffer((2, 1, 656), "uint8")
    token = cache.array()
    token[0, 0, :256], token[0, 0, 256:512] = range(256), range(256)
    token[0, 0, 512:528] = np.array([scale, 1.0, scale, -scale], "<f4").view(np.uint8)
    tensors = {
        "cache": cache,
        "block_tables": index([[0, 1]], "int32"),
        "seq_lens": index([2], "int32"),
        "out": buffer((2, 576), "bfloat16", output=True),
    }
    check(Case("gather_dequant", tensors))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("mode", ["Norm", "PA_NZ"])
def test_large_gathers(threads: int, mode: str) -> None:
    """Large enough to be split over threads and for stores past the caches."""
    rng = np.random.default_rng(7)
    bs, blocks, width, lens = 16, 60, 24, [380, 1, 290, 333]
    cache = (blocks, bs, 4, 128) if mode == "Norm" else (blocks, 32, bs, 16)
    rows = (sum(lens) + 5, 4, 128) if mode == "Norm" else (sum(lens) + 5, 512)
    tensors = {
        "key_cache": buffer(cache, "float16"),
        "value_cache": buffer(cache, "float16"),
        "block_tables": index(rng.integers(-1, blocks + 1, (4, width)), "int32"),
        "seq_lens": index(lens, "int32"),
        "key": buffer(rows, "float16", output=True),
        "value": buffer(rows, "float16", output=True),
    }
    outcome = check(
        Case("gather_pa_kv_cache", tensors, {"cache_mode": mode, "index_policy": "report"}), "plan", threads
    )
    assert outcome.bad > 0


def test_the_oracle_by_hand() -> None:
    """Three tokens of two blocks of two slots; the second block is out of range for V."""
    keys = np.arange(4, dtype=np.uint8).reshape(2, 2, 1, 1, 1) + 10
    values = keys[:1] + 50
    key, value = np.full((4, 1, 1, 1), 99, np.uint8), np.full((4, 1, 1, 1), 99, np.uint8)
    tables, lens = np.array([[0, 1], [1, -1]]), np.array([1, 2])
    out = oracle.gather_pa_kv_cache(keys, values, tables, lens, key, value, index_policy="report")
    assert key.ravel().tolist() == [10, 12, 13, 99] and value.ravel().tolist() == [60, 0, 0, 99]
    assert (out.bad, out.batch, out.column, out.id, out.which) == (1, 1, 0, 1, oracle.VALUE)
    offset = np.array([3, 5])  # whole blocks of it: columns 1 and 2
    out = oracle.gather_pa_kv_cache(
        keys, keys, tables, lens, key, value, seq_offset=offset, index_policy="report"
    )
    assert key.ravel().tolist() == [12, 0, 0, 99]
    assert (out.bad, out.batch, out.column, out.id, out.which) == (
        2,
        1,
        2,
        0,
        oracle.KEY | oracle.VALUE | oracle.COLUMN,
    )


def test_the_oracle_rounds_to_even() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.random.default_rng(3).integers(0, 2**32, 4000, np.uint32)
    bits[:8] = 0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0x00000001, 0x80008000, 0xFF800001
    numbers = bits.view(np.float32)
    with np.errstate(invalid="ignore"):
        expected = numbers.astype(ml_dtypes.bfloat16).view(np.uint16)
    seen = np.array([oracle.bfloat16(int(b)) for b in bits], np.uint16)
    assert np.array_equal(seen[~np.isnan(numbers)], expected[~np.isnan(numbers)])
    assert set(seen[np.isnan(numbers)]) == {0x7FC0}
    every = np.arange(256, dtype=np.uint8)
    token = bytes(every) * 2 + np.ones(4, "<f4").tobytes() + bytes(128)
    decoded = np.array(oracle.dequant(token)[:256], np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(decoded, every.view(ml_dtypes.float8_e4m3fn).astype(np.float32), equal_nan=True)
