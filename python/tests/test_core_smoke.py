# SPDX-License-Identifier: Apache-2.0
"""What the extension itself does: intake of tensors, plans, streams, errors. Semantics are tested elsewhere."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kvferry

BLOCKS, BLOCK, HEADS, SIZE, ROWS = 4, 2, 3, 8, 5


class Case:
    """A gather of two sequences, of 3 and 2 tokens, from blocks [2, 1] and [3]."""

    def __init__(self, convert: Any = lambda array: array, dtype: Any = np.int16) -> None:
        tokens = np.arange(BLOCKS * BLOCK * HEADS * SIZE) % 100
        self.cache = tokens.reshape(BLOCKS, BLOCK, HEADS, SIZE).astype(dtype)
        self.expected = np.stack([self.cache[b, s] for b, s in [(2, 0), (2, 1), (1, 0), (3, 0), (3, 1)]])
        self.named = {
            "key_cache": convert(self.cache),
            "value_cache": convert(self.cache + np.array(1, dtype)),
            "block_tables": convert(np.array([[2, 1], [3, 0]], np.int32)),
            "seq_lens": convert(np.array([3, 2], np.int32)),
            "key": convert(np.zeros((ROWS, HEADS, SIZE), dtype)),
            "value": convert(np.zeros((ROWS, HEADS, SIZE), dtype)),
        }

    def check(self) -> None:
        np.testing.assert_array_equal(np.asarray(self.named["key"]), self.expected)
        np.testing.assert_array_equal(np.asarray(self.named["value"]), self.expected + 1)


class Capsule:
    """DLPack as NumPy offers it, and nothing else."""

    def __init__(self, array: np.ndarray, old: bool = False) -> None:
        self.array = array
        self.old = old

    def __dlpack__(self, **options: Any) -> Any:
        if not self.old:
            return self.array.__dlpack__(**options)
        if options:
            raise TypeError("unexpected keyword argument")
        return self.array.__dlpack__()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array


@pytest.mark.parametrize(
    "convert", [lambda a: a, Capsule, lambda a: Capsule(a, old=True)], ids=["numpy", "new", "old"]
)
def test_sources(convert: Any) -> None:
    case = Case(convert)
    assert kvferry.gather_pa_kv_cache(**case.named) is None
    case.check()


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float16]
)
def test_dtypes_of_numpy(dtype: Any) -> None:
    case = Case(dtype=dtype)
    kvferry.gather_pa_kv_cache(**case.named)
    np.testing.assert_array_equal(case.named["key"].view(np.uint8), case.expected.view(np.uint8))


def test_plan_runs_on_other_memory_of_the_same_shape() -> None:
    plan = kvferry.plan_gather_pa_kv_cache(**Case().named)
    case = Case()
    plan.run(**case.named)
    case.check()
    assert plan.op == "gather_pa_kv_cache"
    assert plan.implementation in plan.describe()
    assert plan.workspace_bytes > 0


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "key",
            np.zeros((ROWS, HEADS, SIZE), np.int8),
            "int8 [5, 3, 8], expected int16 [5, 3, 8] as planned",
        ),
        ("seq_lens", np.zeros(3, np.int32), "int32 [3], expected int32 [2] as planned"),
        (
            "value",
            np.zeros((ROWS, HEADS, 2 * SIZE), np.int16)[..., ::2],
            "strides [48, 16, 2], expected int16",
        ),
        ("seq_offset", np.zeros(2, np.int32), "a tensor is given, expected None as planned"),
    ],
)
def test_plan_refuses_other_tensors(name: str, tensor: Any, message: str) -> None:
    case = Case()
    plan = kvferry.plan_gather_pa_kv_cache(**case.named)
    case.named[name] = tensor
    with pytest.raises(ValueError) as error:
        plan.run(**case.named)
    assert str(error.value).startswith(f"gather_pa_kv_cache: {name}: ")
    assert message in str(error.value)


def read_only() -> np.ndarray:
    array = np.zeros((ROWS, HEADS, SIZE), np.int16)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        ([1, 2], TypeError, "list, expected a tensor"),
        (None, TypeError, "NoneType, expected a tensor"),
        (np.zeros((ROWS, HEADS, SIZE)), ValueError, "dtype('float64'), expected one of float16"),
        (np.zeros((ROWS, HEADS, SIZE), bool), ValueError, "dtype('bool'), expected"),
        (Capsule(np.zeros((ROWS, HEADS, SIZE), bool)), ValueError, "dtype is bool, expected"),
        (np.zeros((ROWS, HEADS, SIZE), ">i2"), ValueError, "dtype('>i2'), expected"),
        (np.zeros((1,) * 9, np.int16), ValueError, "9 dimensions, expected at most 8"),
        (read_only(), ValueError, "read-only"),
        (Capsule(read_only()), ValueError, "read-only"),
        (np.zeros((ROWS, HEADS), np.int16), ValueError, "expected 3"),
    ],
)
def test_refused_tensors_are_named(tensor: Any, error: type[Exception], message: str) -> None:
    case = Case()
    case.named["key"] = tensor
    with pytest.raises(error) as raised:
        kvferry.gather_pa_kv_cache(**case.named)
    assert str(raised.value).startswith("gather_pa_kv_cache: key: ")
    assert message in str(raised.value)


def test_numpy_strides() -> None:
    case = Case()
    case.named["key_cache"] = np.ascontiguousarray(case.cache[:, :, :, ::-1])[:, :, :, ::-1]
    case.named["value"] = np.zeros((ROWS, 2 * HEADS, SIZE), np.int16)[:, ::2]
    kvferry.gather_pa_kv_cache(**case.named)
    case.check()
    records = np.zeros((ROWS, HEADS, SIZE), np.dtype([("a", np.int16), ("b", np.int8)]))
    with pytest.raises(
        ValueError, match=r"key: strides are \(72, 24, 3\) bytes, expected multiples of the 2"
    ):
        kvferry.gather_pa_kv_cache(**{**case.named, "key": records["a"]})


def test_choices() -> None:
    with pytest.raises(ValueError, match='cache_mode is \'nz\', expected one of "Norm", "PA_NZ"'):
        kvferry.gather_pa_kv_cache(**Case().named, cache_mode="nz")
    with pytest.raises(TypeError, match="index_policy: int, expected one of"):
        kvferry.gather_pa_kv_cache(**Case().named, index_policy=1)


def test_bad_entries() -> None:
    case = Case()
    case.named["block_tables"][0, 1] = 7
    record = kvferry.ErrorRecord()
    kvferry.gather_pa_kv_cache(**case.named, index_policy="report", error_record=record)
    assert (record.bad, record.batch, record.column, record.id) == (2, 0, 1, 7)
    assert record.which == kvferry.BAD_KEY | kvferry.BAD_VALUE
    assert repr(record) == "ErrorRecord(bad=2, batch=0, column=1, id=7, which=3, op='gather_pa_kv_cache')"
    record.clear()
    assert record.bad == 0
    with pytest.raises(IndexError, match="gather_pa_kv_cache: block_tables"):
        kvferry.gather_pa_kv_cache(**case.named, index_policy="reject")


def test_stream_keeps_tensors_until_wait() -> None:
    class Watched(np.ndarray):
        pass

    stream = kvferry.Stream()
    context = kvferry.Context(stream=stream)
    case = Case(lambda array: array.view(Watched))
    kvferry.gather_pa_kv_cache(**case.named, context=context)
    cache = weakref.ref(case.named.pop("key_cache"))
    gc.collect()
    assert cache() is not None
    stream.wait()
    assert cache() is None
    case.check()


def test_stream_refusal_comes_from_wait_and_frees() -> None:
    stream = kvferry.Stream()
    case = Case(Capsule)
    case.named["block_tables"].array[0, 0] = 9
    kvferry.gather_pa_kv_cache(**case.named, index_policy="reject", context=kvferry.Context(stream=stream))
    cache = weakref.ref(case.named.pop("key_cache"))
    with pytest.raises(IndexError):
        stream.wait()
    assert cache() is None
    stream.wait()


def test_stream_that_goes_away_waits() -> None:
    case = Case()
    context = kvferry.Context(stream=kvferry.Stream())
    kvferry.gather_pa_kv_cache(**case.named, context=context)
    del context
    case.check()


def test_capsules_are_released_once() -> None:
    array = np.zeros((ROWS, HEADS, SIZE), np.int16)
    alive = weakref.ref(array)
    case = Case()
    case.named["key"] = Capsule(array)
    kvferry.gather_pa_kv_cache(**case.named)
    del array, case
    assert alive() is None


def test_context() -> None:
    context = kvferry.Context(threads=2, implementation="generic", device="cpu")
    assert context.threads == 2
    assert kvferry.plan_gather_pa_kv_cache(**Case().named, context=context).implementation == "generic"
    with pytest.raises(ValueError, match="device is 'gpu', expected 'cpu', 'cuda' or 'cuda:<index>'"):
        kvferry.Context(device="gpu")
    with pytest.raises(RuntimeError, match="cuda"):
        kvferry.gather_pa_kv_cache(**Case().named, context=kvferry.Context(device="cuda:9999"))
    assert (context.device, context.cuda_stream, context.stream) == ("cpu:0", None, None)
    context = kvferry.Context(device="cuda:1", stream=2)
    assert (context.device, context.cuda_stream, context.stream) == ("cuda:1", 2, None)


def test_backends() -> None:
    cpu, cuda = kvferry.backends()
    assert (cpu.name, cpu.available, cuda.name) == ("cpu", True, "cuda") and "generic" in cpu.detail
    assert repr(cpu).startswith("BackendInfo(name='cpu', available=True, detail='") and cuda.detail


def test_group_memcpy() -> None:
    source, target = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
    table = np.array([[source.ctypes.data, target.ctypes.data + 32]], np.int64)
    kvferry.group_memcpy(table, 32)
    np.testing.assert_array_equal(target[32:], source[:32])
    plan = kvferry.plan_group_memcpy(table, sizes=np.array([8], np.int64), checked=True)
    table[0, 1] = target.ctypes.data
    plan.run(table, sizes=np.array([8], np.int64))
    np.testing.assert_array_equal(target[:8], source[:8])
    with pytest.raises(TypeError):
        kvferry.group_memcpy(table, 1.5)


def test_interrupts_pass() -> None:
    class Interrupted:
        def __dlpack__(self, **options: Any) -> Any:
            raise KeyboardInterrupt

    case = Case()
    case.named["key"] = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        kvferry.gather_pa_kv_cache(**case.named)


def test_threads_share_the_default_context() -> None:
    cases = [Case() for _ in range(8)]

    def work(case: Case) -> None:
        for _ in range(200):
            kvferry.gather_pa_kv_cache(**case.named)

    threads = [threading.Thread(target=work, args=(case,)) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for case in cases:
        case.check()
