# SPDX-License-Identifier: Apache-2.0
"""Prefixes that sequences share in a paged pool, read back as contiguous keys and values, layer by layer.

Three requests begin with the same system prompt. Its blocks are in the pool once; every block table names them. Before
chunked prefill an engine reads a request's cached prefix into contiguous memory: one gather a layer, of one plan.
"""

from __future__ import annotations

import time

import numpy as np

import kvferry

LAYERS, BLOCKS, BLOCK_SIZE, HEADS, HEAD_SIZE = 16, 512, 16, 8, 128
SHARED, OWN = 1024, (40, 300, 511)  # tokens: of the system prompt, and of each request behind it


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


def main() -> None:
    rng = np.random.default_rng(1)
    # [pool]
    # K and V of a layer are slices of one array: any strides are taken as they are.
    pools = [rng.random((BLOCKS, 2, BLOCK_SIZE, HEADS, HEAD_SIZE), np.float32) for _ in range(LAYERS)]

    free = rng.permutation(BLOCKS).astype(np.int32)
    shared, free = np.split(free, [blocks_of(SHARED)])
    lens = np.array([SHARED + own for own in OWN], np.int32)
    tables = np.full((len(OWN), max(map(blocks_of, lens))), -1, np.int32)  # -1: never read
    for row, length in zip(tables, lens, strict=True):
        own, free = np.split(free, [blocks_of(length) - len(shared)])
        row[: blocks_of(length)] = np.concatenate([shared, own])
    # [pool]

    # [read]
    key = np.empty((lens.sum(), HEADS, HEAD_SIZE), np.float32)
    value = np.empty_like(key)
    plan = kvferry.plan_gather_pa_kv_cache(pools[0][:, 0], pools[0][:, 1], tables, lens, key, value)
    for pool in pools:
        plan.run(pool[:, 0], pool[:, 1], tables, lens, key, value)
        # ... attention of this layer over key and value ...
    # [read]

    start = time.perf_counter()
    for pool in pools:
        plan.run(pool[:, 0], pool[:, 1], tables, lens, key, value)
    seconds = time.perf_counter() - start

    # What a loop over tokens gives, for the last layer.
    tokens = [(i, t) for i, length in enumerate(lens) for t in range(length)]
    for out, which in ((key, 0), (value, 1)):
        expected = [pools[-1][tables[i, t // BLOCK_SIZE], which, t % BLOCK_SIZE] for i, t in tokens]
        assert np.array_equal(out, np.stack(expected)), "not the bytes of the pool"

    moved = LAYERS * (key.nbytes + value.nbytes)
    print(f"{plan.op} by {plan.implementation}: {len(lens)} prefixes of {', '.join(map(str, lens))} tokens")
    print(f"{len(shared)} of the {blocks_of(max(lens))} blocks of the longest are shared by all")
    print(
        f"{LAYERS} layers, {moved / 1e9:.2f} GB in {seconds * 1e3:.1f} ms: {moved / seconds / 1e9:.1f} GB/s"
    )


if __name__ == "__main__":
    main()
