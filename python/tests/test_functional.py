# SPDX-License-Identifier: Apache-2.0
"""The allocating forms: the bytes of the forms in place, in new memory; the inputs stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import calls
import kvferry
from strategies import Draw, drawn
from support import Case, each_buffer, map_buffers
from test_blocks import copies, swaps, transfers
from test_frameworks import bits, map_arrays, options, to_jax, to_torch
from test_gather import dequants, gathers, needs_bfloat16
from test_scatter import scatters
from test_selection import selections

# Arguments that are results here: what the form returns, in its order.
RESULTS = {
    "gather_pa_kv_cache": ("key", "value"),
    "scatter_pa_kv_cache": ("key_cache", "value_cache"),
    "gather_selection_kv_cache": (
        "selection_kv_actual_seq",
        "selection_k_rope",
        "selection_kv_cache",
        "selection_kv_block_table",
        "selection_kv_block_status",
    ),
    "copy_blocks": ("caches",),
    "swap_blocks": ("dst",),
    "transfer_layers": ("chunk",),
    "gather_dequant": ("out",),
}
# Those of them that are no argument: the form makes them, zero.
MADE = ("key", "value", "out", "chunk", "selection_kv_actual_seq")


def made_by(op: str) -> list[str]:
    return [name for name in RESULTS[op] if name in MADE]


def call(op: str, arguments: dict[str, Any], **keywords: Any) -> dict[str, Any]:
    """The form of `op`, given what the form in place takes. Its results by name."""
    arguments = dict(arguments)
    rows = [arguments.pop(name).shape[0] for name in made_by(op)]
    if op in ("gather_pa_kv_cache", "gather_dequant"):
        arguments["num_tokens"] = rows[0]
    result = getattr(kvferry, op + "_functional")(**arguments, **keywords)
    names = RESULTS[op]
    return {names[0]: result} if len(names) == 1 else dict(zip(names, result, strict=True))


def numbers(array: Any) -> Any:
    """The bytes, as the oracle sees them: shape + (bytes of an element,)."""
    if hasattr(array, "data_ptr"):
        torch = pytest.importorskip("torch")
        array = array.contiguous().view(getattr(torch, f"uint{array.element_size() * 8}")).numpy()
    array = np.array(array)
    return array.reshape(-1).view(np.uint8).reshape(*array.shape, array.itemsize)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("op", [op for op in RESULTS if op in calls.OUTPUTS])
def test_of_three_frameworks(op: str, kind: str) -> None:
    make = {"numpy": lambda a: a, "torch": to_torch, "jax": to_jax}[kind]
    wanted = calls.tensors(op)
    for unused in ("counters", "fetch_counts"):
        wanted.pop(unused, None)
    given = map_arrays(wanted, lambda a: a.copy())
    before = [bits(a) for _, a in calls.each_by_name(given)]
    getattr(kvferry, op)(**wanted, **options(op))
    results = call(op, map_arrays(given, make), **options(op))
    expected_type = type(make(np.zeros(1, np.float32)))
    for name, result in results.items():
        pairs = (
            zip(wanted[name], result, strict=True) if isinstance(result, list) else [(wanted[name], result)]
        )
        for a, b in pairs:
            assert isinstance(b, expected_type) and str(b.dtype).removeprefix("torch.") == a.dtype.name, name
            assert np.array_equal(numbers(b), numbers(a)), name
    assert [bits(a) for _, a in calls.each_by_name(given)] == before


def agree(case: Case) -> None:
    """With the oracle, whose outputs were zero before."""
    arguments = case.arguments(case.last[0])
    for name in made_by(case.op):
        case.tensors[name].bytes()[...] = 0
    expected, outcome, masks = case.judge()
    before = {(n, i): b.raw.copy() for n, i, b in each_buffer(case.last[0])}
    record = kvferry.ErrorRecord()
    reports = {"error_record": record} if case.options["index_policy"] == "report" else {}
    if outcome.refused:
        with pytest.raises(IndexError, match=case.op):
            call(case.op, arguments, **case.options, **reports)
        results = {}
    else:
        results = call(case.op, arguments, **case.options, **reports)
    assert all((b.raw == before[n, i]).all() for n, i, b in each_buffer(case.last[0]))
    assert record.bad == outcome.bad
    for name, result in results.items():
        wanted = expected[name]
        for i, (a, b) in enumerate(
            zip(wanted, result, strict=True) if isinstance(wanted, list) else [(wanted, result)]
        ):
            if a is None:
                assert b is None
                continue
            known = ~a.bytes(masks[name, i].view(np.uint8)).astype(bool)
            assert tuple(b.shape) == a.shape and (numbers(b) == a.bytes())[known].all(), (name, i)


def form_cases(draw: Draw, generator: Any, *args: Any) -> Case:
    case: Case = generator(draw, *args)
    for unused in ("counters", "fetch_counts"):
        case.tensors.pop(unused, None)
    options, tensors = case.options, case.tensors
    if options.pop("direction", None) == "chunk_to_pools" or tensors.get("key_caches") == []:
        return form_cases(draw, generator, *args)  # has no form
    case.last = [map_buffers(case.tensors, lambda b: b.clone())]
    return case


@needs_bfloat16
@given(drawn(form_cases, dequants))
def test_gather_dequant(case: Case) -> None:
    agree(case)


@given(drawn(form_cases, gathers))
def test_gather_pa_kv_cache(case: Case) -> None:
    agree(case)


@given(drawn(form_cases, scatters))
def test_scatter_pa_kv_cache(case: Case) -> None:
    agree(case)


@given(drawn(form_cases, copies))
def test_copy_blocks(case: Case) -> None:
    agree(case)


@given(drawn(form_cases, swaps))
def test_swap_blocks(case: Case) -> None:
    agree(case)


@given(drawn(form_cases, transfers))
def test_transfer_layers(case: Case) -> None:
    agree(case)


@given(drawn(form_cases, selections, True))
def test_gather_selection_kv_cache(case: Case) -> None:
    agree(case)


def test_rows_that_no_sequence_reaches_are_zero() -> None:
    tensors = calls.tensors("gather_pa_kv_cache")
    del tensors["key"], tensors["value"]
    key, value = kvferry.gather_pa_kv_cache_functional(**tensors, num_tokens=9)
    assert key.shape == (9, 3, 8) and key[:5].any() and not key[5:].any() and not value[5:].any()


def test_scatter_of_keys_alone() -> None:
    tensors = {**calls.tensors("scatter_pa_kv_cache"), "value": None, "value_cache": None}
    keys, values = kvferry.scatter_pa_kv_cache_functional(**tensors)
    assert keys.any() and values is None


def test_results_of_jax_do_not_change_later() -> None:
    """New memory at each call, also where JAX takes it as it is."""
    tensors = calls.tensors("swap_blocks")
    tensors["dst"] = [to_jax(a) for a in tensors["dst"]]
    first = call("swap_blocks", tensors)["dst"]
    before = [bits(a) for a in first]
    for _ in range(3):
        tensors["src"] = [a * 3 for a in tensors["src"]]
        call("swap_blocks", tensors)
    assert [bits(a) for a in first] == before and not any(np.asarray(a).any() for a in tensors["dst"])


def test_a_stream_is_refused() -> None:
    """The results would be returned before they are there."""
    context = kvferry.Context(stream=kvferry.Stream())
    with pytest.raises(ValueError, match="copy_blocks.*stream"):
        kvferry.copy_blocks_functional([np.zeros((2, 2))], np.array([[0, 1]]), context=context)


def test_things_of_no_framework() -> None:
    class Odd:
        shape = (2, 2)

        def __dlpack__(self, **_: Any) -> Any:
            raise AssertionError("nobody asks")

    for thing in (Odd(), [[1.0, 2.0]], None):
        with pytest.raises(TypeError, match=r"copy_blocks.*caches\[0\]"):
            kvferry.copy_blocks_functional([thing], np.array([[0, 1]]))
