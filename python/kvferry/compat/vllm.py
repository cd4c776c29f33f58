# SPDX-License-Identifier: Apache-2.0
"""`import kvferry.compat.vllm` gives CPU and CUDA tensors the cache operators of vLLM, in torch.ops._C_cache_ops:

    reshape_and_cache_flash(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale,
                            v_scale)
    copy_blocks(key_caches, value_caches, block_mapping)
    swap_blocks(src, dst, block_mapping)
    swap_blocks(src, dst, block_size_in_bytes, block_mapping)

Caches of reshape_and_cache_flash are [blocks, block size, heads, head size] with any strides. The only
kv_cache_dtype is "auto", which does not look at the scales: "fp8" would round, and KVFerry moves bytes.

Where vLLM is loaded, its operators get the CPU and CUDA kernels that they lack. Nothing is replaced: if one of
them has a CPU kernel or another signature, the import fails and changes nothing. vLLM cannot be loaded afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import kvferry
from kvferry._torch_library import Operators

__all__: list[str] = []

_operators = Operators("_C_cache_ops")


def _reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    if kv_cache_dtype != "auto":
        raise NotImplementedError(
            f"reshape_and_cache_flash: kv_cache_dtype '{kv_cache_dtype}' would scale and round, and KVFerry "
            "moves bytes: expected 'auto', with caches of the dtype of key and value"
        )
    kvferry.scatter_pa_kv_cache(key, value, key_cache, value_cache, slot_mapping)


def _copy_blocks(key_caches: Sequence[Tensor], value_caches: Sequence[Tensor], block_mapping: Tensor) -> None:
    kvferry.copy_blocks([*key_caches, *value_caches], block_mapping)


def _swap_blocks(src: Tensor, dst: Tensor, block_mapping: Tensor) -> None:
    kvferry.swap_blocks([src], [dst], block_mapping)


def _swap_blocks_of(src: Tensor, dst: Tensor, block_size_in_bytes: int, block_mapping: Tensor) -> None:
    def blocks(name: str, cache: Tensor) -> Tensor:
        if not cache.is_contiguous() or block_size_in_bytes <= 0 or cache.nbytes % block_size_in_bytes != 0:
            raise ValueError(
                f"swap_blocks: {name} has {cache.nbytes} bytes and strides {list(cache.stride())}, expected "
                f"contiguous blocks of block_size_in_bytes = {block_size_in_bytes}"
            )
        return cache.view(-1).view(torch.uint8).view(-1, block_size_in_bytes)

    kvferry.swap_blocks([blocks("src", src)], [blocks("dst", dst)], block_mapping)


_KERNELS: dict[str, tuple[str, Callable[..., None]]] = {
    "reshape_and_cache_flash": (
        "Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping, "
        "str kv_cache_dtype, Tensor k_scale, Tensor v_scale",
        _reshape_and_cache_flash,
    ),
    "copy_blocks": (
        "Tensor(a!)[] key_caches, Tensor(b!)[] value_caches, Tensor block_mapping",
        _copy_blocks,
    ),
    "swap_blocks": ("Tensor src, Tensor(a!) dst, Tensor block_mapping", _swap_blocks),
    "swap_blocks.bytes": (
        "Tensor src, Tensor(a!) dst, int block_size_in_bytes, Tensor block_mapping",
        _swap_blocks_of,
    ),
}


def _arguments(schema: torch._C.FunctionSchema) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in schema.arguments]


def _missing_kernel(operator: torch._ops.OpOverload) -> Callable[..., None]:
    """The CPU kernel for an operator that vLLM has defined."""
    if torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator._name, "CPU"):
        raise ImportError(f"kvferry.compat.vllm: {operator._name} has a CPU kernel already: use that one")
    for name, (arguments, kernel) in _KERNELS.items():
        known = torch._C.parse_schema(f"{name}({arguments}) -> ()")
        if name.split(".")[0] == operator._opname and _arguments(known) == _arguments(operator._schema):
            return kernel
    raise ImportError(f"kvferry.compat.vllm: no kernel for vLLM's {operator._schema}")


def _register() -> None:
    names = {name.split(".")[0] for name in _KERNELS}
    loaded = {name: getattr(torch.ops._C_cache_ops, name) for name in names if _operators.defined(name)}
    missing = [
        (getattr(packet, overload), _missing_kernel(getattr(packet, overload)))
        for packet in loaded.values()
        for overload in packet.overloads()
    ]  # all of them, before the first is registered
    for operator, kernel in missing:
        has_cuda = torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator._name, "CUDA")
        _operators.implement(operator, kernel, ("CPU",) if has_cuda else ("CPU", "CUDA"))
    for name, (arguments, kernel) in _KERNELS.items():
        if name.split(".")[0] not in loaded:
            _operators.define(f"{name}({arguments}) -> ()", kernel)


_register()
