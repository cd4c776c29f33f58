# SPDX-License-Identifier: Apache-2.0
"""torch.ops.kvferry: results, what opcheck asks of an operator, and what is refused."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import library as torch_library  # noqa: E402

import kvferry.torch  # noqa: E402, F401
from kvferry._torch_library import Operators  # noqa: E402

ops = torch.ops.kvferry
BLOCKS, SIZE, HEADS, DIM = 6, 4, 2, 16
TABLES = torch.tensor([[5, 0], [2, 3]])
LENS = torch.tensor([7, 3])
SLOTS = torch.tensor([9, -1, 0, 23])
PAIRS = torch.tensor([[0, 4], [1, 5]])
IDS = torch.tensor([3, 1])
OF_FOUR = {"selection_topk_block_size": 4}


def cache(dtype: Any = torch.float32) -> Any:
    return torch.randn(BLOCKS, SIZE, HEADS, DIM).to(dtype)


def nz_cache() -> Any:
    return torch.randn(BLOCKS, HEADS * DIM // 8, SIZE, 8)


def tokens(count: int) -> Any:
    return torch.randn(count, HEADS, DIM)


def gathered(pool: Any) -> Any:
    return torch.cat([pool[[5, 0]].flatten(0, 1)[:7], pool[[2]].flatten(0, 1)[:3]])


def selection(rope: bool = True) -> list[Any]:
    """Two sequences of 32 and 20 tokens, two blocks of 4 tokens selected of each; nothing cached."""
    kv, full = torch.zeros(4, 8, 6), torch.randn(8, 8, 6)
    return [
        torch.zeros(4, 8, 2) if rope else None,
        kv,
        torch.tensor([[2], [1]], dtype=torch.int32),
        torch.zeros(2, 1, 1, 3, dtype=torch.int32),
        torch.tensor([[[[6, 1]]], [[[4, 0]]]], dtype=torch.int32),
        torch.randn(8, 8, 2) if rope else None,
        full,
        torch.tensor([[0, 1, 2, 3], [7, 6, 5, 4]], dtype=torch.int32),
        torch.tensor([32, 20], dtype=torch.int32),
        torch.tensor([1, 1], dtype=torch.int32),
    ]


def quantised() -> Any:
    rows = torch.zeros(BLOCKS, SIZE, 656, dtype=torch.uint8)
    rows[..., :512] = torch.randint(0, 120, (BLOCKS, SIZE, 512), dtype=torch.uint8)
    rows[..., 512:528] = torch.rand(BLOCKS, SIZE, 4).view(torch.uint8)
    rows[..., 528:] = torch.randn(BLOCKS, SIZE, 64).bfloat16().view(torch.uint8)
    return rows


def test_gather() -> None:
    key_cache, value_cache = cache(), cache()
    key, value = tokens(12), tokens(12)
    behind = key[10:].clone()
    ops.gather_pa_kv_cache(key_cache, value_cache, TABLES, LENS, key, value)
    assert torch.equal(key[:10], gathered(key_cache)) and torch.equal(value[:10], gathered(value_cache))
    assert torch.equal(key[10:], behind)
    twin = ops.gather_pa_kv_cache_functional(key_cache, value_cache, TABLES, LENS, 12)
    assert torch.equal(twin[0][:10], key[:10]) and torch.equal(twin[1][:10], value[:10])
    assert not twin[0][10:].any()


def test_gather_nz() -> None:
    pool = nz_cache()
    expected = gathered(pool.permute(0, 2, 1, 3).reshape(BLOCKS, SIZE, HEADS * DIM))
    key, value = ops.gather_pa_kv_cache_functional(pool, pool, TABLES, LENS, 10, cache_mode="PA_NZ")
    assert torch.equal(key, expected) and torch.equal(value, expected)


@pytest.mark.parametrize("with_value", [True, False])
def test_scatter(with_value: bool) -> None:
    key, value = tokens(4), tokens(4) if with_value else None
    key_cache, value_cache = cache(), cache() if with_value else None
    before = key_cache.clone()
    twin = ops.scatter_pa_kv_cache_functional(key, value, key_cache, value_cache, SLOTS)
    assert torch.equal(key_cache, before)
    ops.scatter_pa_kv_cache(key, value, key_cache, value_cache, SLOTS)
    expected = before.flatten(0, 1)
    expected[[9, 0, 23]] = key[[0, 2, 3]]
    assert torch.equal(key_cache.flatten(0, 1), expected)
    assert torch.equal(twin[0], key_cache)
    if value_cache is not None and value is not None:
        assert torch.equal(value_cache.flatten(0, 1)[[9, 0, 23]], value[[0, 2, 3]])
        assert torch.equal(twin[1], value_cache)
    else:
        assert twin[1].shape == (0,)


@pytest.mark.parametrize("rope", [True, False])
def test_selection(rope: bool) -> None:
    arguments = selection(rope)
    before = [a if a is None else a.clone() for a in arguments]
    twin = ops.gather_selection_kv_cache_functional(*arguments, **OF_FOUR)
    assert all(b is None or torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
    actual_seq = torch.zeros(2, dtype=torch.int32)
    counters = torch.zeros(2, 3, dtype=torch.int32)
    ops.gather_selection_kv_cache(*arguments, actual_seq, counters=counters, **OF_FOUR)
    assert actual_seq.tolist() == [8, 8] and counters.tolist() == [[0, 2, 0], [0, 2, 0]]
    assert arguments[3].flatten(0, 2).tolist() == [[6, 1, 8], [4, 0, 8]]
    full, kv = arguments[6], arguments[1]
    assert torch.equal(kv[2], torch.cat([full[3, :4], full[0, 4:]]))
    assert (
        torch.equal(twin[0], actual_seq) and torch.equal(twin[2], kv) and torch.equal(twin[4], arguments[3])
    )
    assert torch.equal(twin[1], arguments[0]) if rope else twin[1].shape == (0,)


def test_group_memcpy() -> None:
    source, destination = torch.arange(16.0), torch.zeros(16)
    table = torch.tensor([[source.data_ptr(), destination.data_ptr()]])
    ops.group_memcpy(table, 40)
    assert destination.tolist() == [*range(10), *[0] * 6]
    ops.group_memcpy(table, sizes=torch.tensor([64]), checked=True)
    assert torch.equal(destination, source)


def test_copy_and_swap_blocks() -> None:
    caches, others = [cache(), cache()], [cache(), cache()]
    before = [c.clone() for c in caches]
    copied = ops.copy_blocks_functional(caches, PAIRS)
    swapped = ops.swap_blocks_functional(caches, others, PAIRS)
    assert all(torch.equal(c, b) for c, b in zip(caches, before, strict=True))
    ops.swap_blocks(caches, others, PAIRS)
    ops.copy_blocks(caches, PAIRS)
    for c, b, o in zip(caches, before, others, strict=True):
        assert torch.equal(c[4:], b[:2]) and torch.equal(c[:4], b[:4]) and torch.equal(o[4:], b[:2])
    assert all(torch.equal(a, b) for a, b in zip([*copied, *swapped], [*caches, *others], strict=True))


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_transfer_layers(layout: str) -> None:
    keys, values = [cache(), cache()], [cache(), cache()]
    chunk = ops.transfer_layers_functional(keys, values, IDS, chunk_layout=layout)
    by_layer = chunk if layout == "layer_first" else chunk.transpose(0, 1)
    for layer in range(2):
        assert torch.equal(by_layer[layer, :, 0], keys[layer][IDS])
        assert torch.equal(by_layer[layer, :, 1], values[layer][IDS])
    again = torch.zeros_like(chunk)
    ops.transfer_layers(keys, values, again, IDS, chunk_layout=layout)
    assert torch.equal(again, chunk)
    back = [torch.zeros_like(k) for k in keys]
    ops.transfer_layers(back, None, by_layer[:, :, :1], IDS, direction="chunk_to_pools")
    assert all(
        torch.equal(b[IDS], k[IDS]) and not b[[0, 2, 4, 5]].any() for b, k in zip(back, keys, strict=True)
    )


def test_gather_dequant() -> None:
    rows = quantised()
    got = ops.gather_dequant_functional(rows, TABLES, LENS, 11)
    flat = gathered(rows)
    scales = flat[:, 512:528].contiguous().view(torch.float32).repeat_interleave(128, 1)
    expected = (flat[:, :512].contiguous().view(torch.float8_e4m3fn).float() * scales).bfloat16()
    assert torch.equal(got[:10, :512], expected)
    assert torch.equal(got[:10, 512:], flat[:, 528:].contiguous().view(torch.bfloat16))
    assert not got[10:].any()
    out = torch.zeros(11, 576, dtype=torch.bfloat16)
    ops.gather_dequant(rows, TABLES, LENS, out)
    assert torch.equal(out, got)


def _calls() -> dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]]:
    pools, others = [cache(), cache()], [cache(), cache()]
    chunk = torch.zeros(2, 2, 2, SIZE, HEADS, DIM)
    actual_seq = torch.zeros(2, dtype=torch.int32)
    destination = torch.zeros(16)
    table = torch.tensor([[torch.arange(16.0).data_ptr(), destination.data_ptr()]])[:0]
    offsets = torch.tensor([4, 0])
    sums = torch.tensor([0, 4, 7])
    strided = torch.zeros(12, HEADS, 2 * DIM)[..., ::2]
    heads_first = torch.randn(BLOCKS, HEADS, SIZE, DIM).transpose(1, 2)
    more = {
        "counters": torch.zeros(2, 3, dtype=torch.int32),
        "fetch_counts": torch.zeros(2, dtype=torch.int32),
    }
    rows = {"status_row": torch.tensor([1, 0], dtype=torch.int32), "q_len_mode": "all_rows", **OF_FOUR}
    out = torch.zeros(11, 576, dtype=torch.bfloat16)
    return {
        "gather": ("gather_pa_kv_cache", (*pools, TABLES, LENS, tokens(12), tokens(12)), {}),
        "gather, all options": (
            "gather_pa_kv_cache",
            (*pools, TABLES, sums, tokens(7), tokens(7)),
            {"seq_offset": offsets, "is_seq_lens_cumsum": True, "index_policy": "reject"},
        ),
        "gather, strides": (
            "gather_pa_kv_cache",
            (heads_first, pools[0], TABLES, LENS, strided, tokens(12)),
            {},
        ),
        "gather twin": ("gather_pa_kv_cache_functional", (*pools, TABLES, LENS, 12), {}),
        "gather twin, fp8": (
            "gather_pa_kv_cache_functional",
            (cache(torch.float8_e4m3fn).view(torch.uint8), cache(torch.bfloat16), TABLES, LENS, 12),
            {"seq_offset": offsets},
        ),
        "gather twin, PA_NZ": (
            "gather_pa_kv_cache_functional",
            (nz_cache(), nz_cache(), TABLES, LENS, 12),
            {"cache_mode": "PA_NZ"},
        ),
        "scatter": ("scatter_pa_kv_cache", (tokens(4), tokens(4), *pools, SLOTS), {}),
        "scatter, keys only": ("scatter_pa_kv_cache", (tokens(5), None, pools[0], None, SLOTS), {}),
        "scatter twin": (
            "scatter_pa_kv_cache_functional",
            (tokens(4), tokens(4), heads_first, pools[0], SLOTS),
            {},
        ),
        "scatter twin, keys only": (
            "scatter_pa_kv_cache_functional",
            (tokens(4), None, heads_first.transpose(1, 2), None, SLOTS),
            {"scatter_mode": "Nhsd"},
        ),
        "selection": ("gather_selection_kv_cache", (*selection(), actual_seq), OF_FOUR),
        "selection, all options": (
            "gather_selection_kv_cache",
            (*selection(False), actual_seq),
            {**more, **rows},
        ),
        "selection twin": ("gather_selection_kv_cache_functional", tuple(selection()), OF_FOUR),
        "selection twin, no rope": ("gather_selection_kv_cache_functional", tuple(selection(False)), rows),
        "group_memcpy": ("group_memcpy", (table, 64), {}),
        "group_memcpy, sizes": (
            "group_memcpy",
            (table,),
            {"sizes": torch.zeros(0, dtype=torch.int64), "host_count": 0, "checked": True},
        ),
        "copy_blocks": ("copy_blocks", (pools, PAIRS), {"count": torch.tensor(1)}),
        "copy_blocks twin": ("copy_blocks_functional", ([heads_first, pools[0]], PAIRS), {}),
        "swap_blocks": ("swap_blocks", (pools, others, PAIRS), {}),
        "swap_blocks twin": ("swap_blocks_functional", (pools, others, PAIRS), {"count": torch.tensor(1)}),
        "transfer_layers": ("transfer_layers", (pools, others, chunk, IDS), {}),
        "transfer_layers, no values": (
            "transfer_layers",
            (pools, None, chunk[:, :, :1], IDS),
            {"direction": "chunk_to_pools"},
        ),
        "transfer_layers twin": ("transfer_layers_functional", (pools, others, IDS), {}),
        "transfer_layers twin, no values": (
            "transfer_layers_functional",
            (pools, None, IDS),
            {"chunk_layout": "page_first"},
        ),
        "dequant": ("gather_dequant", (quantised(), TABLES, LENS, out), {"seq_offset": offsets}),
        "dequant twin": ("gather_dequant_functional", (quantised(), TABLES, LENS, 11), {}),
    }


CALLS = _calls()


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    operator, args, kwargs = CALLS[name]
    torch_library.opcheck(getattr(ops, operator).default, args, kwargs)


def test_every_operator_is_checked() -> None:
    registered = {
        name.removeprefix("kvferry::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("kvferry::")
    }
    assert registered == {operator for operator, _, _ in CALLS.values()}


@pytest.mark.parametrize("name", ["gather", "gather twin", "scatter", "swap_blocks twin", "transfer_layers"])
def test_grad_is_refused(name: str) -> None:
    operator, args, kwargs = CALLS[name]
    call = getattr(ops, operator)

    def first_requires_grad(arguments: Any) -> Any:
        if isinstance(arguments, torch.Tensor):
            return arguments.detach().clone().requires_grad_()
        return type(arguments)([first_requires_grad(arguments[0]), *arguments[1:]])

    args = first_requires_grad(args)
    pools = name == "transfer_layers"  # may be written
    instead = "call it under torch.no_grad" if not pools else r"pass key_caches\[0\]\.detach"
    with pytest.raises(RuntimeError, match=rf"{operator}: \S+ requires grad.*derivative: {instead}"):
        call(*args, **kwargs)
    torch_library.opcheck(call.default, args, kwargs, test_utils="test_autograd_registration")
    if not pools:
        with torch.no_grad():
            results = call(*args, **kwargs)
        assert results is None or not any(result.requires_grad for result in results)


def test_autograd_sees_that_a_cache_was_written() -> None:
    key_cache, value_cache = cache(), cache()
    query = torch.randn(DIM, requires_grad=True)
    loss = (key_cache * query).sum()
    ops.scatter_pa_kv_cache(tokens(4), tokens(4), key_cache, value_cache, SLOTS)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inference_tensors() -> None:
    with torch.inference_mode():
        key_cache, value_cache = cache(), cache()
        ops.scatter_pa_kv_cache(tokens(4), tokens(4), key_cache, value_cache, SLOTS)
    key = tokens(4)
    ops.scatter_pa_kv_cache(key, tokens(4), key_cache, value_cache, SLOTS)
    assert torch.equal(key_cache.flatten(0, 1)[9], key[0])


def test_other_devices_are_refused() -> None:
    with torch._subclasses.FakeTensorMode():
        caches = [torch.empty(4, 4), torch.empty(4, 4, device="xpu")]
        with pytest.raises(NotImplementedError, match=r"copy_blocks: caches\[1\] is on xpu:0, expected cpu"):
            ops.copy_blocks(caches, torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(NotImplementedError, match=r"copy_blocks: caches\[0\] is torch.sparse_coo"):
        ops.copy_blocks([torch.zeros(4, 4).to_sparse()], PAIRS)
    with pytest.raises(NotImplementedError, match=r"copy_blocks: caches\[1\] is on meta, expected cpu"):
        ops.copy_blocks([torch.zeros(4, 4), torch.zeros(4, 4, device="meta")], PAIRS)
    with pytest.warns(UserWarning, match="quantized"):
        quantized = torch.quantize_per_tensor(torch.ones(4, 4), 1.0, 0, torch.qint8)
    with pytest.raises(NotImplementedError, match=r"copy_blocks: caches\[0\] is quantized"):
        ops.copy_blocks([quantized], PAIRS)
    for name in CALLS:
        qualified = f"kvferry::{CALLS[name][0]}"
        assert torch._C._dispatch_has_computed_kernel_for_dispatch_key(qualified, "XPU"), qualified


def test_cuda_kernels_run_on_their_tensors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CALLS:
        qualified = f"kvferry::{CALLS[name][0]}"
        assert torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CUDA"), qualified

    class OnDevice1(torch.Tensor):
        is_cuda = True

        def get_device(self) -> int:
            return 1

    done: list[Any] = []

    @contextlib.contextmanager
    def device(index: int) -> Iterator[None]:
        done.append(index)
        yield
        done.append("left")

    kernels: dict[str, Any] = {}
    operators = Operators("kvferry_on_cuda")
    monkeypatch.setattr(operators, "_impl", lambda _, kernel, key: kernels.update({key: kernel}))
    monkeypatch.setattr(torch.cuda, "device", device)
    operators.define("copy(Tensor(a!)[] caches, Tensor mapping) -> ()", lambda *_: done.append("run"))
    pinned, cache = torch.zeros(2), torch.zeros(2).as_subclass(OnDevice1)
    kernels["CUDA"]([pinned, cache], PAIRS)
    assert done == [1, "run", "left"] and pinned._version == 1
    kernels["CPU"]([pinned], PAIRS)
    assert done[3:] == ["run"]


def test_meta_tensors_give_shapes() -> None:
    pool = torch.empty(BLOCKS, SIZE, HEADS, DIM, device="meta", dtype=torch.bfloat16)
    tables, lens = TABLES.to("meta"), LENS.to("meta")
    key, value = ops.gather_pa_kv_cache_functional(pool, pool, tables, lens, 10)
    assert key.shape == value.shape == (10, HEADS, DIM) and key.dtype == torch.bfloat16 and key.is_meta


def test_errors_keep_their_kind() -> None:
    pools = [cache(), cache()]
    with pytest.raises(IndexError):
        ops.copy_blocks(pools, torch.tensor([[0, BLOCKS]]), index_policy="reject")
    with pytest.raises(ValueError, match="mapping"):
        ops.copy_blocks(pools, torch.zeros(2, 3, dtype=torch.int64))


def test_imports_register_what_they_name() -> None:
    script = """
import sys
import kvferry
assert "torch" not in sys.modules
import kvferry.torch
import torch
names = {n.partition("::")[0] for n in torch._C._dispatch_get_all_op_names()}
assert "kvferry" in names and not names & {"npu", "custom", "_C_cache_ops"}, names
"""
    subprocess.run([sys.executable, "-c", script], check=True)
