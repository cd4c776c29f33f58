# SPDX-License-Identifier: Apache-2.0
"""Intake of torch tensors: the exchange API, and __dlpack__ for a torch that has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvferry

torch = pytest.importorskip("torch")


class OldTensor(torch.Tensor):  # type: ignore[misc, name-defined]
    """A tensor of a torch before 2.10, as far as the extension can see."""

    __dlpack_c_exchange_api__ = None

    def __dlpack__(self, **options: Any) -> Any:
        if self.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            raise BufferError("float8 types are not supported by dlpack")
        return super().__dlpack__(**options)


def tensors(dtype: Any = torch.float16, kind: type = torch.Tensor) -> dict[str, Any]:
    cache = torch.arange(4 * 2 * 3 * 8).remainder(100).reshape(4, 2, 3, 8).to(dtype)
    named = {
        "key_cache": cache,
        "value_cache": cache.flip(0),
        "block_tables": torch.tensor([[2, 1], [3, 0]], dtype=torch.int32),
        "seq_lens": torch.tensor([3, 2], dtype=torch.int32),
        "key": torch.zeros(5, 3, 8).to(dtype),
        "value": torch.zeros(5, 3, 8).to(dtype),
    }
    return {name: tensor.as_subclass(kind) for name, tensor in named.items()}


def expected(cache: Any) -> Any:
    cache = cache.as_subclass(torch.Tensor)
    return torch.stack([cache[2, 0], cache[2, 1], cache[1, 0], cache[3, 0], cache[3, 1]])


def check(named: dict[str, Any]) -> None:
    for result, cache in (("key", "key_cache"), ("value", "value_cache")):
        seen, wanted = named[result].as_subclass(torch.Tensor), expected(named[cache])
        assert torch.equal(seen.view(torch.uint8), wanted.view(torch.uint8))


DTYPES = ["float16", "bfloat16", "float32", "int8", "uint8", "int16", "int32", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("kind", [torch.Tensor, OldTensor])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str, kind: type) -> None:
    named = tensors(getattr(torch, dtype), kind)
    kvferry.gather_pa_kv_cache(**named)
    check(named)


@pytest.mark.parametrize("kind", [torch.Tensor, OldTensor])
def test_gradients(kind: type) -> None:
    named = tensors(torch.float32, kind)
    named["key_cache"] = torch.nn.Parameter(named["key_cache"])
    kvferry.gather_pa_kv_cache(**named)
    check(named)
    named["key"].requires_grad_()
    with pytest.raises(ValueError, match=r"gather_pa_kv_cache: key: .*requires grad; pass key.detach\(\)"):
        kvferry.gather_pa_kv_cache(**named)


def test_views() -> None:
    named = tensors()
    packed = torch.stack([named["key_cache"], named["value_cache"]], dim=1)
    named["key_cache"], named["value_cache"] = packed[:, 0], packed[:, 1]
    named["key"] = torch.zeros(3, 6, 8, dtype=torch.float16).transpose(0, 1)[1:]
    kvferry.gather_pa_kv_cache(**named)
    for result, cache in (("key", "key_cache"), ("value", "value_cache")):
        assert torch.equal(named[result], expected(named[cache]))


def test_mixed_with_numpy() -> None:
    named = tensors()
    named["block_tables"] = named["block_tables"].numpy()
    named["seq_offset"] = np.zeros(2, np.int32)
    kvferry.gather_pa_kv_cache(**named)
    check(named)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.zeros(5, 3, 8, dtype=torch.float64), "dtype is float64, expected one of float16"),
        (lambda: torch.zeros(5, 3, 8, dtype=torch.bool), "dtype is bool"),
        (lambda: torch.zeros(5, 3, 8, dtype=torch.complex64), "dtype is complex64"),
        (
            lambda: torch.zeros(5, 3, 8, dtype=torch.complex64).conj().imag,
            "negative bit set; pass key.resolve_neg()",
        ),
        (lambda: torch.zeros(5, 3, 8).to_sparse(), "gives no memory"),
        (lambda: torch.zeros(5, 3, 8, device="meta"), "Cannot pack tensors on meta"),
        (lambda: torch.zeros(5, 3, 8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "4 bits, 2 lanes"),
    ],
)
def test_refused_tensors_are_named(make: Any, message: str) -> None:
    named = tensors()
    named["key"] = make()
    with pytest.raises(ValueError) as raised:
        kvferry.gather_pa_kv_cache(**named)
    assert str(raised.value).startswith("gather_pa_kv_cache: key: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_hints_name_the_tensor_of_a_list() -> None:
    caches = [torch.zeros(2, 4), torch.zeros(2, 4, requires_grad=True)]
    with pytest.raises(ValueError, match=r"caches\[1\]: .*; pass caches\[1\]\.detach\(\)"):
        kvferry.copy_blocks(caches, np.array([[0, 1]]))


def test_empty() -> None:
    named = tensors()
    named["key"], named["value"] = named["key"][:0], named["value"][:0]
    kvferry.gather_pa_kv_cache(**named)
