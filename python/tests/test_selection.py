# SPDX-License-Identifier: Apache-2.0
"""gather_selection_kv_cache: one call against the oracle, chains of steps against the header's promises."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvferry
import oracle
from strategies import Draw, drawn, threads, ways
from support import Buffer, Case, Tensors, buffer, check, context, implementations, index, stream


def selection_case(
    rng: random.Random, seeds: list[int], dtype: str, policy: str, dirty: bool, **fixed: Any
) -> Case:
    """A call on random state. `seeds` are the layouts of its tensors."""
    pick = iter(seeds)

    def choose(name: str, *values: Any) -> Any:
        return fixed.get(name, rng.choice(values))

    batches, s, k = choose("batches", 1, 2, 3), choose("rows_per_batch", 1, 1, 2, 3), choose("k", 1, 2, 3, 5)
    bs = choose("block", 1, 2, 4)
    sblk, fblk = bs * rng.choice((1, 2, 3)), bs * rng.choice((1, 2, 4))
    rows = batches * s
    columns = -(-k * bs // sblk) + rng.choice((0, 0, 1))
    pool = rng.random() < 0.4 or "status_row" in fixed
    states = rows + rng.choice((0, 1, 2)) if pool else rows
    bsnd = rng.random() < 0.6
    if pool and bsnd:  # dimension 0 times dimension 1
        states = -(-states // s) * s
    table_rows = states + rng.choice((0, 0, 1))
    pages = table_rows * columns + rng.choice((0, 1))
    table = rng.sample(range(pages), table_rows * columns)
    full_columns = rng.choice((2, 3, 4))
    full_pages = rng.choice((1, 4, 6))
    full_table = [rng.randrange(full_pages) for _ in range(batches * full_columns)]
    kv = [rng.randint(1, full_columns * fblk) for _ in range(batches)]
    q_len = [rng.randint(0, s) for _ in range(batches)]
    if dirty:
        table = [rng.choice((-1, pages, 2**31 - 1)) if rng.random() < 0.1 else p for p in table]
        full_table = [rng.choice((-1, full_pages)) if rng.random() < 0.15 else p for p in full_table]
        kv = [rng.choice((-1, 0, n + fblk)) if rng.random() < 0.2 else n for n in kv]
        q_len = [rng.choice((-1, s + 1)) if rng.random() < 0.15 else n for n in q_len]
    mode = choose("q_len_mode", "counts", "prefix_sum", "all_rows")
    sums = [sum(q_len[: b + 1]) for b in range(batches)]
    top = []
    for r in range(rows):
        ids = -(-max(kv[r // s], 1) // bs)
        row = [rng.randrange(ids) for _ in range(k)]
        row = [rng.choice((-1, ids, ids + 1, 2**31 - 1)) if rng.random() < 0.12 else id for id in row]
        if rng.random() < 0.5:
            row[rng.randrange(k)] = ids - 1  # the last block, whole or not
        top += row
    status = []
    for _ in range(states):  # anything: the promises hold for every state
        length = rng.choice((-1, 0, rng.randint(1, k * bs), k * bs, k * bs + bs))
        limit = -(-max(kv) // bs) + 1
        status += [rng.randrange(-1, max(limit, 1)) for _ in range(k)] + [length]
    shape = ((batches, s, 1) if bsnd else (rows, 1), (states // s, s, 1) if bsnd else (states, 1))
    cache = [rng.choice((1, 3, 8)), rng.choice((0, 1, 4))]  # a rope without elements is absent
    pair = rng.random() < 0.6

    def ints(values: Any, shape: tuple[int, ...] | None = None, output: bool = False) -> Buffer:
        return index(values, "int32", next(pick), shape, output)

    tensors: Tensors = {
        "selection_k_rope": buffer((pages, sblk, cache[1]), dtype, next(pick), output=True) if pair else None,
        "selection_kv_cache": buffer((pages, sblk, cache[0]), dtype, next(pick), output=True),
        "selection_kv_block_table": ints(table, (table_rows, columns)),
        "selection_kv_block_status": ints(status, (*shape[1], k + 1), output=True),
        "selection_topk_indices": ints(top, (*shape[0], k)),
        "full_k_rope": buffer((full_pages, fblk, cache[1]), dtype, next(pick)) if pair else None,
        "full_kv_cache": buffer((full_pages, fblk, cache[0]), dtype, next(pick)),
        "full_kv_block_table": ints(full_table, (batches, full_columns)),
        "full_kv_actual_seq": ints(kv),
        "full_q_actual_seq": None if mode == "all_rows" else ints(sums if mode == "prefix_sum" else q_len),
        "selection_kv_actual_seq": ints([7] * table_rows, output=True),
    }
    if pool:
        places = rng.sample(range(states), rows)
        if dirty or "status_row" in fixed:
            places = [
                rng.choice((-1, -1, -2, states, places[0])) if rng.random() < 0.2 else p for p in places
            ]
        tensors["status_row"] = ints(places)
    if rng.random() < 0.6:
        tensors["counters"] = ints([5] * rows * 3, (rows, 3), output=True)
    if rng.random() < 0.6:
        tensors["fetch_counts"] = ints([5] * batches, output=True)
    options = {"selection_topk_block_size": bs, "q_len_mode": mode, "index_policy": policy}
    return Case("gather_selection_kv_cache", tensors, options)


def selections(draw: Draw, dirty: bool) -> Case:
    return selection_case(draw, [draw.layout() for _ in range(14)], draw.dtype(), draw.policy(), dirty)


@given(drawn(selections, False), ways, threads)
def test_selection(case: Case, way: str, threads: int) -> None:
    check(case, way, threads)


@given(drawn(selections, True), ways, threads)
def test_selection_with_bad_entries(case: Case, way: str, threads: int) -> None:
    check(case, way, threads)


class Decode:
    """A few requests that decode: the full caches grow, drafts are written again, the selection changes."""

    def __init__(self, seed: int, layers: int = 1) -> None:
        self.rng = rng = random.Random(seed)
        self.batches, self.s, self.k, self.bs = (
            rng.choice((1, 2, 3)),
            rng.choice((1, 2, 3)),
            rng.choice((2, 3, 6)),
            rng.choice((1, 2, 4)),
        )
        self.sblk, self.fblk = self.bs * rng.choice((1, 2)), self.bs * rng.choice((1, 2, 4))
        self.rows = self.batches * self.s
        columns, self.full_columns = -(-self.k * self.bs // self.sblk), 12
        pages, full_pages = self.rows * columns, self.batches * self.full_columns
        bits = np.random.default_rng(seed)
        self.table = np.array(rng.sample(range(pages), pages), np.int32).reshape(self.rows, columns)
        self.full_table = np.array(rng.sample(range(full_pages), full_pages), np.int32).reshape(
            self.batches, -1
        )
        self.full = [
            [bits.integers(0, 256, (full_pages, self.fblk, w), np.uint8) for w in (3, 5)]
            for _ in range(layers)
        ]
        self.selection = [
            [bits.integers(0, 256, (pages, self.sblk, w), np.uint8) for w in (3, 5)] for _ in range(layers)
        ]
        self.status = np.full((self.batches, self.s, 1, self.k + 1), -1, np.int32)
        self.length = np.zeros(self.rows, np.int32)
        self.counters, self.fetches = np.zeros((self.rows, 3), np.int32), np.zeros(self.batches, np.int32)
        self.kv = np.array([rng.randint(1, 3 * self.bs) for _ in range(self.batches)], np.int32)
        self.q = np.array([rng.randint(1, self.s) for _ in range(self.batches)], np.int32)
        self.topk = np.zeros((self.batches, self.s, 1, self.k), np.int32)
        self.bits = bits

    def full_token(self, cache: Any, b: int, t: int) -> Any:
        return cache[self.full_table[b, t // self.fblk], t % self.fblk]

    def advance(self) -> None:
        """Accepts some of the drafts, rewrites the rest, appends new ones, and picks another top-k."""
        rng = self.rng
        for b in range(self.batches):
            kept = rng.randint(1, max(int(self.q[b]), 1))
            settled = int(self.kv[b]) - max(int(self.q[b]) - kept, 0)
            self.q[b] = rng.randint(0, self.s)
            self.kv[b] = min(settled + max(int(self.q[b]), 0), self.full_columns * self.fblk)
            for t in range(max(int(self.kv[b] - self.q[b]), 0), int(self.kv[b])):
                for layer in self.full:
                    for cache in layer:
                        self.full_token(cache, b, t)[:] = self.bits.integers(0, 256, cache.shape[2])
            for s in range(self.s):
                ids = max(-(-int(self.kv[b]) // self.bs), 1)
                row = [int(i) for i in self.status[b, s, 0, : self.k] if 0 <= i < ids and rng.random() < 0.7]
                row += [rng.randrange(ids) for _ in range(self.k)]
                if rng.random() < 0.6:
                    row.insert(0, ids - 1)
                if rng.random() < 0.3:
                    row.insert(rng.randrange(len(row)), rng.choice((-1, ids, ids + 5)))
                row = row[: self.k]
                rng.shuffle(row)
                self.topk[b, s, 0] = row
                if rng.random() < 0.1:
                    self.status[b, s, 0, self.k] = rng.choice((0, -1))  # reset by hand

    def arguments(self, layer: int = 0) -> list[Any]:
        (rope, kv), (full_rope, full_kv) = self.selection[layer], self.full[layer]
        return [
            rope,
            kv,
            self.table,
            self.status,
            self.topk,
            full_rope,
            full_kv,
            self.full_table,
            self.kv,
            self.q,
            self.length,
        ]

    def options(self) -> dict[str, Any]:
        return {"selection_topk_block_size": self.bs, "counters": self.counters, "fetch_counts": self.fetches}

    def promises(self, layer: int, before: list[Any], status_before: Any) -> None:
        """Items 1 to 5 of the header, as questions about the result."""
        for cache, full, old in zip(self.selection[layer], self.full[layer], before, strict=True):
            mine = np.zeros(cache.shape[:2], bool)
            for r in range(self.rows):
                b, s = divmod(r, self.s)
                visible = int(self.kv[b]) - max(int(self.q[b]) - 1 - s, 0)
                status, old_status = self.status[b, s, 0], status_before[b, s, 0]
                if visible <= 0:
                    assert self.length[r] == 0 and (status == old_status).all()
                    continue
                ids, wanted = -(-visible // self.bs), []
                for id in self.topk[b, s, 0].tolist():
                    if id < 0:
                        break
                    if id < ids:
                        wanted.append(id)
                held, n = status[: self.k].tolist(), len(set(wanted))
                assert sorted(held[:n]) == sorted(set(wanted)) and held[n:] == [-1] * (self.k - n)
                at = 0  # valid tokens are the first ones, without a gap
                for p, id in enumerate(held[:n]):
                    tokens = min(self.bs, visible - id * self.bs)
                    assert tokens == self.bs or p == n - 1
                    for t in range(tokens):
                        place = self.table[r, at // self.sblk], at % self.sblk
                        assert (cache[place] == self.full_token(full, b, id * self.bs + t)).all(), (
                            r,
                            p,
                            id,
                            t,
                        )
                        mine[place] = True
                        at += 1
                assert self.length[r] == status[self.k] == at
            assert (cache[~mine] == old[~mine]).all()


@settings(max_examples=25)
@given(st.integers(0, 2**32), threads)
def test_chains_keep_the_promises(seed: int, threads: int) -> None:
    """Warm and cold state give the same sets and bytes; the oracle says each id's slot and the counters."""
    for name in implementations():
        world, ctx = Decode(seed), context(name, threads, False)
        for _ in range(6):
            world.advance()
            before, status = [c.copy() for c in world.selection[0]], world.status.copy()
            twin = [a.copy() for a in world.arguments()]
            numbers = [world.counters.copy(), world.fetches.copy()]
            cold = [a.copy() for a in world.arguments()]
            cold[3][..., world.k] = 0
            kvferry.gather_selection_kv_cache(*world.arguments(), **world.options(), context=ctx)
            world.promises(0, before, status)
            for i in (0, 1, 5, 6):
                twin[i] = twin[i][..., None]
            oracle.gather_selection_kv_cache(
                *twin, selection_topk_block_size=world.bs, counters=numbers[0], fetch_counts=numbers[1]
            )
            for i in (0, 1, 5, 6):
                twin[i] = twin[i][..., 0]
            for seen, wanted in zip(
                [*world.arguments(), world.counters, world.fetches], twin + numbers, strict=True
            ):
                assert np.array_equal(seen, wanted), name
            kvferry.gather_selection_kv_cache(*cold, selection_topk_block_size=world.bs, context=ctx)
            assert np.array_equal(cold[10], world.length)
            assert (
                np.array_equal(np.sort(cold[3][..., : world.k]), np.sort(world.status[..., : world.k]))
                or (world.kv <= 0).any()
            )


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_one_schedule_for_several_layers(threads: int, streamed: bool) -> None:
    for seed in range(8):
        world, ctx = Decode(seed, layers=3), context("", threads, streamed)
        plan = kvferry.plan_gather_selection_kv_cache(*world.arguments(), **world.options(), context=ctx)
        for _ in range(4):
            world.advance()
            status = world.status.copy()
            before = [[c.copy() for c in layer] for layer in world.selection]
            schedule(plan, world, ctx)
            for layer in range(3):
                copy(plan, world, layer, ctx)
            if streamed:
                stream().wait()
            for layer in range(3):
                world.promises(layer, before[layer], status)
            assert (world.counters[:, 0] + world.counters[:, 1] >= world.counters[:, 2]).all()
            assert world.fetches.sum() <= world.counters[:, 1].sum()


def schedule(plan: Any, world: Decode, ctx: Any) -> None:
    caches = (0, 1, 5, 6)
    state = [a for i, a in enumerate(world.arguments()) if i not in caches]
    plan.schedule(*state, counters=world.counters, fetch_counts=world.fetches, context=ctx)


def copy(plan: Any, world: Decode, layer: int, ctx: Any) -> None:
    (rope, kv), (full_rope, full_kv) = world.selection[layer], world.full[layer]
    plan.copy(rope, kv, full_rope, full_kv, context=ctx)


def test_a_copy_without_a_schedule_is_refused() -> None:
    world = Decode(1)
    plan = kvferry.plan_gather_selection_kv_cache(*world.arguments(), **world.options())
    before = [c.copy() for c in world.selection[0]]
    with pytest.raises(ValueError, match="gather_selection_kv_cache.*schedule"):
        copy(plan, world, 0, None)
    assert all(np.array_equal(a, b) for a, b in zip(before, world.selection[0], strict=True))


def test_a_schedule_does_not_touch_the_caches() -> None:
    world = Decode(2)
    world.advance()
    plan = kvferry.plan_gather_selection_kv_cache(*world.arguments(), **world.options())
    before = [c.copy() for c in world.selection[0]]
    schedule(plan, world, None)
    assert world.counters.any() and all(
        np.array_equal(a, b) for a, b in zip(before, world.selection[0], strict=True)
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_a_large_selection(threads: int) -> None:
    rng = random.Random(4)
    for policy in ("default", "report"):
        case = selection_case(
            rng, [0] * 14, "uint8", policy, True, batches=8, rows_per_batch=2, k=40, block=8
        )
        check(case, "plan", threads)


def test_the_oracle_by_hand() -> None:
    """Blocks of two tokens, K = 3. The row held blocks 0, 4, 2; 2, 5 and 0 are wanted; 5 has one token."""
    full = np.arange(12, dtype=np.uint8).reshape(6, 2, 1, 1) + 100
    selection = np.zeros((3, 2, 1, 1), np.uint8)
    selection[0], selection[1], selection[2] = full[0], full[4], full[2]
    status, length = np.array([[[0, 4, 2, 6]]], np.int32), np.zeros(1, np.int32)
    counters, fetches = np.zeros((1, 3), np.int32), np.zeros(1, np.int32)
    one = np.arange(6, dtype=np.int32)
    arguments = [
        None,
        selection,
        one[None, :3],
        status,
        np.array([[[2, 5, 0]]], np.int32),
        None,
        full,
        one[None],
    ]
    lens = [np.array([11], np.int32), np.array([1], np.int32), length]
    options = {"selection_topk_block_size": 2, "counters": counters, "fetch_counts": fetches}
    out = oracle.gather_selection_kv_cache(*arguments, *lens, **options)
    # 5 is partial: the last slot. 0 keeps its slot. 2 lost its slot to 5 and moves.
    assert status.ravel().tolist() == [0, 2, 5, 5] and length.tolist() == [5] and out.bad == 0
    assert selection.ravel().tolist() == [100, 101, 104, 105, 110, 105]  # the last byte is not written
    assert counters.tolist() == [[2, 1, 1]] and fetches.tolist() == [1]
    # Block 2 may hold drafts and is fetched again, though its slot is trusted; 1 makes room for it and moves.
    lens[0][0], lens[1][0] = 6, 2
    status[:] = [[[2, 1, 0, 6]]]
    arguments[4] = np.array([[[2, 1, -1]]], np.int32)
    oracle.gather_selection_kv_cache(*arguments, *lens, **options)
    assert counters.tolist() == [[1, 1, 1]] and status.ravel().tolist() == [1, 2, -1, 3]
