# SPDX-License-Identifier: Apache-2.0
"""Tensors with a past: any strides and offset inside a raw buffer whose every byte is compared afterwards.

A Case is one call: the operator's name, its tensors by the names of the API, its options. `check` runs the
oracle on one copy of all buffers and the library on others, once for every implementation, and compares the
complete buffers: outputs, what lies between and around their elements, and inputs.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kvferry
import oracle

try:
    import ml_dtypes
except ImportError:  # the dtypes that NumPy lacks are left out
    ml_dtypes = None
try:
    import torch
except ImportError:  # all tensors are NumPy's
    torch = None  # type: ignore[assignment]

GUARD = 64  # bytes before and behind every tensor
EXTENDED = ("bfloat16", "float8_e5m2", "float8_e4m3fn") if ml_dtypes else ()
KV_DTYPES = ("float16", "float32", "int8", "uint8", "int16", "uint16", "int32", "uint32", *EXTENDED)


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name) if name in EXTENDED else name)


class Buffer:
    """A tensor inside raw memory. `kind` is what the library gets: "numpy" or "torch"."""

    def __init__(
        self,
        raw: Any,
        dtype: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        kind: str = "numpy",
    ) -> None:
        self.raw, self.dtype, self.shape, self.strides, self.offset, self.kind = (
            raw,
            dtype,
            shape,
            strides,
            offset,
            kind,
        )

    @property
    def item(self) -> int:
        return dtype_of(self.dtype).itemsize

    def clone(self) -> Buffer:
        raw = np.empty(self.raw.size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        raw = raw[start : start + self.raw.size]
        raw[:] = self.raw
        return type(self)(raw, self.dtype, self.shape, self.strides, self.offset, self.kind)

    def array(self) -> Any:
        return np.ndarray(self.shape, dtype_of(self.dtype), self.raw, self.offset, self.strides)

    def bytes(self, raw: Any = None) -> Any:
        raw = self.raw if raw is None else raw
        return np.ndarray((*self.shape, self.item), np.uint8, raw, self.offset, (*self.strides, 1))

    def torch(self) -> Any:
        whole = torch.from_numpy(self.raw[: self.raw.size // 8 * 8]).view(getattr(torch, self.dtype))
        return whole.as_strided(self.shape, [s // self.item for s in self.strides], self.offset // self.item)

    def tensor(self) -> Any:
        return self.torch() if self.kind == "torch" else self.array()


class IndexBuffer(Buffer):
    """The oracle sees its numbers, of other buffers the bytes."""


Tensors = dict[str, Any]  # Buffer, list of Buffers, or None


def each_buffer(tensors: Tensors) -> Iterator[tuple[str, int, Buffer]]:
    for name, value in tensors.items():
        for i, buffer in enumerate(value if isinstance(value, list) else [value]):
            if buffer is not None:
                yield name, i, buffer


def map_buffers(tensors: Tensors, function: Callable[[Buffer], Any]) -> dict[str, Any]:
    def one(value: Any) -> Any:
        return None if value is None else function(value)

    return {n: [one(b) for b in v] if isinstance(v, list) else one(v) for n, v in tensors.items()}


# ---------------------------------------------------------------------------------------------------- layouts


def buffer(
    shape: tuple[int, ...],
    dtype: str,
    seed: int = 0,
    *,
    output: bool = False,
    last_dense: bool = False,
    values: Any = None,
) -> Buffer:
    """A tensor of random bytes, or of `values`. Seed 0 is dense; others permute, pad, mirror, broadcast
    (never an output), begin at odd addresses, give axes of length 1 wild strides. NumPy or torch."""
    rng = random.Random(seed)
    item = dtype_of(dtype).itemsize
    kind = "torch" if torch and rng.random() < 0.3 else "numpy"
    wild = seed != 0 and rng.random() < 0.7
    order = list(range(len(shape)))
    if wild and rng.random() < 0.6:
        rng.shuffle(order)
    if last_dense and order:
        order.remove(len(shape) - 1)
        order.append(len(shape) - 1)
    strides = [0] * len(shape)
    pitch = item
    for axis in reversed(order):
        dense = not wild or (last_dense and axis == len(shape) - 1)
        strides[axis] = pitch if dense else pitch + item * rng.choice((0, 0, 0, 1, 3))
        pitch = strides[axis] * max(shape[axis], 1) + (0 if dense else item * rng.choice((0, 0, 2)))
    for axis, n in enumerate(shape):
        fixed = last_dense and axis == len(shape) - 1
        if wild and not output and not fixed and values is None and rng.random() < 0.08:
            strides[axis] = 0
        if wild and kind == "numpy" and not fixed and rng.random() < 0.15:
            strides[axis] = -strides[axis]
        if wild and n == 1 and rng.random() < 0.3:
            strides[axis] = item * rng.choice((977, 0) if kind == "torch" else (977, -977, 0))
    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n > 1)
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n > 1) + item
    offset = GUARD - low
    if wild:
        offset += 8 * rng.randrange(3) + (rng.randrange(item) if kind == "numpy" else 0)
    size = (offset + high + GUARD + 7) // 8 * 8
    raw = np.frombuffer(rng.randbytes(size), np.uint8).copy()
    made = Buffer(raw, dtype, shape, tuple(strides), offset, kind).clone()
    if values is not None:
        made.array()[...] = values
    return made


# --------------------------------------------------------------------------------------------------- contexts


@functools.cache
def implementations() -> tuple[str, ...]:
    """All that this build offers on this machine: plans are asked."""
    table = np.zeros(2, np.int64)
    names = [kvferry.plan_group_memcpy(table, 0).implementation]
    for name in ("generic", "avx2", "avx512", "neon"):
        with contextlib.suppress(RuntimeError):
            kvferry.plan_group_memcpy(table, 0, context=kvferry.Context(implementation=name))
            names.append(name)
    return tuple(dict.fromkeys(names))


@functools.cache
def stream() -> Any:
    return kvferry.Stream()


@functools.cache
def context(implementation: str, threads: int, streamed: bool) -> Any:
    return kvferry.Context(
        implementation=implementation, threads=threads, stream=stream() if streamed else None
    )


# ------------------------------------------------------------------------------------------------------ cases

WAYS = ("call", "plan", "stream", "plan_stream")


@dataclass(repr=False)
class Case:
    op: str
    tensors: Tensors
    options: dict[str, Any] = field(default_factory=dict)
    last: list[Tensors] = field(default_factory=list)  # the tensors of the last run

    def __repr__(self) -> str:
        lines = [f"{self.op} {self.options}"]
        for name, i, b in each_buffer(self.tensors):
            values = f" = {b.array().tolist()}" if isinstance(b, IndexBuffer) else ""
            lines.append(
                f"  {name}[{i}]: {b.kind} {b.dtype} {b.shape} strides {b.strides} offset {b.offset}{values}"
            )
        return "\n".join(lines)

    def copy(self) -> Tensors:
        return map_buffers(self.tensors, lambda b: b.clone())

    def judge(self) -> tuple[Tensors, oracle.Outcome, dict[tuple[str, int], Any]]:
        """The buffers afterwards, the outcome, and a mask of unspecified bytes of each buffer."""
        after = self.copy()
        views = map_buffers(after, lambda b: b.array() if isinstance(b, IndexBuffer) else b.bytes())
        outcome = getattr(oracle, self.op)(**views, **self.options)
        masks = {(n, i): np.zeros(b.raw.size, bool) for n, i, b in each_buffer(after)}
        for name, i, index in outcome.unspecified:
            one = self.tensors[name]
            one = one[i] if isinstance(one, list) else one
            one.bytes(masks[name, i].view(np.uint8))[index] = 1
        return after, outcome, masks

    def arguments(self, tensors: Tensors) -> dict[str, Any]:
        return map_buffers(tensors, Buffer.tensor)

    def run(self, way: str, implementation: str, threads: int, record: Any) -> None:
        """Calls on copies of the tensors, which `last` has then. What a call refuses is raised, by wait() if
        there is a stream. A plan runs twice, on other memory and other threads."""
        streamed = way.endswith("stream")
        ctx = context(implementation, threads, streamed)
        extra = {} if record is None else {"error_record": record}
        self.last = copies = [self.copy() for _ in range(2 if way.startswith("plan") else 1)]
        if way.startswith("plan"):
            plan = getattr(kvferry, "plan_" + self.op)(
                **self.arguments(copies[0]), **self.options, context=ctx
            )
            assert plan.implementation == implementation
            first = context(implementation, 4 - threads, streamed)
            scrap = {} if record is None else {"error_record": kvferry.ErrorRecord()}
            with contextlib.suppress(IndexError):
                plan.run(**self.arguments(copies[0]), **scrap, context=first)
                if streamed:
                    stream().wait()
            plan.run(**self.arguments(copies[1]), **extra, context=ctx)
        else:
            getattr(kvferry, self.op)(**self.arguments(copies[0]), **self.options, **extra, context=ctx)
        if streamed:
            stream().wait()


def index(
    values: Any, dtype: str, seed: int = 0, shape: tuple[int, ...] | None = None, output: bool = False
) -> Buffer:
    array = np.array(values, dtype)
    if shape is not None:
        array = array.reshape(shape)
    b = buffer(array.shape, dtype, seed, output=output, values=array)
    return IndexBuffer(b.raw, b.dtype, b.shape, b.strides, b.offset, b.kind)


def check(case: Case, way: str = "call", threads: int = 1) -> oracle.Outcome:
    """Every implementation against the oracle, bit for bit."""
    expected, outcome, masks = case.judge()
    wanted = {(n, i): b for n, i, b in each_buffer(expected)}
    policy = case.options.get("index_policy", "default")
    for name in implementations():
        record = kvferry.ErrorRecord() if policy == "report" else None
        who = f"{case.op} with {name}, {way}, {threads} threads"
        try:
            case.run(way, name, threads, record)
            assert not outcome.refused, f"{who}: not refused"
        except IndexError as error:
            assert outcome.refused and case.op in str(error), who
        for tensors in case.last:
            for n, i, b in each_buffer(tensors):
                wrong = np.flatnonzero((b.raw != wanted[n, i].raw) & ~masks[n, i])
                assert wrong.size == 0, (
                    f"{who}: {n}[{i}]: {wrong.size} of {b.raw.size} bytes differ, at {wrong[:4].tolist()}"
                )
        if record is not None:
            seen = (record.bad, record.batch, record.column, record.id, record.which)
            assert seen == (outcome.bad, outcome.batch, outcome.column, outcome.id, outcome.which), who
            assert record.op == (case.op if outcome.bad else ""), who
    return outcome
