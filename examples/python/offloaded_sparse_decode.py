# SPDX-License-Identifier: Apache-2.0
"""Sparse decoding over an offloaded cache: every step fetches only what the last one did not leave.

The full cache of two sequences lies in slow memory. A decode step wants the K tokens that an indexer picked; most of
them it wanted a step ago. Each sequence has a small selection cache in fast memory, which gather_selection_kv_cache
turns into exactly those K tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import kvferry

BATCH, PROMPT, STEPS, K = 2, 3000, 50, 256
PAGE, SELECTION_PAGE, LATENT, ROPE = 64, 128, 128, 16  # tokens of a page; bfloat16-sized rows of MLA


def pick(rng: np.random.Generator, last: npt.NDArray[np.int32], tokens: int) -> npt.NDArray[np.int32]:
    """An indexer's choice: 85 % of the last one, the rest new, and the newest token."""
    kept = rng.choice(last, K * 85 // 100, replace=False)
    others = np.setdiff1d(np.arange(tokens - 1, dtype=np.int32), kept)
    fresh = rng.choice(others, K - 1 - len(kept), replace=False)
    return rng.permutation(np.concatenate([kept, fresh, [tokens - 1]])).astype(np.int32)


def main() -> None:
    rng = np.random.default_rng(2)
    pages = -(-(PROMPT + STEPS) // PAGE)
    # [caches]
    full_kv = rng.random((BATCH * pages, PAGE, LATENT), np.float32).astype(np.float16)
    full_rope = rng.random((BATCH * pages, PAGE, ROPE), np.float32).astype(np.float16)
    full_table = rng.permutation(BATCH * pages).astype(np.int32).reshape(BATCH, pages)

    columns = K // SELECTION_PAGE
    selection_kv = np.zeros((BATCH * columns, SELECTION_PAGE, LATENT), np.float16)
    selection_rope = np.zeros((BATCH * columns, SELECTION_PAGE, ROPE), np.float16)
    selection_table = np.arange(BATCH * columns, dtype=np.int32).reshape(BATCH, columns)
    status = np.zeros((BATCH, 1, 1, K + 1), np.int32)  # zero tokens: nothing is there yet
    # [caches]
    counters = np.zeros((BATCH, 3), np.int32)
    actual = np.zeros(BATCH, np.int32)
    one_query = np.ones(BATCH, np.int32)

    hits = misses = 0
    topk = np.stack([np.arange(K, dtype=np.int32) for _ in range(BATCH)])
    for step in range(STEPS):
        tokens = PROMPT + step + 1
        topk = np.stack([pick(rng, np.minimum(row, tokens - 2), tokens) for row in topk])
        lens = np.full(BATCH, tokens, np.int32)
        # [step]
        kvferry.gather_selection_kv_cache(
            selection_rope,
            selection_kv,
            selection_table,
            status,
            topk.reshape(BATCH, 1, 1, K),
            full_rope,
            full_kv,
            full_table,
            lens,
            one_query,
            actual,
            selection_topk_block_size=1,
            counters=counters,
        )
        # [step]
        if step > 0:  # the first finds an empty cache
            hits, misses = hits + int(counters[:, 0].sum()), misses + int(counters[:, 1].sum())

        # Slot p of a row holds token status[row, p] of its sequence.
        for row in range(BATCH):
            ids = status[row, 0, 0, :K]
            assert np.array_equal(np.sort(ids), np.sort(topk[row])) and actual[row] == K
            for selection, full in ((selection_kv, full_kv), (selection_rope, full_rope)):
                held = selection[selection_table[row]].reshape(K, -1)
                assert np.array_equal(held, full[full_table[row, ids // PAGE], ids % PAGE]), (
                    "not the cache's bytes"
                )

    moved = misses * (LATENT + ROPE) * full_kv.itemsize
    print(f"{STEPS - 1} steps, {BATCH} sequences of {PROMPT} tokens and more, K = {K}")
    print(f"hits {hits}, misses {misses}: {hits / (hits + misses):.1%} of the tokens were there already")
    print(
        f"fetched {moved / 1e6:.1f} MB; all selected tokens are {moved / misses * (hits + misses) / 1e6:.1f} MB"
    )
    print("every selection cache verified at every step")


if __name__ == "__main__":
    main()
