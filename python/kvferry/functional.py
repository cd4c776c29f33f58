# SPDX-License-Identifier: Apache-2.0
"""Allocating forms of the operators: results are new memory, the arguments stay as they are.

A result is of the kind of the tensor that it comes from: NumPy, torch, JAX or CuPy. These are the only forms for
JAX, whose arrays are immutable; its results are handed over without a copy, those on a GPU when they are there.
Everything else about an argument is as for the operator of the same name. A context with a stream of the CPU is
refused: results would be returned before they are there. Gradients do not flow through.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

from . import _core
from ._core import Context, ErrorRecord
from ._types import Array, Tensor

__all__ = [
    "copy_blocks_functional",
    "gather_dequant_functional",
    "gather_pa_kv_cache_functional",
    "gather_selection_kv_cache_functional",
    "scatter_pa_kv_cache_functional",
    "swap_blocks_functional",
    "transfer_layers_functional",
]

IndexPolicy = Literal["default", "report", "reject"]

T = TypeVar("T", bound=Array)
V = TypeVar("V", bound=Array)
R = TypeVar("R", bound="Array | None")
S = TypeVar("S", bound=Array)
B = TypeVar("B", bound=Array)

# What JAX needs to take memory as it is.
_JAX_ALIGNMENT = 64
_DLPACK_CUDA = 2


@functools.cache
def _context_of_device(device: str) -> Context:
    """JAX tells no stream to run on: CUDA's default stream."""
    return Context(device=device)


class _Call:
    """One allocating call: makes the memory that the operator writes, and what the caller gets for it.

    context: the caller's; without one, that of the GPU of a JAX array, if memory was made for one.
    """

    def __init__(self, op: str, context: Context | None) -> None:
        self.op, self.context = op, context
        if context is not None and context.stream is not None:
            raise ValueError(f"{op}: context has a stream; expected one without, or the call in place")

    def _library(self, name: str, like: Any) -> str:
        for base in type(like).__mro__:
            library = base.__module__.partition(".")[0]
            if library in ("numpy", "torch", "cupy"):
                return library
            if library in ("jax", "jaxlib"):
                return "jax"
        raise TypeError(
            f"{self.op}: {name}: {type(like).__name__}, expected an array of NumPy, torch, JAX or CuPy"
        )

    def _context_of_jax(self, name: str, array: Any) -> Context | None:
        """Where results for a JAX array on a GPU are made; None: it is on the CPU."""
        if all(device.platform == "cpu" for device in array.devices()):
            return None
        try:
            kind, index = array.__dlpack_device__()
        except BufferError:  # on several devices, or on one that DLPack has no number for
            kind, index = None, 0
        if kind != _DLPACK_CUDA:
            raise NotImplementedError(
                f"{self.op}: {name}: a JAX array on {array.device}, expected one in the memory of a CPU or of one "
                "CUDA device"
            )
        device = f"cuda:{index}"
        if self.context is None:
            self.context = _context_of_device(device)
        if self.context.device != device:
            raise ValueError(
                f"{self.op}: {name}: lives on device {device}, expected the context's {self.context.device}"
            )
        return self.context

    def zeros(self, name: str, like: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
        """Memory of this shape, with the dtype of `like` unless one is named."""
        element: Any
        library = self._library(name, like)
        if library == "jax" and (context := self._context_of_jax(name, like)) is not None:
            element = like.dtype.name if dtype is None else dtype
            return _core.DeviceMemory.zeros(self.op, name, context, shape, element)
        if library == "torch":
            torch = importlib.import_module("torch")
            return like.detach().new_zeros(
                shape, dtype=like.dtype if dtype is None else getattr(torch, dtype)
            )
        numpy = importlib.import_module("numpy" if library == "jax" else library)
        element = like.dtype if dtype is None else dtype
        if dtype == "bfloat16":
            element = importlib.import_module("ml_dtypes").bfloat16
        if library != "jax":
            return numpy.zeros(shape, element)
        size = math.prod(shape) * numpy.dtype(element).itemsize
        memory = numpy.zeros(size + _JAX_ALIGNMENT, numpy.uint8)
        start = -memory.ctypes.data % _JAX_ALIGNMENT
        return memory[start : start + size].view(element).reshape(shape)

    def copy(self, name: str, tensor: Any) -> Any:
        library = self._library(name, tensor)
        if library == "torch":
            return tensor.detach().clone()
        if library == "jax":
            if (context := self._context_of_jax(name, tensor)) is not None:
                return _core.DeviceMemory.copy(self.op, name, context, tensor)
            numpy = importlib.import_module("numpy")
            memory = self.zeros(name, tensor, tensor.shape)
            memory[...] = numpy.asarray(tensor)
            return memory
        return tensor.copy()

    def copies(self, name: str, tensors: Iterable[Any]) -> list[Any]:
        return [self.copy(f"{name}[{i}]", tensor) for i, tensor in enumerate(tensors)]

    def result(self, like: Any, memory: Any) -> Any:
        """What the caller gets: `memory`, as an array of the kind of `like`."""
        if memory is None or self._library("", like) != "jax":
            return memory
        if isinstance(memory, _core.DeviceMemory):
            memory = importlib.import_module("jax.dlpack").from_dlpack(memory)
        return importlib.import_module("jax").device_put(memory, like.sharding, may_alias=True)

    def results(self, like: Iterable[Any], memory: Iterable[Any]) -> list[Any]:
        return [self.result(each, made) for each, made in zip(like, memory, strict=True)]


def gather_pa_kv_cache_functional(
    key_cache: T,
    value_cache: V,
    block_tables: Tensor,
    seq_lens: Tensor,
    num_tokens: int,
    *,
    seq_offset: Tensor | None = None,
    cache_mode: Literal["Norm", "PA_NZ"] = "Norm",
    is_seq_lens_cumsum: bool = False,
    index_policy: IndexPolicy = "default",
    error_record: ErrorRecord | Tensor | None = None,
    context: Context | None = None,
) -> tuple[T, V]:
    """key and value of num_tokens rows; rows that no sequence reaches are zero."""
    call = _Call("gather_pa_kv_cache_functional", context)

    def rows(name: str, cache: Any) -> Any:
        shape = (math.prod(cache.shape[1::2]),) if cache_mode == "PA_NZ" else tuple(cache.shape[2:])
        return call.zeros(name, cache, (num_tokens, *shape))

    key, value = rows("key_cache", key_cache), rows("value_cache", value_cache)
    _core.gather_pa_kv_cache(
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        key,
        value,
        seq_offset=seq_offset,
        cache_mode=cache_mode,
        is_seq_lens_cumsum=is_seq_lens_cumsum,
        index_policy=index_policy,
        error_record=error_record,
        context=call.context,
    )
    return call.result(key_cache, key), call.result(value_cache, value)


def scatter_pa_kv_cache_functional(
    key: Tensor,
    value: Tensor | None,
    key_cache: T,
    value_cache: R,
    slot_mapping: Tensor,
    *,
    cache_mode: Literal["Norm", "PA_NZ"] = "Norm",
    scatter_mode: Literal["None", "Nhsd", "Nct"] = "None",
    nct_strides: Sequence[int] = (0, 0),
    nct_offsets: Sequence[int] = (0, 0),
    index_policy: IndexPolicy = "default",
    error_record: ErrorRecord | Tensor | None = None,
    context: Context | None = None,
) -> tuple[T, R]:
    """Copies of key_cache and value_cache with the tokens in them."""
    call = _Call("scatter_pa_kv_cache_functional", context)
    new_key_cache = call.copy("key_cache", key_cache)
    new_value_cache = None if value_cache is None else call.copy("value_cache", value_cache)
    _core.scatter_pa_kv_cache(
        key,
        value,
        new_key_cache,
        new_value_cache,
        slot_mapping,
        cache_mode=cache_mode,
        scatter_mode=scatter_mode,
        nct_strides=nct_strides,
        nct_offsets=nct_offsets,
        index_policy=index_policy,
        error_record=error_record,
        context=call.context,
    )
    return call.result(key_cache, new_key_cache), call.result(value_cache, new_value_cache)


def gather_selection_kv_cache_functional(
    selection_k_rope: R,
    selection_kv_cache: T,
    selection_kv_block_table: B,
    selection_kv_block_status: S,
    selection_topk_indices: Tensor,
    full_k_rope: Tensor | None,
    full_kv_cache: Tensor,
    full_kv_block_table: Tensor,
    full_kv_actual_seq: Tensor,
    full_q_actual_seq: Tensor | None,
    *,
    selection_topk_block_size: int = 64,
    q_len_mode: Literal["counts", "prefix_sum", "all_rows"] = "counts",
    status_row: Tensor | None = None,
    index_policy: IndexPolicy = "default",
    error_record: ErrorRecord | Tensor | None = None,
    context: Context | None = None,
) -> tuple[T, R, T, B, S]:
    """(selection_kv_actual_seq, selection_k_rope, selection_kv_cache, selection_kv_block_table,
    selection_kv_block_status), the last four as copies; the table is not changed."""
    call = _Call("gather_selection_kv_cache_functional", context)
    shape = tuple(selection_kv_block_table.shape[:1])
    actual_seq = call.zeros("selection_kv_cache", selection_kv_cache, shape, "int32")
    rope = None if selection_k_rope is None else call.copy("selection_k_rope", selection_k_rope)
    cache = call.copy("selection_kv_cache", selection_kv_cache)
    table = call.copy("selection_kv_block_table", selection_kv_block_table)
    status = call.copy("selection_kv_block_status", selection_kv_block_status)
    _core.gather_selection_kv_cache(
        rope,
        cache,
        table,
        status,
        selection_topk_indices,
        full_k_rope,
        full_kv_cache,
        full_kv_block_table,
        full_kv_actual_seq,
        full_q_actual_seq,
        actual_seq,
        selection_topk_block_size=selection_topk_block_size,
        q_len_mode=q_len_mode,
        status_row=status_row,
        index_policy=index_policy,
        error_record=error_record,
        context=call.context,
    )
    return (
        call.result(selection_kv_cache, actual_seq),
        call.result(selection_k_rope, rope),
        call.result(selection_kv_cache, cache),
        call.result(selection_kv_block_table, table),
        call.result(selection_kv_block_status, status),
    )


def copy_blocks_functional(
    caches: Sequence[T],
    mapping: Tensor,
    *,
    count: Tensor | None = None,
    index_policy: IndexPolicy = "default",
    error_record: ErrorRecord | Tensor | None = None,
    context: Context | None = None,
) -> list[T]:
    """Copies of the caches, with the blocks copied in them."""
    call = _Call("copy_blocks_functional", context)
    made = call.copies("caches", caches)
    _core.copy_blocks(
        made, mapping, count=count, index_policy=index_policy, error_record=error_record, context=call.context
    )
    return call.results(caches, made)


def swap_blocks_functional(
    src: Sequence[Tensor],
    dst: Sequence[T],
    mapping: Tensor,
    *,
    count: Tensor | None = None,
    index_policy: IndexPolicy = "default",
    error_record: ErrorRecord | Tensor | None = None,
    context: Context | None = None,
) -> list[T]:
    """Copies of dst, with the blocks of src in them."""
    call = _Call("swap_blocks_functional", context)
    made = call.copies("dst", dst)
    _core.swap_blocks(
        src,
        made,
        mapping,
        count=count,
        index_policy=index_policy,
        error_record=error_record,
        context=call.context,
    )
    return call.results(dst, made)


def transfer_layers_functional(
    key_caches: Sequence[T],
    value_caches: Sequence[Tensor] | None,
    block_ids: Array,
    *,
    chunk_layout: Literal["layer_first", "page_first"] = "layer_first",
    index_policy: IndexPolicy = "default",
    error_record: ErrorRecord | Tensor | None = None,
    context: Context | None = None,
) -> T:
    """The chunk with these blocks of the pools. One layer at least: it tells the kind of the chunk."""
    call = _Call("transfer_layers_functional", context)
    if not key_caches:
        raise ValueError(f"{call.op}: key_caches: is empty, expected at least one pool")
    layers, ids = len(key_caches), tuple(block_ids.shape)[0] if len(block_ids.shape) == 1 else 0
    sides = 2 if value_caches else 1
    outer = (layers, ids) if chunk_layout == "layer_first" else (ids, layers)
    chunk = call.zeros("key_caches[0]", key_caches[0], (*outer, sides, *tuple(key_caches[0].shape)[1:]))
    _core.transfer_layers(
        key_caches,
        value_caches,
        chunk,
        block_ids,
        chunk_layout=chunk_layout,
        index_policy=index_policy,
        error_record=error_record,
        context=call.context,
    )
    made: T = call.result(key_caches[0], chunk)
    return made


def gather_dequant_functional(
    cache: T,
    block_tables: Tensor,
    seq_lens: Tensor,
    num_tokens: int,
    *,
    seq_offset: Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
    index_policy: IndexPolicy = "default",
    error_record: ErrorRecord | Tensor | None = None,
    context: Context | None = None,
) -> T:
    """out, bfloat16 [num_tokens, 576]; rows that no sequence reaches are zero."""
    call = _Call("gather_dequant_functional", context)
    out = call.zeros("cache", cache, (num_tokens, 576), "bfloat16")
    _core.gather_dequant(
        cache,
        block_tables,
        seq_lens,
        out,
        seq_offset=seq_offset,
        is_seq_lens_cumsum=is_seq_lens_cumsum,
        index_policy=index_policy,
        error_record=error_record,
        context=call.context,
    )
    made: T = call.result(cache, out)
    return made
