# SPDX-License-Identifier: Apache-2.0
"""vLLM's cache operators on CPU tensors, alone and beside a vLLM that is loaded."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import library as torch_library  # noqa: E402

import kvferry.compat.vllm  # noqa: E402, F401

ops = torch.ops._C_cache_ops
BLOCKS, SIZE, HEADS, DIM = 6, 4, 2, 16
SLOTS = torch.tensor([9, -1, 0, 23])
PAIRS = torch.tensor([[0, 4], [1, 5]])
ONE = torch.ones(())


def cache() -> Any:
    return torch.randn(BLOCKS, SIZE, HEADS, DIM)


def tokens(count: int) -> Any:
    return torch.randn(count, HEADS, DIM)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_reshape_and_cache_flash(layout: str) -> None:
    key, value = tokens(7), tokens(7)  # padded: three rows have no slot
    caches = [
        cache() if layout == "NHD" else torch.randn(BLOCKS, HEADS, SIZE, DIM).transpose(1, 2)
        for _ in range(2)
    ]
    expected = [c.flatten(0, 1).clone() for c in caches]
    for rows, tensor in zip(expected, (key, value), strict=True):
        rows[[9, 0, 23]] = tensor[[0, 2, 3]]
    ops.reshape_and_cache_flash(key, value, *caches, SLOTS, "auto", ONE, ONE)
    assert all(torch.equal(c.flatten(0, 1), rows) for c, rows in zip(caches, expected, strict=True))


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e4m3", "int8"])
def test_quantising_is_refused(dtype: str) -> None:
    key_cache = torch.zeros(BLOCKS, SIZE, HEADS, DIM, dtype=torch.uint8)
    with pytest.raises(NotImplementedError, match=f"'{dtype}' would scale and round"):
        ops.reshape_and_cache_flash(
            tokens(4), tokens(4), key_cache, key_cache.clone(), SLOTS, dtype, ONE, ONE
        )


def test_copy_blocks() -> None:
    keys, values = [cache(), cache()], [cache(), cache()]
    before = [c.clone() for c in [*keys, *values]]
    ops.copy_blocks(keys, values, PAIRS)
    for c, b in zip([*keys, *values], before, strict=True):
        assert torch.equal(c[4:], b[:2]) and torch.equal(c[:4], b[:4])


def test_swap_blocks() -> None:
    src, dst = cache(), torch.zeros(8, SIZE, HEADS, DIM)
    ops.swap_blocks(src, dst, PAIRS)
    assert torch.equal(dst[4:6], src[:2]) and not dst[[0, 1, 2, 3, 6, 7]].any()


def test_swap_blocks_of_a_size() -> None:
    src, dst = cache(), torch.zeros(BLOCKS, SIZE, HEADS, DIM)
    half = src[0].nbytes // 2
    ops.swap_blocks(src, dst, half, torch.tensor([[0, 11], [3, 2]]))
    assert torch.equal(dst[5, 2:], src[0, :2]) and torch.equal(dst[1, :2], src[1, 2:])
    assert dst.count_nonzero() == src[0].numel()
    with pytest.raises(ValueError, match=f"swap_blocks: dst has .* block_size_in_bytes = {half}"):
        ops.swap_blocks(src, dst.transpose(1, 2), half, PAIRS)
    with pytest.raises(ValueError, match="swap_blocks: src has"):
        ops.swap_blocks(src, dst, 0, PAIRS)


CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "reshape_and_cache_flash": (
        ops.reshape_and_cache_flash.default,
        (tokens(4), tokens(4), cache(), cache(), SLOTS, "auto", ONE, ONE),
    ),
    "copy_blocks": (ops.copy_blocks.default, ([cache(), cache()], [cache(), cache()], PAIRS)),
    "swap_blocks": (ops.swap_blocks.default, (cache(), cache(), PAIRS)),
    "swap_blocks of a size": (ops.swap_blocks.bytes, (cache(), cache(), 512, PAIRS)),
}


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    torch_library.opcheck(*CALLS[name])


# What a vLLM without CPU kernels defines.
VLLM = """
from torch import library
import torch
theirs = library.Library("_C_cache_ops", "DEF")
theirs.define("swap_blocks({arguments}) -> ()")
theirs.define(
    "reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, "
    "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()"
)
theirs.impl("swap_blocks", lambda *arguments: None, "{device}")
try:
    import kvferry.compat.vllm
except ImportError as error:
    print(error)
    assert not hasattr(torch.ops._C_cache_ops, "copy_blocks")
else:
    src, dst, pair = torch.arange(12.0).view(3, 4), torch.zeros(3, 4), torch.tensor([[1, 2]])
    torch.ops._C_cache_ops.swap_blocks(src, dst, 16, pair)
    print(dst[2].tolist())
    torch.ops._C_cache_ops.copy_blocks([src], [], pair)
    assert torch.equal(src[2], dst[2])
"""


@pytest.mark.parametrize(
    ("arguments", "device", "said"),
    [
        (
            "Tensor src, Tensor! dst, int block_size_in_bytes, Tensor block_mapping",
            "CUDA",
            "[4.0, 5.0, 6.0, 7.0]",
        ),
        (
            "Tensor src, Tensor! dst, int block_size_in_bytes, Tensor block_mapping",
            "CPU",
            "has a CPU kernel already",
        ),
        ("Tensor src, Tensor! dst, Tensor stream, Tensor block_mapping", "CUDA", "no kernel for vLLM's"),
    ],
    ids=["lacks kernels", "has kernels", "unknown"],
)
def test_beside_vllm(arguments: str, device: str, said: str) -> None:
    script = VLLM.format(arguments=arguments, device=device)
    done = subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True)
    assert said in done.stdout
