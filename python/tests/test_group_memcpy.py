# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import kvferry
import oracle
from strategies import Draw, drawn, threads, ways
from support import Buffer, buffer, context, implementations, index, stream


def transports(draw: Draw) -> dict[str, Any]:
    """Sources and destinations in one memory, destinations disjoint from everything, at odd addresses."""
    n, equal, width, skip_null = draw.size(8), draw.flag(), draw.choice((0, 1, 7, 64, 200)), draw.flag()
    sizes = [width if equal else draw.choice((0, 1, 3, 16, 65, 300)) for _ in range(n)]
    pairs: list[tuple[int | None, int | None]] = []
    at = 400
    for size in sizes:
        source = draw.randint(0, 400 - size)  # sources may overlap each other
        at += draw.randint(0, 9)
        pair: tuple[int | None, int | None] = (source, at)
        if (skip_null or size == 0) and draw.flag(0.3):
            pair = draw.choice(((None, at), (source, None), (None, None)))
        at += size
        pairs.append(pair)
    order = draw.sample(range(n), n)
    return {
        "pairs": [pairs[i] for i in order],
        "sizes": [sizes[i] for i in order],
        "equal": equal,
        "skip_null": skip_null,
        "checked": draw.flag(),
        "count": draw.choice((None, "count", "host_count")),
        "pairs_to_run": draw.randint(0, n),
        "count_dtype": draw.index_dtype(),
        "flat": draw.flag(),
        "table_dtype": draw.choice(("int64", "uint64")),
        "layouts": [draw.layout() for _ in range(3)],
        "length": at + 16,
    }


@given(drawn(transports), ways, threads)
def test_group_memcpy(call: dict[str, Any], way: str, threads: int) -> None:
    pairs, sizes, n = call["pairs"], call["sizes"], len(call["pairs"])
    before = buffer((call["length"],), "uint8", output=True)
    expected = before.clone()
    limit = None if call["count"] is None else call["pairs_to_run"]
    oracle.group_memcpy(expected.array(), pairs, sizes, count=limit, skip_null=call["skip_null"])
    for name in implementations():
        memory = before.clone()

        def table(of: Buffer) -> Buffer:
            base = of.array().ctypes.data
            numbers = [0 if at is None else base + at for pair in pairs for at in pair]
            return index(
                numbers, call["table_dtype"], call["layouts"][0], (2 * n,) if call["flat"] else (n, 2)
            )

        extra: dict[str, Any] = {"skip_null": call["skip_null"], "checked": call["checked"]}
        by_run: dict[str, Any] = {}
        if not call["equal"]:
            by_run["sizes"] = index(sizes, "int64", call["layouts"][1], (n,)).tensor()
        if call["count"] == "count":
            by_run["count"] = index([limit], call["count_dtype"], call["layouts"][2]).tensor()
        if call["count"] == "host_count":
            extra["host_count"] = limit
        width = sizes[0] if call["equal"] and n else 0
        ctx = context(name, threads, way.endswith("stream"))
        mine = table(memory)
        if way.startswith("plan"):
            plan = kvferry.plan_group_memcpy(mine.tensor(), width, **by_run, **extra, context=ctx)
            other = before.clone()
            plan.run(table(other).tensor(), **by_run, context=ctx)
            plan.run(mine.tensor(), **by_run, context=ctx)
        else:
            kvferry.group_memcpy(mine.tensor(), width, **by_run, **extra, context=ctx)
        if way.endswith("stream"):
            stream().wait()
        if way.startswith("plan"):
            assert np.array_equal(other.raw, expected.raw), name
        assert np.array_equal(memory.raw, expected.raw), name


def address(array: Any) -> int:
    return int(array.ctypes.data)


def test_checked_calls_name_the_pairs() -> None:
    memory = np.arange(64, dtype=np.uint8)
    before = memory.copy()
    base = address(memory)
    for pairs, words in (
        ([(base, 0)], ("0", "null")),
        ([(base, base + 32), (base + 8, base + 36)], ("0", "1")),  # destinations meet
        ([(base, base + 32), (base + 30, base + 50)], ("0", "1")),  # a destination is a source
        ([(2**64 - 4, base)], ("wrap",)),
    ):
        table = np.array(pairs, np.uint64)
        with pytest.raises(IndexError, match="group_memcpy") as caught:
            kvferry.group_memcpy(table, 8, checked=True)
        assert all(word in str(caught.value) for word in words), caught.value
        assert np.array_equal(memory, before)


def test_a_negative_size_is_refused_before_the_first_byte() -> None:
    memory = np.arange(64, dtype=np.uint8)
    before = memory.copy()
    base = address(memory)
    table = np.array([[base, base + 32], [base, base + 48]], np.int64)
    with pytest.raises(IndexError, match="sizes.*-3"):
        kvferry.group_memcpy(table, sizes=np.array([8, -3]))
    assert np.array_equal(memory, before)


@pytest.mark.parametrize("threads", [1, 3])
def test_large_copies(threads: int) -> None:
    rng = np.random.default_rng(2)
    source = rng.integers(0, 256, 3 << 20, np.uint8)
    target = np.zeros_like(source)
    step = 4096 + 16
    n = source.size // step
    starts = rng.permutation(n) * step
    table = np.stack([address(source) + starts, address(target) + starts], 1).astype(np.int64)
    expected = np.zeros_like(source)
    for start in starts:
        expected[start : start + 4096] = source[start : start + 4096]
    for name in implementations():
        target[:] = 0
        kvferry.group_memcpy(table, 4096, context=context(name, threads, False))
        assert np.array_equal(target, expected), name
