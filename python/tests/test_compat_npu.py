# SPDX-License-Identifier: Apache-2.0
"""The operators of torch_npu and of CANN's custom operators, on CPU tensors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import library as torch_library  # noqa: E402

import kvferry.compat.npu  # noqa: E402, F401

npu, custom = torch.ops.npu, torch.ops.custom
BLOCKS, SIZE, HEADS, DIM = 6, 4, 2, 16
TABLES = torch.tensor([[5, 0], [2, 3]], dtype=torch.int32)
LENS = torch.tensor([7, 3], dtype=torch.int32)
SLOTS = torch.tensor([9, 0, 23], dtype=torch.int32)
# The published signatures; ours adds cache_mode to the gather.
_GATHER = "Tensor? seq_offset=None, bool is_seq_lens_cumsum=False, str? cache_mode=None"
_CACHES = "Tensor key_cache, Tensor value_cache, Tensor block_tables, Tensor seq_lens"
_FULL = (
    "Tensor selection_topk_indices, Tensor full_k_rope, Tensor full_kv_cache, Tensor full_kv_block_table, "
    "Tensor full_kv_actual_seq, Tensor full_q_actual_seq, *, int selection_topk_block_size=64"
)
SIGNATURES = {
    "npu::npu_gather_pa_kv_cache": f"({_CACHES}, Tensor(a!) key, Tensor(b!) value, *, {_GATHER}) -> ()",
    "npu::npu_gather_pa_kv_cache_functional": (
        f"({_CACHES}, Tensor key, Tensor value, *, {_GATHER}) -> (Tensor, Tensor)"
    ),
    "npu::npu_scatter_pa_kv_cache": (
        "(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping, *, "
        "Tensor? compress_lens=None, Tensor? compress_seq_offsets=None, Tensor? seq_lens=None, "
        'str cache_mode="PA_NZ") -> ()'
    ),
    "custom::npu_gather_selection_kv_cache": (
        "(Tensor(a!) selection_k_rope, Tensor(b!) selection_kv_cache, Tensor(c!) selection_kv_block_table, "
        f"Tensor(d!) selection_kv_block_status, {_FULL}) -> Tensor"
    ),
    "custom::npu_gather_selection_kv_cache_functional": (
        "(Tensor selection_k_rope, Tensor selection_kv_cache, Tensor selection_kv_block_table, "
        f"Tensor selection_kv_block_status, {_FULL}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
    "custom::npu_group_memcpy": "(Tensor addr_table, int copy_bytes) -> ()",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    namespace, _, operator = name.partition("::")
    schema = getattr(getattr(torch.ops, namespace), operator).default._schema
    assert str(schema) == name + SIGNATURES[name]


def cache() -> Any:
    return torch.randn(BLOCKS, SIZE, HEADS, DIM)


def tokens(count: int) -> Any:
    return torch.randn(count, HEADS, DIM)


def to_nz(pool: Any) -> Any:
    return pool.view(BLOCKS, SIZE, HEADS * DIM // 8, 8).permute(0, 2, 1, 3).contiguous()


def gathered(pool: Any) -> Any:
    return torch.cat([pool[[5, 0]].flatten(0, 1)[:7], pool[[2]].flatten(0, 1)[:3]])


def test_gather_takes_its_mode_from_the_outputs() -> None:
    keys, values = cache(), cache()
    key, value = tokens(12), tokens(12)
    behind = key[10:].clone()
    npu.npu_gather_pa_kv_cache(keys, values, TABLES, LENS, key, value)
    assert torch.equal(key[:10], gathered(keys)) and torch.equal(value[:10], gathered(values))
    assert torch.equal(key[10:], behind)
    flat_key, flat_value = torch.zeros(10, HEADS * DIM), torch.zeros(10, HEADS * DIM)
    npu.npu_gather_pa_kv_cache(to_nz(keys), to_nz(values), TABLES, LENS, flat_key, flat_value)
    assert torch.equal(flat_key, key[:10].flatten(1)) and torch.equal(flat_value, value[:10].flatten(1))


def test_gather_functional_starts_from_key_and_value() -> None:
    keys, values = cache(), cache()
    key, value = tokens(12), tokens(12)
    before = key.clone()
    got, _ = npu.npu_gather_pa_kv_cache_functional(keys, values, TABLES, LENS, key, value)
    assert torch.equal(key, before)
    assert torch.equal(got[:10], gathered(keys)) and torch.equal(got[10:], key[10:])


def test_scatter() -> None:
    key, value, keys, values = tokens(3), tokens(3), cache(), cache()
    nz_keys, nz_values = to_nz(keys), to_nz(values)
    npu.npu_scatter_pa_kv_cache(key, value, nz_keys, nz_values, SLOTS)
    npu.npu_scatter_pa_kv_cache(key, value, keys, values, SLOTS, cache_mode="Norm")
    assert torch.equal(keys.flatten(0, 1)[SLOTS], key) and torch.equal(values.flatten(0, 1)[SLOTS], value)
    assert torch.equal(nz_keys, to_nz(keys)) and torch.equal(nz_values, to_nz(values))


def test_scatter_says_what_to_write_for_the_other_layout() -> None:
    key, value, keys, values = tokens(3), tokens(3), cache(), cache()
    before = keys.clone()
    with pytest.raises(ValueError, match="key_cache.*cache_mode='Norm'"):
        npu.npu_scatter_pa_kv_cache(key, value, keys, values, SLOTS)
    assert torch.equal(keys, before)
    with pytest.raises(ValueError, match="slot_mapping") as other:
        npu.npu_scatter_pa_kv_cache(key, value, to_nz(keys), to_nz(values), SLOTS[None])
    assert "Norm" not in str(other.value)


@pytest.mark.parametrize("name", ["compress_lens", "compress_seq_offsets", "seq_lens"])
def test_scatter_refuses_the_compressing_modes(name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"npu_scatter_pa_kv_cache: {name}"):
        npu.npu_scatter_pa_kv_cache(tokens(3), tokens(3), cache(), cache(), SLOTS, **{name: LENS})


def selection() -> list[Any]:
    def ints(values: Any) -> Any:
        return torch.tensor(values, dtype=torch.int32)

    return [
        torch.zeros(4, 64, 2),
        torch.zeros(4, 64, 6),
        ints([[2], [1], [0]]),
        torch.zeros(2, 1, 1, 2, dtype=torch.int32),
        ints([[[[1]]], [[[0]]]]),
        torch.randn(4, 64, 2),
        torch.randn(4, 64, 6),
        ints([[3, 0], [1, 2]]),
        ints([70, 40]),
        ints([1, 1]),
    ]


def test_selection() -> None:
    arguments = selection()
    twin = custom.npu_gather_selection_kv_cache_functional(*arguments)
    assert not arguments[1].any() and not arguments[3].any()
    actual_seq = custom.npu_gather_selection_kv_cache(*arguments)
    assert actual_seq.tolist() == [6, 40, 0] and actual_seq.dtype == torch.int32
    assert torch.equal(arguments[1][2, :6], arguments[6][0, :6])
    assert torch.equal(arguments[0][1, :40], arguments[5][1, :40])
    assert all(torch.equal(a, b) for a, b in zip(twin, [actual_seq, *arguments[:4]], strict=True))


def test_group_memcpy() -> None:
    source, destination = torch.arange(16.0), torch.zeros(16)
    table = torch.tensor([source.data_ptr(), destination.data_ptr()])
    custom.npu_group_memcpy(table, 64)
    assert torch.equal(destination, source)


CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "gather": (npu.npu_gather_pa_kv_cache, (cache(), cache(), TABLES, LENS, tokens(12), tokens(12)), {}),
    "gather functional": (
        npu.npu_gather_pa_kv_cache_functional,
        (to_nz(cache()), to_nz(cache()), TABLES, LENS, tokens(12).flatten(1), tokens(12).flatten(1)),
        {"seq_offset": torch.tensor([4, 0], dtype=torch.int32)},
    ),
    "scatter": (
        npu.npu_scatter_pa_kv_cache,
        (tokens(3), tokens(3), cache(), cache(), SLOTS),
        {"cache_mode": "Norm"},
    ),
    "selection": (custom.npu_gather_selection_kv_cache, tuple(selection()), {}),
    "selection functional": (custom.npu_gather_selection_kv_cache_functional, tuple(selection()), {}),
    "group_memcpy": (custom.npu_group_memcpy, (torch.zeros(0, dtype=torch.int64), 64), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    operator, args, kwargs = CALLS[name]
    torch_library.opcheck(operator.default, args, kwargs)


def test_an_operator_that_exists_is_left_alone() -> None:
    script = """
from torch import library
import torch
theirs = library.Library("npu", "DEF")
theirs.define("npu_scatter_pa_kv_cache(Tensor key) -> ()")
try:
    import kvferry.compat.npu
except ImportError as error:
    print(error)
    assert not hasattr(torch.ops.npu, "npu_gather_pa_kv_cache")
    assert not hasattr(torch.ops.custom, "npu_group_memcpy")
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True)
    assert "torch.ops.npu.npu_scatter_pa_kv_cache is defined already" in done.stdout
