# SPDX-License-Identifier: Apache-2.0
"""copy_blocks, swap_blocks and transfer_layers: whole blocks of several layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import oracle
from strategies import Draw, drawn, threads, ways
from support import Case, buffer, check, index


def inner(draw: Draw) -> tuple[int, ...]:
    """The dimensions of a block."""
    return (2, 0) if draw.flag(0.1) else tuple(draw.randint(1, 5) for _ in range(draw.randint(0, 3)))


def mappings(draw: Draw, sources: int, destinations: int, one_pool: bool) -> dict[str, Any]:
    dtype, n = draw.index_dtype(), draw.size(8)
    if (
        draw.flag() and sources > 1 and destinations > 1
    ):  # distinct destinations; of one pool no source among them
        places = draw.sample(range(destinations), destinations)
        split = draw.randint(1, destinations - 1) if one_pool else destinations
        origins = places[split:] if one_pool else range(sources)
        pairs = [(-1 if draw.flag(0.15) else draw.choice(origins), d) for d in places[:split][:n]]
    elif draw.flag(0.3):  # neighbours
        pairs = [(p, p + 1) for p in range(n)]
    else:
        pairs = list(
            zip(draw.ids(n, sources, dtype, 0.15), draw.ids(n, destinations, dtype, 0.15), strict=True)
        )
    tensors = {"mapping": index(pairs, dtype, draw.layout(), (len(pairs), 2))}
    if draw.flag(0.3):
        count = draw.choice((-1, 0, 1, len(pairs) - 1, len(pairs), len(pairs) + 3))
        tensors["count"] = index(count, draw.index_dtype(), draw.layout(), draw.choice(((), (1,))))
    return tensors


def copies(draw: Draw) -> Case:
    blocks = draw.size(6)
    caches = [
        buffer((blocks, *inner(draw)), draw.dtype(), draw.layout(), output=True) for _ in range(draw.size(3))
    ]
    return Case(
        "copy_blocks",
        {"caches": caches, **mappings(draw, blocks, blocks, True)},
        {"index_policy": draw.policy()},
    )


@given(drawn(copies), ways, threads)
def test_copy_blocks(case: Case, way: str, threads: int) -> None:
    check(case, way, threads)


def swaps(draw: Draw) -> Case:
    sources, destinations = draw.size(6), draw.size(6)
    src, dst = [], []
    for _ in range(draw.size(3)):
        shape, dtype = inner(draw), draw.dtype()
        src.append(buffer((sources, *shape), dtype, draw.layout()))
        dst.append(buffer((destinations, *shape), dtype, draw.layout(), output=True))
    mapping = mappings(draw, sources, destinations, False)
    return Case("swap_blocks", {"src": src, "dst": dst, **mapping}, {"index_policy": draw.policy()})


@given(drawn(swaps), ways, threads)
def test_swap_blocks(case: Case, way: str, threads: int) -> None:
    check(case, way, threads)


def transfers(draw: Draw) -> Case:
    layers, n, blocks, pools = draw.size(3), draw.size(5), draw.size(6), draw.randint(1, 2)
    block = draw.randint(1, 4), draw.size(3), draw.randint(1, 7)
    dtype, index_dtype = draw.dtype(), draw.index_dtype()
    direction = draw.choice(("pools_to_chunk", "chunk_to_pools"))
    layout = draw.choice(("layer_first", "page_first"))
    to_pools = direction == "chunk_to_pools"
    sides = [
        [buffer((blocks, *block), dtype, draw.layout(), output=to_pools) for _ in range(layers)]
        for _ in range(pools)
    ]
    shape = ((layers, n) if layout == "layer_first" else (n, layers)) + (pools, *block)
    clean = draw.flag() and blocks >= n
    tensors = {
        "key_caches": sides[0],
        "value_caches": sides[1] if pools == 2 else draw.choice((None, [])),
        "chunk": buffer(shape, dtype, draw.layout(), output=not to_pools),
        "block_ids": index(
            draw.sample(range(blocks), n) if clean else draw.ids(n, blocks, index_dtype),
            index_dtype,
            draw.layout(),
        ),
    }
    return Case(
        "transfer_layers",
        tensors,
        {"chunk_layout": layout, "direction": direction, "index_policy": draw.policy()},
    )


@given(drawn(transfers), ways, threads)
def test_transfer_layers(case: Case, way: str, threads: int) -> None:
    check(case, way, threads)


@pytest.mark.parametrize("threads", [1, 3])
def test_large_blocks(threads: int) -> None:
    rng = np.random.default_rng(1)
    order = rng.permutation(64)
    block = (16, 4, 64)
    pools = [buffer((64, *block), "float16", output=True) for _ in range(4)]
    pairs = np.stack([order[:32], order[32:]], 1)
    check(Case("copy_blocks", {"caches": pools, "mapping": index(pairs, "int64")}), "plan", threads)
    others = [buffer((40, *block), "float16", output=True) for _ in range(4)]
    pairs = np.stack([np.arange(7, 39), np.arange(32) + 1], 1)
    pairs[20:] = pairs[20:][::-1]
    check(
        Case("swap_blocks", {"src": pools, "dst": others, "mapping": index(pairs, "int32")}), "plan", threads
    )
    ids = index(order[:30], "int32")
    for layout, direction, shape in (
        ("layer_first", "pools_to_chunk", (2, 30, 2, *block)),
        ("page_first", "chunk_to_pools", (30, 2, 2, *block)),
    ):
        chunk = buffer(shape, "float16", output=True)
        tensors = {"key_caches": pools[:2], "value_caches": pools[2:], "chunk": chunk, "block_ids": ids}
        check(
            Case("transfer_layers", tensors, {"chunk_layout": layout, "direction": direction}),
            "plan",
            threads,
        )


def test_the_oracle_by_hand() -> None:
    cache = np.arange(4, dtype=np.uint8).reshape(4, 1)
    mapping = np.array([[0, 1], [2, 2], [-1, 9], [0, 4], [1, 3], [0, 1]])
    out = oracle.copy_blocks([cache], mapping, index_policy="report")
    assert cache[:3].ravel().tolist() == [0, 0, 2]
    # Pair 3 has no destination, 4 reads what 0 writes, 5 writes it again.
    assert (out.bad, out.batch, out.id, out.which) == (3, 3, 4, oracle.DESTINATION)
    assert [place[2] for place in out.unspecified] == [(3,), (1,)]
    src, dst = np.array([[7], [8]], np.uint8), np.zeros((2, 1), np.uint8)
    out = oracle.swap_blocks([src], [dst], np.array([[1, 0], [0, 0], [2, 5]]), index_policy="report")
    assert dst[1, 0] == 0 and (out.bad, out.batch, out.id, out.which) == (
        2,
        1,
        0,
        oracle.DESTINATION | oracle.DUPLICATE,
    )
    pool, chunk = (
        np.arange(1, 4, dtype=np.uint8).reshape(3, 1, 1, 1, 1),
        np.full((3, 1, 1, 1, 1, 1, 1), 9, np.uint8),
    )
    ids = np.array([2, -1, 2])
    out = oracle.transfer_layers([pool], None, chunk, ids, chunk_layout="page_first", index_policy="report")
    assert chunk.ravel().tolist() == [3, 0, 3] and (out.bad, out.batch, out.id, out.which) == (
        1,
        1,
        -1,
        oracle.SOURCE,
    )
    chunk[0], chunk[1] = 40, 50
    out = oracle.transfer_layers(
        [pool],
        None,
        chunk,
        np.array([0, -1, 0]),
        chunk_layout="page_first",
        direction="chunk_to_pools",
        index_policy="report",
    )
    assert pool.ravel()[1:].tolist() == [2, 3] and (out.bad, out.batch, out.which) == (1, 2, oracle.DUPLICATE)
