# SPDX-License-Identifier: Apache-2.0
"""The formula of each operator's header as plain loops. Nothing of the library is used here.

Data tensors are views of bytes, shape + (bytes of an element,): bits are compared, never numbers. Index
tensors are arrays of integers. Arguments have the names of the Python API. A call changes its outputs in
place, unless it returns an Outcome with `refused`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

KEY, VALUE, COLUMN, DUPLICATE, SOURCE, DESTINATION = 1, 2, 4, 8, 16, 32

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Ints = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Outcome:
    """What a call says: the record, whether kReject refuses, and places whose bytes are nobody's promise."""

    bad: int = 0
    batch: int = 0
    column: int = 0
    id: int = 0
    which: int = 0
    refused: bool = False
    unspecified: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)

    def note(self, batch: int, column: int, id: int, which: int, count: int = 1) -> None:
        if self.bad == 0 or (batch, column) < (self.batch, self.column):
            self.batch, self.column, self.id, self.which = batch, column, id, which
        self.bad += count

    def under(self, policy: str, *reasons: bool) -> Outcome:
        """Refused if the policy is reject and there is a reason; no record unless the policy is report."""
        self.refused = policy == "reject" and (self.bad > 0 or any(reasons))
        if policy != "report":
            self.bad = self.batch = self.column = self.id = self.which = 0
        return self


def _snapshot(*arrays: Bytes | None) -> list[Bytes | None]:
    return [None if a is None else a.copy() for a in arrays]


def _restore(arrays: tuple[Bytes | None, ...], saved: list[Bytes | None]) -> None:
    for array, old in zip(arrays, saved, strict=True):
        if array is not None:
            array[...] = old


def _trunc(a: int, b: int) -> int:
    return -(-a // b) if a < 0 else a // b


def _visits(
    block_tables: Ints, seq_lens: Ints, seq_offset: Ints | None, cumsum: bool, rows: int, bs: int
) -> Any:
    """(batch, row, column, slot, id or None) of every token of the gather's loop."""
    run = 0
    for i in range(block_tables.shape[0]):
        if cumsum:
            beg, end = int(seq_lens[i]), int(seq_lens[i + 1])
        else:
            beg, end = run, run + max(int(seq_lens[i]), 0)
            run = end
        n = min(end, rows) - beg
        if beg >= rows or n <= 0:
            continue
        shift = _trunc(int(seq_offset[i]), bs) if seq_offset is not None else 0
        for t in range(max(0, -beg), n):
            column, slot = shift + t // bs, t % bs
            inside = 0 <= column < block_tables.shape[1]
            yield i, beg + t, column, slot, int(block_tables[i, column]) if inside else None


def _bad_lengths(seq_lens: Ints, cumsum: bool) -> bool:
    lens = [int(n) for n in seq_lens]
    if not cumsum:
        return any(n < 0 for n in lens)
    return lens[0] < 0 or any(b < a for a, b in zip(lens, lens[1:], strict=False))


def gather_pa_kv_cache(
    key_cache: Bytes,
    value_cache: Bytes,
    block_tables: Ints,
    seq_lens: Ints,
    key: Bytes,
    value: Bytes,
    *,
    seq_offset: Ints | None = None,
    cache_mode: str = "Norm",
    is_seq_lens_cumsum: bool = False,
    index_policy: str = "default",
) -> Outcome:
    out = Outcome()
    sides = [
        (n, b, c, o)
        for n, b, c, o in (("key", KEY, key_cache, key), ("value", VALUE, value_cache, value))
        if o.size
    ]
    if not sides:
        return out
    bs = key_cache.shape[1 if cache_mode == "Norm" else 2]
    saved = _snapshot(key, value)
    seen: set[tuple[int, int]] = set()
    claimed: dict[int, int] = {}
    for i, row, column, slot, id in _visits(
        block_tables, seq_lens, seq_offset, is_seq_lens_cumsum, key.shape[0], bs
    ):
        which = 0
        for name, bit, cache, output in sides:
            if claimed.setdefault(row, i) != i:
                out.unspecified.append((name, 0, (row,)))
            if id is None or not 0 <= id < cache.shape[0]:
                which |= bit
                output[row] = 0
            elif cache_mode == "Norm":
                output[row] = cache[id, slot]
            else:
                e = cache.shape[3]
                for j in range(output.shape[1]):
                    output[row, j] = cache[id, j // e, slot, j % e]
        if which and (i, column) not in seen:
            seen.add((i, column))
            far = max(-(2**62), min(2**62, column))
            out.note(
                i, far, 0 if id is None else id, which | (COLUMN if id is None else 0), which.bit_count()
            )
    out.under(index_policy, _bad_lengths(seq_lens, is_seq_lens_cumsum))
    if out.refused:
        _restore((key, value), saved)
    return out


def _e4m3(byte: int) -> float:
    sign, exponent, mantissa = byte >> 7, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if sign else size


_E4M3 = np.array([_e4m3(byte) for byte in range(256)], np.float32)


def bfloat16(float32_bits: int) -> int:
    """To nearest, ties to even; every NaN is one NaN."""
    high, low = float32_bits >> 16, float32_bits & 0xFFFF
    if float32_bits & 0x7FFFFFFF > 0x7F800000:
        return 0x7FC0
    return high + (low > 0x8000 or (low == 0x8000 and high & 1 == 1))


def dequant(token: bytes) -> list[int]:
    """The 576 values of one token, as the bits of bfloat16."""
    scales = np.frombuffer(token, "<f4", 4, 512)
    with np.errstate(all="ignore"):
        products = [_E4M3[token[j]] * scales[j // 128] for j in range(512)]
    bits = np.array(products, np.float32).view(np.uint32).tolist()
    return [bfloat16(b) for b in bits] + [token[528 + 2 * j] | token[529 + 2 * j] << 8 for j in range(64)]


def gather_dequant(
    cache: Bytes,
    block_tables: Ints,
    seq_lens: Ints,
    out: Bytes,
    *,
    seq_offset: Ints | None = None,
    is_seq_lens_cumsum: bool = False,
    index_policy: str = "default",
) -> Outcome:
    result = Outcome()
    if out.size == 0:
        return result
    saved = _snapshot(out)
    seen: set[tuple[int, int]] = set()
    claimed: dict[int, int] = {}
    for i, row, column, slot, id in _visits(
        block_tables, seq_lens, seq_offset, is_seq_lens_cumsum, out.shape[0], cache.shape[1]
    ):
        if claimed.setdefault(row, i) != i:
            result.unspecified.append(("out", 0, (row,)))
        if id is not None and 0 <= id < cache.shape[0]:
            for j, bits in enumerate(dequant(cache[id, slot].tobytes())):
                out[row, j] = bits & 255, bits >> 8
            continue
        out[row] = 0
        if (i, column) not in seen:
            seen.add((i, column))
            far = max(-(2**62), min(2**62, column))
            result.note(i, far, 0 if id is None else id, KEY | (COLUMN if id is None else 0))
    result.under(index_policy, _bad_lengths(seq_lens, is_seq_lens_cumsum))
    if result.refused:
        _restore((out,), saved)
    return result


def scatter_pa_kv_cache(
    key: Bytes,
    value: Bytes | None,
    key_cache: Bytes,
    value_cache: Bytes | None,
    slot_mapping: Ints,
    *,
    cache_mode: str = "Norm",
    scatter_mode: str = "None",
    nct_strides: tuple[int, int] = (0, 0),
    nct_offsets: tuple[int, int] = (0, 0),
    index_policy: str = "default",
) -> Outcome:
    out = Outcome()
    nz = cache_mode == "PA_NZ"

    def token(cache: Bytes, block: int, position: int, h: int, d: int, head_size: int) -> tuple[int, ...]:
        if nz and cache.ndim == 6:  # rank 5 and the bytes
            e = cache.shape[4]
            return block, h, d // e, position, d % e
        if nz:
            e = cache.shape[3]
            return block, (h * head_size + d) // e, position, (h * head_size + d) % e
        return (block, h, position, d) if scatter_mode == "Nhsd" else (block, position, h, d)

    def block_size(cache: Bytes) -> int:
        return cache.shape[cache.ndim - 3 if nz else 2 if scatter_mode == "Nhsd" else 1]

    def token_of(rows: Bytes, t: int, h: int, d: int, side: int) -> Bytes:
        if scatter_mode != "Nct":
            return rows[t, h, d]
        storage = rows.reshape(-1, rows.shape[-1])  # the tests pass dense rows
        return storage[nct_offsets[side] + t * nct_strides[side] + h * rows.shape[2] + d]

    sides = []
    for name, bit, rows, cache in (
        ("key_cache", KEY, key, key_cache),
        ("value_cache", VALUE, value, value_cache),
    ):
        if rows is not None and cache is not None and rows.size:
            sides.append((name, bit, rows, cache))
    saved = _snapshot(key_cache, value_cache)
    named: set[int] = set()
    for t in range(slot_mapping.shape[0]):
        s = int(slot_mapping[t])
        if s < 0:
            continue
        which = 0
        for name, bit, rows, cache in sides:
            bs = block_size(cache)
            if s >= cache.shape[0] * bs:
                which |= bit
                continue
            for h in range(rows.shape[1]):
                for d in range(rows.shape[2]):
                    place = token(cache, s // bs, s % bs, h, d, rows.shape[2])
                    cache[place] = token_of(rows, t, h, d, bit - 1)
                    if s in named:
                        out.unspecified.append((name, 0, place))
            if s in named:
                which |= bit | DUPLICATE
        named.add(s)
        if which:
            out.note(t, 0, s, which, (which & (KEY | VALUE)).bit_count())
    out.under(index_policy)
    if out.refused:
        _restore((key_cache, value_cache), saved)
    return out


def _pairs(mapping: Ints, count: Ints | None) -> list[tuple[int, int]]:
    n = mapping.shape[0] if count is None else max(0, min(int(count.reshape(-1)[0]), mapping.shape[0]))
    return [(int(mapping[p, 0]), int(mapping[p, 1])) for p in range(n)]


def _has_bytes(cache: Bytes) -> bool:
    """Blocks have bytes, even if there is no block."""
    return 0 not in cache.shape[1:]


def copy_blocks(
    caches: list[Bytes], mapping: Ints, *, count: Ints | None = None, index_policy: str = "default"
) -> Outcome:
    out = Outcome()
    if not any(_has_bytes(cache) for cache in caches):
        return out
    blocks = caches[0].shape[0]
    pairs = _pairs(mapping, count)
    real = [(s, d) for s, d in pairs if 0 <= s < blocks and 0 <= d < blocks and s != d]
    destinations = {d for _, d in real}
    taken: set[int] = set()
    before = [cache.copy() for cache in caches]
    for p, (s, d) in enumerate(pairs):
        if s < 0 or d < 0:
            continue
        if s >= blocks or d >= blocks:
            which = (SOURCE if s >= blocks else 0) | (DESTINATION if d >= blocks else 0)
            out.note(p, 0, s if s >= blocks else d, which)
            continue
        if s == d:
            continue
        which = (SOURCE if s in destinations else 0) | (DESTINATION if d in taken else 0)
        if which:
            out.note(p, 0, s if which & SOURCE else d, which | DUPLICATE)
            out.unspecified += [("caches", i, (d,)) for i, cache in enumerate(caches) if cache.size]
        taken.add(d)
        for cache, old in zip(caches, before, strict=True):
            cache[d] = old[s]
    out.under(index_policy)
    if out.refused:
        _restore(tuple(caches), list(before))
    return out


def swap_blocks(
    src: list[Bytes],
    dst: list[Bytes],
    mapping: Ints,
    *,
    count: Ints | None = None,
    index_policy: str = "default",
) -> Outcome:
    out = Outcome()
    live = [i for i, cache in enumerate(dst) if _has_bytes(cache)]
    if not live:
        return out
    sources, destinations = src[0].shape[0], dst[0].shape[0]
    before = [cache.copy() for cache in dst]
    taken: set[int] = set()
    for p, (s, d) in enumerate(_pairs(mapping, count)):
        if s < 0 or d < 0:
            continue
        if s >= sources or d >= destinations:
            which = (SOURCE if s >= sources else 0) | (DESTINATION if d >= destinations else 0)
            out.note(p, 0, s if s >= sources else d, which)
            continue
        if d in taken:
            out.note(p, 0, d, DESTINATION | DUPLICATE)
            out.unspecified += [("dst", i, (d,)) for i in live]
        taken.add(d)
        for i in live:
            dst[i][d] = src[i][s]
    out.under(index_policy)
    if out.refused:
        _restore(tuple(dst), list(before))
    return out


def transfer_layers(
    key_caches: list[Bytes],
    value_caches: list[Bytes] | None,
    chunk: Bytes,
    block_ids: Ints,
    *,
    chunk_layout: str = "layer_first",
    direction: str = "pools_to_chunk",
    index_policy: str = "default",
) -> Outcome:
    out = Outcome()
    if chunk.size == 0:
        return out
    pools = [("key_caches", key_caches)] + ([("value_caches", value_caches)] if value_caches else [])
    blocks = key_caches[0].shape[0]
    written = (chunk, *key_caches, *(value_caches or ()))
    saved = _snapshot(*written)
    named: set[int] = set()
    to_chunk = direction == "pools_to_chunk"
    for i in range(block_ids.shape[0]):
        id = int(block_ids[i])
        inside = 0 <= id < blocks
        repeated = inside and id in named
        named.add(id)
        if to_chunk and not inside:
            out.note(i, 0, id, SOURCE)
        if not to_chunk and (id >= blocks or repeated):
            out.note(i, 0, id, DUPLICATE if repeated else DESTINATION)
        for layer in range(len(key_caches)):
            for p, (name, side) in enumerate(pools):
                place = (layer, i, p) if chunk_layout == "layer_first" else (i, layer, p)
                if to_chunk:
                    chunk[place] = side[layer][id] if inside else 0
                elif inside:
                    side[layer][id] = chunk[place]
                    if repeated:
                        out.unspecified.append((name, layer, (id,)))
    out.under(index_policy)
    if out.refused:
        _restore(written, saved)
    return out


def group_memcpy(
    memory: Bytes,
    pairs: list[tuple[int | None, int | None]],
    sizes: list[int],
    *,
    count: int | None,
    skip_null: bool,
) -> None:
    """`pairs` are offsets into `memory`, None is a null address."""
    before = memory.copy()
    n = len(pairs) if count is None else max(0, min(count, len(pairs)))
    for (s, d), size in list(zip(pairs, sizes, strict=True))[:n]:
        if size == 0 or (skip_null and (s is None or d is None)):
            continue
        assert s is not None and d is not None
        memory[d : d + size] = before[s : s + size]


def _rows(array: Ints) -> list[Ints]:
    """The rows of a BSND [B, S, 1, n] or TND [T, 1, n] tensor."""
    if array.ndim == 4:
        return [array[b, s, 0] for b in range(array.shape[0]) for s in range(array.shape[1])]
    return [array[t, 0] for t in range(array.shape[0])]


@dataclass
class _Slot:
    id: int
    tokens: int
    resident: int | None = None  # the slot that holds it already
    which: int = 0


def gather_selection_kv_cache(
    selection_k_rope: Bytes | None,
    selection_kv_cache: Bytes,
    selection_kv_block_table: Ints,
    selection_kv_block_status: Ints,
    selection_topk_indices: Ints,
    full_k_rope: Bytes | None,
    full_kv_cache: Bytes,
    full_kv_block_table: Ints,
    full_kv_actual_seq: Ints,
    full_q_actual_seq: Ints | None,
    selection_kv_actual_seq: Ints,
    *,
    selection_topk_block_size: int = 64,
    q_len_mode: str = "counts",
    status_row: Ints | None = None,
    counters: Ints | None = None,
    fetch_counts: Ints | None = None,
    index_policy: str = "default",
) -> Outcome:
    out = Outcome()
    bs, topk, states = (
        selection_topk_block_size,
        _rows(selection_topk_indices),
        _rows(selection_kv_block_status),
    )
    batches, k = full_kv_block_table.shape[0], selection_topk_indices.shape[-1]
    rows_of_batch = len(topk) // batches if batches else 0
    sblk, fblk = selection_kv_cache.shape[1], full_kv_cache.shape[1]
    pages, full_pages = selection_kv_cache.shape[0], full_kv_cache.shape[0]

    def q_len(b: int) -> int:
        if q_len_mode == "all_rows":
            return rows_of_batch
        assert full_q_actual_seq is not None
        q = int(full_q_actual_seq[b])
        if q_len_mode == "prefix_sum" and b > 0:
            q -= int(full_q_actual_seq[b - 1])
        return max(q, 0)

    def page(state: int, slot: int) -> int | None:
        p = int(selection_kv_block_table[state, slot * bs // sblk])
        return p if 0 <= p < pages else None

    def full_page(b: int, id: int) -> tuple[int | None, int]:
        column = id * bs // fblk
        if column >= full_kv_block_table.shape[1]:
            return None, COLUMN
        p = int(full_kv_block_table[b, column])
        return (p, 0) if 0 <= p < full_pages else (None, SOURCE)

    too_many = any(q_len(b) > rows_of_batch for b in range(batches))
    plans: list[tuple[int, list[_Slot]] | None] = []  # (state, slots) of each active row
    numbers: list[tuple[int, int, int]] = []
    misses: list[set[int]] = [set() for _ in range(batches)]
    taken: set[int] = set()
    for r in range(len(topk)):
        b, s = divmod(r, rows_of_batch)
        state = int(status_row[r]) if status_row is not None else r
        plans.append(None)
        numbers.append((0, 0, 0))
        if not -1 <= state < len(states):
            out.note(r, 0, state, DESTINATION)
            continue
        if state == -1:
            continue
        if state in taken:
            out.note(r, 0, state, DUPLICATE)
            continue
        taken.add(state)
        kv, q = int(full_kv_actual_seq[b]), q_len(b)
        visible = kv - (q - 1 - s) if s < q else kv
        if visible <= 0:
            continue
        num_ids = -(-visible // bs)
        tail = visible - (num_ids - 1) * bs
        selected: list[int] = []
        for entry in topk[r]:
            if entry < 0:
                break
            if entry < num_ids and int(entry) not in selected:
                selected.append(int(entry))
        n = len(selected)
        old = int(states[state][k])
        resident: dict[int, int] = {}
        for p in range(min(k, max(0, -(-old // bs)))):
            id = int(states[state][p])
            partial = old % bs != 0 and p == old // bs
            if partial or page(state, p) is None or id not in selected or id in resident:
                continue
            if (id + 1) * bs <= kv - q:
                resident[id] = p
        place: dict[int, int] = {}
        if tail < bs and num_ids - 1 in selected:
            place[num_ids - 1] = n - 1
        for id, p in resident.items():
            if id not in place and p < n and p not in place.values():
                place[id] = p
        left = [p for p in range(n) if p not in place.values()]
        for id in selected:
            if id not in place:
                place[id] = left.pop(0)
        slots = []
        for id, p in sorted(place.items(), key=lambda item: item[1]):
            slot = _Slot(id, tail if id == num_ids - 1 else bs, resident.get(id))
            if page(state, p) is None:
                slot.which |= DESTINATION
            if slot.resident is None:
                misses[b].add(id)
                slot.which |= full_page(b, id)[1]
            if slot.which:
                out.note(r, p, id, slot.which)
            slots.append(slot)
        moved = sum(slot.resident not in (None, p) for p, slot in enumerate(slots))
        numbers[r] = len(resident), n - len(resident), moved
        plans[r] = state, slots

    out.under(index_policy, too_many)
    if out.refused:
        return out

    for selection, full in ((selection_kv_cache, full_kv_cache), (selection_k_rope, full_k_rope)):
        if selection is None or full is None:
            continue
        before = selection.copy()
        for r, plan in enumerate(plans):
            if plan is None:
                continue
            state, slots = plan
            for p, slot in enumerate(slots):
                to = page(state, p)
                if to is None:
                    continue
                for t in range(slot.tokens):
                    token: Any = 0
                    if slot.resident is not None:
                        at = slot.resident * bs + t
                        token = before[page(state, slot.resident), at % sblk]
                    elif not slot.which:
                        at = slot.id * bs + t
                        token = full[full_page(r // rows_of_batch, slot.id)[0], at % fblk]
                    selection[to, (p * bs + t) % sblk] = token

    selection_kv_actual_seq[...] = 0
    for r, plan in enumerate(plans):
        if counters is not None:
            counters[r] = numbers[r]
        if plan is None:
            continue
        state, slots = plan
        length = sum(slot.tokens for slot in slots)
        selection_kv_actual_seq[r] = length
        states[state][:k] = [-1 if slot.which else slot.id for slot in slots] + [-1] * (k - len(slots))
        states[state][k] = length
    if fetch_counts is not None:
        fetch_counts[...] = [len(m) for m in misses]
    return out
