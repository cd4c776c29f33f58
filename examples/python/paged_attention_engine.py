# SPDX-License-Identifier: Apache-2.0
"""A small inference engine with paged attention, four times the same but for its KV cache.

A random transformer (grouped-query attention, RoPE, RMSNorm, SwiGLU) serves requests that arrive one after the other:
prompts are prefilled, then up to WIDTH sequences decode together. Its cache is one of

  PlainCache      a tensor for each sequence
  PagedCache      blocks of one pool; scatter_pa_kv_cache writes, gather_pa_kv_cache reads
  OffloadedCache  the same with too few blocks: swap_blocks moves sequences to a host pool and back
  SelectionCache  the pool is slow memory; decoding attends to the K best blocks, which gather_selection_kv_cache
                  keeps in a small cache

The logits of the first three are bit-equal: the same bytes go through the same arithmetic. So are those of the fourth
while K covers a sequence. With fewer blocks attention sees less, and the difference is printed.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

import kvferry

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, VOCABULARY = 3, 128, 8, 2, 16, 211
PROMPTS, NEW_TOKENS, WIDTH = (70, 23, 130, 48, 9), 24, 3
BLOCK_SIZE, BLOCKS = 16, 64


@dataclass
class Batch:
    """The sequences of one step: how many tokens each has in the cache before, and how many the step adds."""

    ids: list[int]
    before: list[int]
    new: list[int]

    @property
    def lens(self) -> list[int]:
        return [b + n for b, n in zip(self.before, self.new, strict=True)]


class Cache(Protocol):
    def begin(self, batch: Batch) -> None:
        """Makes room for the tokens that the step adds."""

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Those of one layer, [tokens of all sequences, heads, head size]."""

    def read(self, layer: int, query: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values that each sequence attends to, in the order of their positions."""

    def end(self, sequence: int) -> None:
        """Nothing of it is needed any more."""


class PlainCache:
    def __init__(self) -> None:
        self.held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def begin(self, batch: Batch) -> None:
        self.batch = batch

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        parts = zip(self.batch.ids, key.split(self.batch.new), value.split(self.batch.new), strict=True)
        for i, k, v in parts:
            old = self.held.get((layer, i))
            self.held[layer, i] = (k, v) if old is None else (torch.cat([old[0], k]), torch.cat([old[1], v]))

    def read(self, layer: int, query: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [self.held[layer, i] for i in self.batch.ids]

    def end(self, sequence: int) -> None:
        for layer in range(LAYERS):
            del self.held[layer, sequence]


class PagedCache:
    def __init__(self, blocks: int = BLOCKS) -> None:
        # K and V of a layer are slices of one pool: operators take any strides.
        self.pool = torch.zeros(LAYERS, blocks, 2, BLOCK_SIZE, KV_HEADS, HEAD_SIZE)
        self.free = list(range(blocks))
        # Of each sequence, least recently used first.
        self.blocks: OrderedDict[int, list[int]] = OrderedDict()

    def sides(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.pool[layer, :, 0], self.pool[layer, :, 1]

    def begin(self, batch: Batch) -> None:
        self.batch = batch
        slots: list[int] = []
        for i, before, length in zip(batch.ids, batch.before, batch.lens, strict=True):
            held = self.blocks.setdefault(i, [])
            while len(held) * BLOCK_SIZE < length:
                held.append(self.free.pop())
            slots += [held[t // BLOCK_SIZE] * BLOCK_SIZE + t % BLOCK_SIZE for t in range(before, length)]
            self.blocks.move_to_end(i)
        # Once a step, for all layers.
        self.slots = torch.tensor(slots)
        self.lens = torch.tensor(batch.lens, dtype=torch.int32)
        columns = max(len(self.blocks[i]) for i in batch.ids)
        rows = [self.blocks[i] + [-1] * (columns - len(self.blocks[i])) for i in batch.ids]
        self.tables = torch.tensor(rows, dtype=torch.int32)

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        kvferry.scatter_pa_kv_cache(key, value, *self.sides(layer), self.slots)

    def read(self, layer: int, query: Tensor) -> list[tuple[Tensor, Tensor]]:
        key, value = torch.empty(2, int(self.lens.sum()), KV_HEADS, HEAD_SIZE)
        kvferry.gather_pa_kv_cache(*self.sides(layer), self.tables, self.lens, key, value)
        return list(zip(key.split(self.batch.lens), value.split(self.batch.lens), strict=True))

    def end(self, sequence: int) -> None:
        self.free += self.blocks.pop(sequence)


class OffloadedCache(PagedCache):
    """Sequences that the step does not need make room for those that it does."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.host = torch.zeros(LAYERS, BLOCKS, 2, BLOCK_SIZE, KV_HEADS, HEAD_SIZE)
        self.host_free = list(range(BLOCKS))
        self.away: dict[int, list[int]] = {}
        self.swaps = 0

    def begin(self, batch: Batch) -> None:
        needed = sum(-(-length // BLOCK_SIZE) for length in batch.lens)
        needed -= sum(len(self.blocks.get(i, ())) for i in batch.ids)
        for i in [i for i in self.blocks if i not in batch.ids]:
            if needed <= len(self.free):
                break
            out = self.blocks.pop(i)
            self.away[i] = [self.host_free.pop() for _ in out]
            self.swap(self.pool, out, self.host, self.away[i])
            self.free += out
        for i in batch.ids:
            if i in self.away:
                back = self.away.pop(i)
                self.blocks[i] = [self.free.pop() for _ in back]
                self.swap(self.host, back, self.pool, self.blocks[i])
                self.host_free += back
        super().begin(batch)

    def swap(self, src: Tensor, src_blocks: list[int], dst: Tensor, dst_blocks: list[int]) -> None:
        mapping = torch.tensor([src_blocks, dst_blocks]).T  # all layers in one call
        kvferry.swap_blocks(list(src), list(dst), mapping)
        self.swaps += len(src_blocks)


class SelectionCache(PagedCache):
    """Each sequence has a row of state and K blocks of fast memory in every layer, which stay its own."""

    def __init__(self, k: int) -> None:
        super().__init__()
        rows = len(PROMPTS)
        self.k = k
        # The operator has one head: K goes where MLA has its latents, V where it has its rope.
        self.fast = torch.zeros(LAYERS, 2, rows * k, BLOCK_SIZE, KV_HEADS * HEAD_SIZE)
        self.fast_table = torch.arange(rows * k, dtype=torch.int32).view(rows, k)
        self.status = torch.zeros(LAYERS, rows, 1, k + 1, dtype=torch.int32)  # no tokens: nothing to re-use
        self.hits = self.misses = 0

    def read(self, layer: int, query: Tensor) -> list[tuple[Tensor, Tensor]]:
        if max(self.batch.new) > 1:
            return super().read(layer, query)  # prefill attends to everything
        batch = len(self.batch.ids)
        fast_key, fast_value = self.fast[layer]
        status_row = torch.tensor(self.batch.ids, dtype=torch.int32)
        actual = torch.zeros(len(PROMPTS), dtype=torch.int32)
        counters = torch.zeros(batch, 3, dtype=torch.int32)
        kvferry.gather_selection_kv_cache(
            fast_value,
            fast_key,
            self.fast_table,
            self.status[layer],
            self.best_blocks(layer, query),
            self.sides(layer)[1].flatten(2),
            self.sides(layer)[0].flatten(2),
            self.tables,
            self.lens,
            torch.ones(batch, dtype=torch.int32),
            actual,
            selection_topk_block_size=BLOCK_SIZE,
            status_row=status_row,
            counters=counters,
        )
        self.hits, self.misses = (
            self.hits + int(counters[:, 0].sum()),
            self.misses + int(counters[:, 1].sum()),
        )
        # Attention needs no order; here the slots are read in the order of their blocks, so that the sums are those
        # of the other caches to the last bit. The last block, which may be partial, comes last.
        result = []
        for r, i in enumerate(self.batch.ids):
            ids = self.status[layer, i, 0, :-1]
            slots = self.fast_table[i, torch.argsort(ids)[int((ids < 0).sum()) :]]
            tokens = int(actual[r])
            key, value = (
                side[slots].view(-1, KV_HEADS, HEAD_SIZE)[:tokens] for side in (fast_key, fast_value)
            )
            result.append((key, value))
        return result

    def end(self, sequence: int) -> None:
        super().end(sequence)
        self.status[:, sequence] = 0  # its row may serve another

    def best_blocks(self, layer: int, query: Tensor) -> Tensor:
        """[batch, 1, K]: by the product of the queries and the mean key of a block; the newest block always.

        An engine keeps the means beside the cache. Here they are made anew.
        """
        result = torch.full((len(self.batch.ids), 1, self.k), -1, dtype=torch.int32)
        for r, (i, length) in enumerate(zip(self.batch.ids, self.batch.lens, strict=True)):
            means = self.sides(layer)[0][self.blocks[i]].mean(1)  # [blocks, kv heads, head size]
            grouped = query[r].view(KV_HEADS, -1, HEAD_SIZE).sum(1)
            scores = (means * grouped).sum((1, 2))
            scores[-1] = torch.inf
            count = min(self.k, -(-length // BLOCK_SIZE))
            result[r, 0, :count] = scores.topk(count).indices
        return result


class Model:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)

        def weight(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

        self.embedding = torch.randn(VOCABULARY, HIDDEN, generator=generator)
        qkv = (HEADS + 2 * KV_HEADS) * HEAD_SIZE
        self.layers = [
            (
                weight(qkv, HIDDEN),
                weight(HIDDEN, HEADS * HEAD_SIZE),
                weight(4 * HIDDEN, HIDDEN),
                weight(HIDDEN, 2 * HIDDEN),
            )
            for _ in range(LAYERS)
        ]
        frequencies = 10000.0 ** (-torch.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
        angles = torch.outer(torch.arange(1024.0), frequencies)
        self.cos, self.sin = angles.cos()[:, None], angles.sin()[:, None]

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        cos, sin = self.cos[positions], self.sin[positions]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def step(self, tokens: Tensor, batch: Batch, cache: Cache) -> Tensor:
        """The logits behind the last token of each sequence."""
        spans = zip(batch.before, batch.lens, strict=True)
        positions = torch.cat([torch.arange(before, length) for before, length in spans])
        cache.begin(batch)
        x = self.embedding[tokens]
        for layer, (qkv, out, up, down) in enumerate(self.layers):
            heads = (rms_norm(x, (HIDDEN,)) @ qkv.T).view(len(tokens), -1, HEAD_SIZE)
            query, key, value = heads.split([HEADS, KV_HEADS, KV_HEADS], 1)
            query = self.rotate(query, positions)
            cache.write(layer, self.rotate(key, positions), value)
            attended = []
            for q, (k, v) in zip(query.split(batch.new), cache.read(layer, query), strict=True):
                # The last query sees all keys, those before it one less each.
                mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
                q, k, v = (t.transpose(0, 1) for t in (q, k.contiguous(), v.contiguous()))
                a = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
                attended.append(a.transpose(0, 1).flatten(1))
            x = x + torch.cat(attended) @ out.T
            gate, wide = (rms_norm(x, (HIDDEN,)) @ up.T).chunk(2, -1)
            x = x + (silu(gate) * wide) @ down.T
        last = torch.tensor(batch.new).cumsum(0) - 1
        return rms_norm(x[last], (HIDDEN,)) @ self.embedding.T


def serve(model: Model, cache: Cache) -> Tensor:
    """The logits of every token of every request, [requests, NEW_TOKENS, VOCABULARY]. The tokens that go on are given,
    so that all caches see the same sequences."""
    generator = torch.Generator().manual_seed(4)
    texts = [torch.randint(VOCABULARY, (p + NEW_TOKENS,), generator=generator) for p in PROMPTS]
    done: list[list[Tensor]] = [[] for _ in PROMPTS]
    running: list[int] = []
    arrivals = list(range(len(PROMPTS)))
    while arrivals or running:
        if arrivals and len(running) <= len(PROMPTS) - len(arrivals):
            i = arrivals.pop(0)  # its prompt, alone
            batch = Batch([i], [0], [PROMPTS[i]])
        else:  # those that waited longest
            ids = running[:WIDTH]
            batch = Batch(ids, [PROMPTS[i] + len(done[i]) - 1 for i in ids], [1] * len(ids))
        spans = zip(batch.ids, batch.before, batch.lens, strict=True)
        tokens = torch.cat([texts[i][before:length] for i, before, length in spans])
        for i, logits in zip(batch.ids, model.step(tokens, batch, cache), strict=True):
            done[i].append(logits)
            running = [r for r in running if r != i]
            if len(done[i]) < NEW_TOKENS:
                running.append(i)
            else:
                cache.end(i)
    return torch.stack([torch.stack(logits) for logits in done])


def main() -> int:
    model = Model()
    covering = -(-(max(PROMPTS) + NEW_TOKENS) // BLOCK_SIZE)
    plain = serve(model, PlainCache())
    offloaded, selection = OffloadedCache(blocks=22), SelectionCache(covering)
    failed = 0
    for name, cache in (
        ("paged", PagedCache()),
        ("offloaded", offloaded),
        (f"selection of {covering} blocks", selection),
    ):
        same = torch.equal(serve(model, cache), plain)
        failed += not same
        print(f"{name:24}{'the logits of the plain cache, bit for bit' if same else 'OTHER LOGITS'}")
    print(f"{offloaded.swaps} blocks were swapped")
    for k in (6, 4, 2):
        cache = SelectionCache(k)
        logits = serve(model, cache)
        error = (logits - plain).abs().max().item()
        relative = ((logits - plain).norm() / plain.norm()).item()
        print(
            f"selection of {k} blocks    largest difference {error:.3f}, relative {relative:.3f}; "
            f"{cache.hits / (cache.hits + cache.misses):.0%} of the blocks were there already"
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
