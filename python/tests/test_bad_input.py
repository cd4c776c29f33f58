# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments, one at a time: the right exception, a text that helps, and not one byte written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calls
import kvferry

OPS = tuple(calls.OUTPUTS)
ARRAYS = [(op, name) for op in OPS for name in (calls.tensors(op))]
REQUIRED = [(op, name) for op, name in ARRAYS if name not in calls.OPTIONAL]
WRITTEN = [(op, name) for op, name in ARRAYS if name in calls.OUTPUTS[op]]
PLANS = [(op, name) for op, name in ARRAYS if op != "group_memcpy"]


def call(op: str, tensors: dict[str, Any], **options: Any) -> None:
    getattr(kvferry, op)(**tensors, **{**calls.OPTIONS.get(op, {}), **options})


def place(tensors: dict[str, Any], name: str) -> str:
    """What messages call the tensor that `change` changes."""
    return f"{name}[0]" if isinstance(tensors[name], list) else name


def change(tensors: dict[str, Any], name: str, function: Callable[[Any], Any]) -> None:
    if isinstance(tensors[name], list):
        tensors[name][0] = function(tensors[name][0])
    else:
        tensors[name] = function(tensors[name])


def refused(
    op: str,
    name: str,
    function: Callable[[Any], Any],
    error: Any,
    *words: str,
    run: Callable[..., None] = call,
    **options: Any,
) -> str:
    """`function` makes the tensor wrong."""
    tensors = calls.tensors(op)
    good = dict(calls.each_by_name(tensors))
    before = {key: array.tobytes() for key, array in good.items()}
    who = place(tensors, name)
    change(tensors, name, function)
    with pytest.raises(error) as caught:
        run(op, tensors, **options)
    text = str(caught.value)
    for word in (op, who, *words):
        assert word in text, f"{word!r} is not in {text!r}"
    assert all(array.tobytes() == before[key] for key, array in good.items()), "bytes were written"
    return text


@pytest.mark.parametrize("op", OPS)
def test_the_calls_are_good_before_they_are_broken(op: str) -> None:
    tensors = calls.tensors(op)
    before = {key: array.tobytes() for key, array in calls.each_by_name(tensors)}
    call(op, tensors)
    changed = {
        key.split("[")[0] for key, array in calls.each_by_name(tensors) if array.tobytes() != before[key]
    }
    assert changed == set(calls.OUTPUTS[op])
    positional, keywords = calls.plain(op)
    getattr(kvferry, op)(*positional, **keywords)
    again = calls.tensors(op)
    plan = getattr(kvferry, "plan_" + op)(**again, **calls.OPTIONS.get(op, {}))
    assert plan.op == op and plan.implementation in plan.describe() and plan.workspace_bytes >= 0
    plan.run(**again)
    assert [a.tobytes() for _, a in calls.each_by_name(again)] == [
        a.tobytes() for _, a in calls.each_by_name(tensors)
    ]


# ------------------------------------------------------------------------------------------ what is no tensor


@pytest.mark.parametrize("thing", [[1, 2], (1,), 7, 1.5, "text", b"bytes", object(), {}, np, int], ids=repr)
@pytest.mark.parametrize(("op", "name"), ARRAYS)
def test_things_that_are_no_tensors(op: str, name: str, thing: Any) -> None:
    refused(op, name, lambda _: thing, TypeError)


@pytest.mark.parametrize(("op", "name"), REQUIRED)
def test_none_where_a_tensor_is_required(op: str, name: str) -> None:
    if name in ("selection_k_rope", "full_k_rope", "full_q_actual_seq"):
        refused(op, name, lambda _: None, (TypeError, ValueError))
        return
    refused(op, name, lambda _: None, TypeError)


@pytest.mark.parametrize(
    ("op", "name"), [("copy_blocks", "caches"), ("swap_blocks", "dst"), ("transfer_layers", "key_caches")]
)
@pytest.mark.parametrize("thing", [None, 7, "text", np.zeros((2, 3))], ids=["None", "int", "str", "array"])
def test_no_sequence(op: str, name: str, thing: Any) -> None:
    tensors = {**calls.tensors(op), name: thing}
    with pytest.raises((TypeError, ValueError), match=name):
        call(op, tensors)


def test_too_few_and_too_many_tensors() -> None:
    swap = calls.tensors("swap_blocks")
    with pytest.raises(ValueError, match="swap_blocks: dst: 1 tensors, expected 2"):
        call("swap_blocks", {**swap, "dst": swap["dst"][:1]})
    transfer = calls.tensors("transfer_layers")
    with pytest.raises(ValueError, match="transfer_layers: value_caches: 1 pools, expected none or 2"):
        call("transfer_layers", {**transfer, "value_caches": transfer["value_caches"][:1]})
    scatter = calls.tensors("scatter_pa_kv_cache")
    with pytest.raises(ValueError, match="scatter_pa_kv_cache: value_cache.*absent"):
        call("scatter_pa_kv_cache", {**scatter, "value_cache": None})
    with pytest.raises(ValueError, match="scatter_pa_kv_cache: value.*absent"):
        call("scatter_pa_kv_cache", {**scatter, "value": None})
    assert not scatter["key_cache"].any()


# ----------------------------------------------------------------------------------------------------- dtypes


@pytest.mark.parametrize(
    "dtype",
    ["bool", "float64", "complex64", "complex128", "longdouble", "object", "U3", "M8[s]", "V6", "i4,f4"],
)
@pytest.mark.parametrize(("op", "name"), ARRAYS)
def test_dtypes_that_no_tensor_has(op: str, name: str, dtype: str) -> None:
    refused(op, name, lambda a: np.zeros(a.shape, dtype), (TypeError, ValueError), "dtype")


@pytest.mark.parametrize(("op", "name"), ARRAYS)
def test_foreign_byte_order(op: str, name: str) -> None:
    dtype = ">i8" if op == "group_memcpy" and name == "addr_table" else ">i4"
    refused(op, name, lambda a: np.zeros(a.shape, dtype), (TypeError, ValueError), dtype)


@pytest.mark.parametrize(("op", "name"), [pair for pair in ARRAYS if pair != ("copy_blocks", "caches")])
def test_the_wrong_dtype(op: str, name: str) -> None:
    """The message has the dtype that was seen, unless another tensor is now the odd one."""
    text = refused_somewhere(op, name, lambda a: np.zeros(a.shape, "uint16"))
    assert "uint16" in text and "dtype" in text


def refused_somewhere(op: str, name: str, function: Callable[[Any], Any]) -> str:
    tensors = calls.tensors(op)
    good = dict(calls.each_by_name(tensors))
    before = {key: array.tobytes() for key, array in good.items()}
    change(tensors, name, function)
    with pytest.raises(ValueError, match=op) as caught:
        call(op, tensors)
    assert all(array.tobytes() == before[key] for key, array in good.items()), "bytes were written"
    return str(caught.value)


# ----------------------------------------------------------------------------------------- shapes and strides


@pytest.mark.parametrize(("op", "name"), ARRAYS)
def test_the_wrong_rank(op: str, name: str) -> None:
    text = refused_somewhere(op, name, lambda a: a[(None,) * 3])
    assert (
        "rank" in text or "expected [] or [1]" in text or "[2H] or [H, 2]" in text or "dimension" in text
    ), text
    refused(
        op, name, lambda a: a.reshape((1,) * (9 - a.ndim) + a.shape), ValueError, "9 dimensions", "at most 8"
    )


FREE = {"caches", "mapping", "slot_mapping", "count", "addr_table"}  # any length is a good one
BY_LAST_AXIS = {"out", "cache", "src", "dst", "selection_kv_block_status", "key_caches", "value_caches"}


@pytest.mark.parametrize(("op", "name"), [pair for pair in ARRAYS if pair[1] not in FREE])
def test_the_wrong_length(op: str, name: str) -> None:
    """Some other tensor may be named: it is its dimension that fits no more."""
    by_last = name in BY_LAST_AXIS or name.endswith(("_cache", "_rope"))
    text = refused_somewhere(op, name, lambda a: a[..., :-1] if by_last else a[:-1])
    assert re.search(r"dimension \d+", text) and "expected" in text, text


@pytest.mark.parametrize(("op", "name"), WRITTEN)
def test_outputs_that_overlap_themselves(op: str, name: str) -> None:
    def overlap(a: Any) -> Any:
        strides = (0,) + a.strides[1:] if a.shape[0] > 1 else a.strides[:-1] + (0,)
        return np.lib.stride_tricks.as_strided(a, a.shape, strides)

    refused(op, name, overlap, ValueError, "one address")


@pytest.mark.parametrize(("op", "name"), WRITTEN)
def test_read_only_outputs(op: str, name: str) -> None:
    def lock(a: Any) -> Any:
        a = a.view()
        a.flags.writeable = False
        return a

    refused(op, name, lock, ValueError, "read-only")


def test_read_only_inputs_are_fine() -> None:
    tensors = calls.tensors("swap_blocks")
    for array in tensors["src"]:
        array.flags.writeable = False
    tensors["mapping"].flags.writeable = False
    call("swap_blocks", tensors)
    assert tensors["dst"][0][1].any()


def test_strides_that_are_no_whole_elements() -> None:
    """A field of a record: five bytes a step, four of them the element."""
    record = np.zeros(12, [("tag", "u1"), ("x", "i4")])["x"].reshape(3, 4)
    assert record.strides[1] == 5
    tensors = calls.tensors("swap_blocks")
    tensors["src"], tensors["dst"] = [record], [np.zeros((4, 4), np.int32)]
    with pytest.raises(ValueError, match=r"swap_blocks: src\[0\].*stride"):
        call("swap_blocks", tensors)


# ---------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("op", "option", "value", "allowed"),
    [
        (op, "index_policy", value, ("default", "report", "reject"))
        for op in OPS
        if op != "group_memcpy"
        for value in ("Reject", "", "kDefault")
    ]
    + [
        ("gather_pa_kv_cache", "cache_mode", "norm", ("Norm", "PA_NZ")),
        ("scatter_pa_kv_cache", "cache_mode", "NZ", ("Norm", "PA_NZ")),
        ("scatter_pa_kv_cache", "scatter_mode", "nhsd", ("None", "Nhsd", "Nct")),
        ("gather_selection_kv_cache", "q_len_mode", "sums", ("counts", "prefix_sum", "all_rows")),
        ("transfer_layers", "chunk_layout", "layers", ("layer_first", "page_first")),
        ("transfer_layers", "direction", "out", ("pools_to_chunk", "chunk_to_pools")),
    ],
)
def test_wrong_strings(op: str, option: str, value: str, allowed: tuple[str, ...]) -> None:
    tensors = calls.tensors(op)
    for function in (op, "plan_" + op):
        with pytest.raises(ValueError, match=option) as caught:
            getattr(kvferry, function)(**tensors, **{**calls.OPTIONS.get(op, {}), option: value})
        assert all(word in str(caught.value) for word in (op, value, *allowed)), caught.value
    with pytest.raises(TypeError):
        call(op, tensors, **{option: 3})


def test_wrong_numbers() -> None:
    for block, words in ((0, "0"), (-1, "-1"), (3, "3")):
        with pytest.raises(
            ValueError, match=f"selection_topk_block_size.*{words}|{words}.*selection_topk_block_size"
        ):
            call(
                "gather_selection_kv_cache",
                calls.tensors("gather_selection_kv_cache"),
                selection_topk_block_size=block,
            )
    table = np.zeros((2, 2), np.int64)
    with pytest.raises(ValueError, match="group_memcpy: copy_bytes.*-1"):
        kvferry.group_memcpy(table, -1)
    with pytest.raises(ValueError, match="group_memcpy: host_count.*3"):
        kvferry.group_memcpy(table, 8, host_count=3)
    with pytest.raises(ValueError, match="group_memcpy: .*host_count"):
        kvferry.group_memcpy(table, 8, host_count=0, count=np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="group_memcpy: .*copy_bytes.*8"):
        kvferry.group_memcpy(table, 8, sizes=np.zeros(2, np.int64), host_count=0)
    for too_large in (2**63, 2**70, 1.5, "8"):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            kvferry.group_memcpy(table, too_large, host_count=0)
    scatter = calls.tensors("scatter_pa_kv_cache")
    for strides, offsets in (((0, 8), (0, 0)), ((8, 5), (-1, 0)), ((8, 5), (0, 2**62))):
        with pytest.raises(ValueError, match="scatter_pa_kv_cache: (key|value)"):
            call("scatter_pa_kv_cache", scatter, scatter_mode="Nct", nct_strides=strides, nct_offsets=offsets)
    for strides in ((1,), (1, 2, 3), 4, ("a", "b")):
        with pytest.raises((TypeError, ValueError)):
            call("scatter_pa_kv_cache", scatter, scatter_mode="Nct", nct_strides=strides)
    assert not scatter["key_cache"].any()


@pytest.mark.parametrize("op", OPS)
def test_keywords(op: str) -> None:
    tensors = calls.tensors(op)
    for keyword, value in (("contexts", None), ("context", 3), ("context", "avx2"), ("error_record", {})):
        with pytest.raises(TypeError):
            call(op, tensors, **{keyword: value})
    positional, keywords = calls.plain(op)
    with pytest.raises(TypeError):
        getattr(kvferry, op)(*positional[:-1], **keywords)
    assert not any(
        array.any()
        for name, array in calls.each_by_name(tensors)
        if name in calls.OUTPUTS[op] and op != "copy_blocks"
    )


def test_bytes_that_are_no_record() -> None:
    for size in (0, 39, 41):
        with pytest.raises(ValueError, match=f"from_bytes: {size} bytes, expected 40"):
            kvferry.ErrorRecord.from_bytes(bytes(size))
    for wrong in (None, "0" * 40, 40):
        with pytest.raises(TypeError):
            kvferry.ErrorRecord.from_bytes(wrong)
    with pytest.raises((ValueError, BufferError)):
        kvferry.ErrorRecord.from_bytes(np.zeros(80, np.uint8)[::2])
    assert kvferry.ErrorRecord.from_bytes(np.zeros(5, np.int64)).bad == 0


def test_null_characters_do_not_end_a_message() -> None:
    with pytest.raises(ValueError, match="'cu\0da', expected 'cpu'"):
        kvferry.Context(device="cu\0da")


def test_contexts() -> None:
    table = np.zeros((2, 2), np.int64)
    for options, error, words in (
        ({"implementation": "sse9"}, RuntimeError, "sse9"),
        ({"device": "cuda:9999"}, RuntimeError, "cuda"),
        (
            {"device": "cuda", "stream": kvferry.Stream()},
            ValueError,
            "stream is a kvferry.Stream.*of the CPU",
        ),
        ({"device": "cuda", "stream": -1}, ValueError, "stream is -1, expected the address"),
        ({"device": "cuda", "stream": 2**64}, ValueError, "expected the address"),
        ({"cpus": (100000,)}, (RuntimeError, ValueError), "100000"),
        ({"device": "toaster"}, ValueError, "toaster"),
    ):
        with pytest.raises(error, match=words):
            kvferry.group_memcpy(table, 0, context=kvferry.Context(**options))
    for options in (
        {"threads": "2"},
        {"threads": None},
        {"cpus": "0"},
        {"stream": 3},
        {"stream": object()},
        {"device": "cuda", "stream": True},
        {"device": "cuda", "stream": "0"},
        {"device": "cuda", "stream": type("Odd", (), {"__cuda_stream__": lambda self: 7})()},
        {"implementation": 2},
        {"fast": True},
    ):
        with pytest.raises(TypeError):
            kvferry.Context(**options)
    with pytest.raises(TypeError):
        kvferry.Context(2)
    assert kvferry.Context(threads=3).threads == 3 and kvferry.Context().threads >= 1


# ---------------------------------------------------------------------------------------------- index entries


BAD_ENTRIES: list[Any] = [
    ("gather_pa_kv_cache", "block_tables", (1, 1), 9, ("block_tables", "1", "9")),
    ("gather_pa_kv_cache", "seq_lens", (1,), -4, ("seq_lens", "1", "-4")),
    ("gather_dequant", "block_tables", (0, 1), -2, ("block_tables", "0", "-2")),
    ("scatter_pa_kv_cache", "slot_mapping", (2,), 99, ("slot_mapping", "2", "99")),
    ("scatter_pa_kv_cache", "slot_mapping", (2,), 5, ("slot_mapping", "2", "0", "5")),
    ("copy_blocks", "mapping", (1, 1), 7, ("mapping", "1", "7")),
    ("copy_blocks", "mapping", (1, 1), 1, ("mapping", "1", "0")),
    ("swap_blocks", "mapping", (0, 0), 3, ("mapping", "0", "3")),
    ("transfer_layers", "block_ids", (1,), -5, ("block_ids", "1", "-5")),
    ("gather_selection_kv_cache", "full_kv_block_table", (1, 0), 50, ("full_kv_block_table", "1", "50")),
    (
        "gather_selection_kv_cache",
        "selection_kv_block_table",
        (0, 0),
        -7,
        ("selection_kv_block_table", "0", "-7"),
    ),
    ("gather_selection_kv_cache", "full_q_actual_seq", (1,), 2, ("full_q_actual_seq", "1", "2")),
    ("gather_selection_kv_cache", "status_row", (1,), 0, ("status_row", "1", "0")),
]


@pytest.mark.parametrize(
    ("op", "name", "at", "value", "words"), [entry for entry in BAD_ENTRIES if entry[0] in OPS]
)
def test_reject_names_the_entry(
    op: str, name: str, at: tuple[int, ...], value: int, words: tuple[str, ...]
) -> None:
    def spoil(array: Any) -> Any:
        array = array.copy()
        array[at] = value
        return array

    for run in (call, planned):
        refused(op, name, spoil, IndexError, *words, run=run, index_policy="reject")


def planned(op: str, tensors: dict[str, Any], **options: Any) -> None:
    plan = getattr(kvferry, "plan_" + op)(**tensors, **{**calls.OPTIONS.get(op, {}), **options})
    plan.run(**tensors)


# --------------------------------------------------------------------------------------------------- plan.run


def run_other(op: str, tensors: dict[str, Any], **options: Any) -> None:
    plan = getattr(kvferry, "plan_" + op)(**calls.tensors(op), **{**calls.OPTIONS.get(op, {}), **options})
    plan.run(**tensors)


@pytest.mark.parametrize(("op", "name"), ARRAYS)
def test_a_plan_refuses_other_tensors(op: str, name: str) -> None:
    """Shape, dtype and strides are those that were planned, even where the operator would take others."""
    refused(
        op,
        name,
        lambda a: np.zeros(a.shape[:-1] + (a.shape[-1] + 1,), a.dtype),
        ValueError,
        "expected",
        run=run_other,
    )
    refused(op, name, lambda a: np.zeros((1, *a.shape), a.dtype), ValueError, "expected", run=run_other)
    other = "int64" if calls_array(op, name).dtype == np.int32 else "uint32"
    refused(op, name, lambda a: np.zeros(a.shape, other), ValueError, other, "as planned", run=run_other)
    refused(op, name, lambda _: [1], TypeError, run=run_other)

    def spread(a: Any) -> Any:
        wide = np.zeros(a.shape[:-1] + (a.shape[-1] * 2,), a.dtype)[..., ::2]
        wide[...] = a
        return wide

    if calls_array(op, name).shape[-1] > 1:
        refused(op, name, spread, ValueError, "strides", run=run_other)


def calls_array(op: str, name: str) -> Any:
    value = calls.tensors(op)[name]
    return value[0] if isinstance(value, list) else value


@pytest.mark.parametrize(("op", "name"), WRITTEN)
def test_a_plan_refuses_read_only_outputs(op: str, name: str) -> None:
    def lock(a: Any) -> Any:
        a = a.view()
        a.flags.writeable = False
        return a

    refused(op, name, lock, ValueError, "read-only", run=run_other)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        pair
        for pair in ARRAYS
        if pair[1] in ("seq_offset", "status_row", "counters", "fetch_counts", "value_caches")
    ],
)
def test_a_plan_refuses_tensors_that_come_or_go(op: str, name: str) -> None:
    refused_tensors = calls.tensors(op)
    plan = getattr(kvferry, "plan_" + op)(**refused_tensors, **calls.OPTIONS.get(op, {}))
    with pytest.raises((ValueError, TypeError), match=name):
        plan.run(**{**refused_tensors, name: None})
    absent = {**calls.tensors(op), name: None}
    if name == "value_caches":
        absent["chunk"] = absent["chunk"][:, :, :1]
    plan = getattr(kvferry, "plan_" + op)(**absent, **calls.OPTIONS.get(op, {}))
    with pytest.raises((ValueError, TypeError), match=name):
        plan.run(**{**absent, name: calls.tensors(op)[name]})


def test_plans_are_made_by_plan_functions_only() -> None:
    for op in OPS:
        plan = getattr(kvferry, "plan_" + op)(**calls.tensors(op), **calls.OPTIONS.get(op, {}))
        with pytest.raises(TypeError):
            type(plan)()


# ------------------------------------------------------------------------------------------------- frameworks


def torch_things() -> dict[str, Callable[[Any], Any]]:
    torch = pytest.importorskip("torch")
    return {
        "requires_grad": lambda a: torch.from_numpy(a).clone().requires_grad_(),
        "graph": lambda a: torch.from_numpy(a).clone().requires_grad_() * 2,
        "meta": lambda a: torch.from_numpy(a).to("meta"),
        "sparse": lambda a: torch.from_numpy(a).to_sparse(),
        "sparse_csr": lambda a: torch.ones(3, 4).to_sparse_csr(),
        "negative": lambda a: torch.zeros(a.shape, dtype=torch.complex64).conj().imag,
        "complex": lambda a: torch.zeros(a.shape, dtype=torch.complex64).conj(),
        "bool": lambda a: torch.zeros(a.shape, dtype=torch.bool),
        "quantized": lambda a: torch.quantize_per_tensor(torch.zeros(a.shape), 1.0, 0, torch.qint8),
    }


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "thing",
    ["requires_grad", "graph", "meta", "sparse", "sparse_csr", "negative", "complex", "bool", "quantized"],
)
@pytest.mark.parametrize("name", ["key", "key_cache"])
def test_torch_tensors_that_cannot_be_read(name: str, thing: str) -> None:
    make = torch_things()[thing]
    if name == "key_cache" and thing in ("requires_grad", "graph"):  # reading is fine
        tensors = calls.tensors("gather_pa_kv_cache")
        tensors[name] = make(tensors[name])
        call("gather_pa_kv_cache", tensors)
        assert tensors["key"].any()
        return
    words = {"negative": "negative bit", "requires_grad": "detach()", "graph": "detach()"}.get(thing, "")
    refused("gather_pa_kv_cache", name, make, (ValueError, RuntimeError), words)


def test_a_jax_array_is_no_output() -> None:
    jnp = pytest.importorskip("jax.numpy")
    text = refused("gather_pa_kv_cache", "key", jnp.asarray, ValueError, "functional")
    assert "key" in text
    refused("swap_blocks", "dst", jnp.asarray, ValueError, "functional")
