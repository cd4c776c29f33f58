# SPDX-License-Identifier: Apache-2.0
"""What a user's typed program does with every operator; only mypy reads it (test_types.py)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import kvferry

Halves = NDArray[np.float16]
Ints = NDArray[np.int32]


class Exported:
    """Memory of no known library."""

    def __dlpack__(self, *, stream: int | None = None) -> object: ...


def in_place(pool: Halves, rows: Halves, ints: Ints, exported: Exported, read_only: memoryview) -> None:
    stream = kvferry.Stream()
    context = kvferry.Context(threads=2, cpus=[0, 1], stream=stream, implementation="avx2", device="cpu")
    kvferry.Context(device="cuda:1", stream=0)
    record = kvferry.ErrorRecord.from_bytes(bytes(40))
    mode: Literal["Norm", "PA_NZ"] = "PA_NZ"
    kvferry.gather_pa_kv_cache(
        pool,
        exported,
        ints,
        ints,
        rows,
        exported,
        cache_mode=mode,
        index_policy="report",
        error_record=record,
    )
    kvferry.scatter_pa_kv_cache(rows, None, pool, None, ints, scatter_mode="Nct", nct_strides=[8, 8])
    kvferry.gather_selection_kv_cache(
        None, pool, ints, ints, ints, None, pool, ints, ints, None, ints, q_len_mode="all_rows", counters=ints
    )
    kvferry.group_memcpy(ints, 32, host_count=1, checked=True, context=context)
    kvferry.group_memcpy(ints, sizes=ints)
    kvferry.copy_blocks([pool, pool], ints, count=ints)
    kvferry.swap_blocks((pool,), [exported], ints)
    kvferry.transfer_layers([pool], None, pool, ints, chunk_layout="page_first", direction="chunk_to_pools")
    kvferry.gather_dequant(pool, ints, ints, rows, seq_offset=ints, is_seq_lens_cumsum=True)
    stream.wait()
    assert_type(context.stream, kvferry.Stream | None)
    assert_type(record.bad, int)
    assert_type(record.which & kvferry.BAD_KEY, int)
    assert_type(record.op, str)
    assert_type(kvferry.__version__, str)


def plans(pool: Halves, rows: Halves, ints: Ints) -> None:
    plan = kvferry.plan_gather_pa_kv_cache(pool, pool, ints, ints, rows, rows)
    assert_type(plan, kvferry.GatherPaKvCachePlan)
    assert_type(plan.workspace_bytes, int)
    assert_type(plan.describe(), str)
    plan.run(pool, pool, block_tables=ints, seq_lens=ints, key=rows, value=rows)
    selection = kvferry.plan_gather_selection_kv_cache(
        None, pool, ints, ints, ints, None, pool, ints, ints, None, ints
    )
    selection.schedule(ints, ints, ints, ints, ints, None, ints)
    selection.copy(None, pool, None, pool)


def allocating(pool: Halves, bytes_pool: NDArray[np.uint8], ints: Ints) -> None:
    # Results are of the kind of what they come from.
    made = kvferry.gather_pa_kv_cache_functional(pool, bytes_pool, ints, ints, 5)
    assert_type(made, tuple[Halves, NDArray[np.uint8]])
    assert_type(kvferry.scatter_pa_kv_cache_functional(pool, None, pool, None, ints), tuple[Halves, None])
    assert_type(kvferry.copy_blocks_functional([pool], ints), list[Halves])
    assert_type(kvferry.swap_blocks_functional([pool], [pool], ints), list[Halves])
    assert_type(kvferry.transfer_layers_functional([pool], [pool], ints), Halves)
    assert_type(
        kvferry.gather_selection_kv_cache_functional(
            None, pool, ints, ints, ints, None, pool, ints, ints, ints
        ),
        tuple[Halves, None, Halves, Ints, Ints],
    )
