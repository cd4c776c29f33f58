# SPDX-License-Identifier: Apache-2.0
"""The Python front end on CUDA devices that write down what is asked of them. Tensors are NumPy's memory, told to be
on a device by DLPack; nothing reads or writes it."""

from __future__ import annotations

import ctypes
import pathlib
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import kvferry
from kvferry import _cuda_streams

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python" / "tests"))

import producer
from producer import Producer

BLOCKS, SIZE, HEADS, DIM = 4, 2, 2, 8
NAMES = ("key_cache", "value_cache", "block_tables", "seq_lens", "key", "value")
CUDA_HOST, CUDA_MANAGED = 3, 13

_log = ctypes.CDLL(kvferry._core.__file__).kvferry_fake_cuda_log
_log.restype = ctypes.c_char_p


def log() -> list[str]:
    return (_log() or b"").decode().split("\n")[:-1]


def launches() -> set[str]:
    """Device and stream of what was launched."""
    return {line.split(" ", 1)[1].rsplit(" ", 1)[0] for line in log() if line.startswith("launch ")}


@pytest.fixture(autouse=True)
def empty_log() -> Iterator[None]:
    log()
    yield
    log()


def arrays() -> dict[str, Any]:
    cache = np.ones((BLOCKS, SIZE, HEADS, DIM), np.float16)
    rows = np.zeros((4, HEADS, DIM), np.float16)
    return {
        "key_cache": cache,
        "value_cache": cache.copy(),
        "block_tables": np.array([[2, 0]], np.int32),
        "seq_lens": np.array([4], np.int32),
        "key": rows,
        "value": rows.copy(),
    }


class OnDevice(Producer):
    """A producer of memory of a device: the streams that consumers gave."""

    def __init__(self, array: Any, *, device_type: int = producer.CUDA, **fields: Any) -> None:
        super().__init__(array, device_type=device_type, **fields)
        self.streams: list[Any] = []

    def __dlpack__(self, *, stream: Any = "none given", **keywords: Any) -> Any:
        self.streams.append(stream)
        return super().__dlpack__(**keywords)


def on_device(**fields: Any) -> dict[str, Any]:
    return {name: OnDevice(array, **fields) for name, array in arrays().items()}


def gather(tensors: dict[str, Any], **options: Any) -> None:
    """With index_policy="report" it has scratch memory."""
    kvferry.gather_pa_kv_cache(*(tensors[name] for name in NAMES), **options)


# What torch offers: a table of functions, and memory of the host that only is_pinned() tells of.

_Borrow = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(producer.DLTensor))
_SetError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
_Allocate = ctypes.PYFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(producer.DLTensor),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
    _SetError,
)
_CurrentStream = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class Table(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("allocate", _Allocate),
        ("export_managed", ctypes.c_void_p),
        ("import_managed", ctypes.c_void_p),
        ("borrow", _Borrow),
        ("current_stream", _CurrentStream),
    )


class Torch:
    """Its state: the current stream, what its allocator gave and got back."""

    stream = 0
    full = False
    allocated: list[Any] = []
    freed = 0


def _borrow(tensor: Any, out: Any) -> int:
    view = out[0]
    tensor._describe(view)
    tensor._alive.append(view)  # and so its shape
    return 0


def _allocate(prototype: Any, out: Any, error: Any, set_error: Any) -> int:
    if Torch.full:
        set_error(error, b"OutOfMemoryError", b"CUDA out of memory")
        return -1
    assert (prototype[0].device_type, prototype[0].ndim, prototype[0].bits) == (producer.CUDA, 1, 8)
    memory = np.zeros(prototype[0].shape[0], np.uint8)
    managed = producer.ManagedVersioned(major=1)
    Producer(memory, device_type=producer.CUDA)._describe(managed.tensor)

    def free(_: Any) -> None:
        Torch.freed += 1

    managed.deleter = producer._DELETER(free)
    Torch.allocated.append((managed, memory))
    out[0] = ctypes.addressof(managed)
    return 0


def _current_stream(device_type: int, device: int, out: Any) -> int:
    assert device_type == producer.CUDA
    out[0] = Torch.stream
    return 0


_TABLE = Table(
    major=1,
    minor=3,
    allocate=_Allocate(_allocate),
    borrow=_Borrow(_borrow),
    current_stream=_CurrentStream(_current_stream),
)


class Tensor(Producer):
    __dlpack_c_exchange_api__ = producer.capsule(b"dlpack_exchange_api", ctypes.addressof(_TABLE))
    requires_grad = False

    def is_neg(self) -> bool:
        return False

    def is_pinned(self) -> bool:
        return bool(self.fields.get("pinned", False))


Tensor.__module__ = "torch"


@pytest.fixture
def torch_state() -> Iterator[type[Torch]]:
    Torch.stream, Torch.full, Torch.freed = 0, False, 0
    Torch.allocated.clear()
    yield Torch


def of_torch(**fields: Any) -> dict[str, Any]:
    return {name: Tensor(array, device_type=producer.CUDA, **fields) for name, array in arrays().items()}


def test_torch_runs_on_its_current_stream_in_its_memory(torch_state: type[Torch]) -> None:
    for stream in (0, 0x5500):
        Torch.stream = stream
        gather(of_torch(), index_policy="report")
        lines = log()
        assert any(line == f"launch 0 {stream:#x} gather_pa_kv_cache" for line in lines), lines
        assert not any(line.startswith("workspace") for line in lines)
    assert len(Torch.allocated) == Torch.freed == 2


def test_torch_without_memory(torch_state: type[Torch]) -> None:
    Torch.full = True
    with pytest.raises(MemoryError, match="gather_pa_kv_cache: no .* bytes on cuda:0.*CUDA out of memory"):
        gather(of_torch(), index_policy="report")


def test_a_stream_of_ones_own_waits_for_torch(
    torch_state: type[Torch], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[tuple[int, int]] = []
    monkeypatch.setattr(
        _cuda_streams, "wait_for_torch", lambda device, stream: waited.append((device, stream))
    )
    Torch.stream = 0x7700
    context = kvferry.Context(device="cuda:1", stream=0x9900)
    gather(of_torch(device_id=1), context=context, index_policy="report")
    assert waited == [(1, 0x9900)]
    lines = log()
    assert "workspace 1 0x9900" in lines and "launch 1 0x9900 gather_pa_kv_cache" in lines
    assert not Torch.allocated  # its memory is for its stream
    gather(of_torch(), context=kvferry.Context(device="cuda", stream=0x7700))
    assert len(waited) == 1


@pytest.mark.parametrize(("given", "passed"), [(None, 1), (0, 1), (1, 1), (2, 2), (0xABC0, 0xABC0)])
def test_producers_get_the_stream_of_the_context(given: int | None, passed: int) -> None:
    tensors = on_device()
    gather(tensors, context=kvferry.Context(device="cuda:0", stream=given))
    assert launches() == {f"0 {given or 0:#x}"}
    assert all(tensor.streams == [passed] for tensor in tensors.values())


def test_producers_without_a_context_get_the_default_stream() -> None:
    tensors = on_device(device_type=CUDA_MANAGED)
    gather(tensors)
    assert launches() == {"0 0x0"}
    assert all(tensor.streams[-1] == 1 for tensor in tensors.values())
    assert all(tensor.deleted == tensor.exported for tensor in tensors.values())


@pytest.mark.parametrize("takes_max_version", [True, False])
def test_producers_on_the_cpu_get_no_stream(takes_max_version: bool) -> None:
    tensors = on_device(device_type=producer.CPU, takes_max_version=takes_max_version)
    gather(tensors)
    expected = np.ones((4, HEADS, DIM), np.float16)
    assert np.array_equal(tensors["key"].array, expected)
    assert all(tensor.streams[-1] == "none given" for tensor in tensors.values())
    assert not log()


def test_cupy_runs_on_its_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def stream(device: int) -> int:
        asked.append(device)
        return 0x3300

    monkeypatch.setattr(_cuda_streams, "cupy_stream", stream)
    ndarray = type("ndarray", (OnDevice,), {"__module__": "cupy"})
    tensors = {name: ndarray(array, device_id=1) for name, array in arrays().items()}
    gather(tensors)
    assert launches() == {"1 0x3300"} and asked == [1]
    assert all(tensor.streams == [0x3300] for tensor in tensors.values())


def test_the_framework_with_a_stream_decides(torch_state: type[Torch]) -> None:
    Torch.stream = 0x5500
    tensors = on_device()
    tensors["key"] = of_torch()["key"]
    gather(tensors)
    assert launches() == {"0 0x5500"}
    assert all(t.streams[-1] == 0x5500 for t in tensors.values() if isinstance(t, OnDevice))


def test_pinned_memory_beside_a_device(torch_state: type[Torch]) -> None:
    tensors = of_torch()
    tensors["key_cache"] = Tensor(arrays()["key_cache"], pinned=True)  # before the device is known
    tensors["value_cache"] = OnDevice(arrays()["value_cache"], device_type=CUDA_HOST)
    tensors["value"] = Tensor(arrays()["value"], pinned=True)
    plan = kvferry.plan_gather_pa_kv_cache(*(tensors[name] for name in NAMES))
    assert plan.implementation == "cuda"
    for run in (gather, lambda given: plan.run(*(given[name] for name in NAMES))):
        log()
        run(tensors)
        lines = log()
        assert [line for line in lines if line.startswith("pinned")] == [
            "pinned key_cache",
            "pinned value_cache",
            "pinned value",
        ]
    # Where a tensor lies is planned.
    tensors["key_cache"] = of_torch()["key_cache"]
    with pytest.raises(ValueError, match="key_cache: is on device type 2 .*expected type 3 .*as planned"):
        plan.run(*(tensors[name] for name in NAMES))


def test_a_plan_runs_on_its_device(torch_state: type[Torch]) -> None:
    plan = kvferry.plan_gather_pa_kv_cache(*of_torch().values())
    plan.run(*of_torch().values())
    assert launches() == {"0 0x0"}
    with pytest.raises(ValueError, match="the context is of device cpu:0, expected cuda:0 as planned"):
        plan.run(*of_torch().values(), context=kvferry.Context())
    with pytest.raises(ValueError, match="is on device type 1 .*expected type 2"):
        plan.run(*arrays().values())
    on_cpu = kvferry.plan_gather_pa_kv_cache(*arrays().values())
    with pytest.raises(ValueError, match="the context is of device cuda:0, expected cpu:0 as planned"):
        on_cpu.run(*arrays().values(), context=kvferry.Context(device="cuda:0"))
    assert not launches()


def test_pinned_memory_alone_is_memory() -> None:
    tensors = on_device(device_type=CUDA_HOST)
    gather(tensors)
    assert np.array_equal(tensors["key"].array, np.ones((4, HEADS, DIM), np.float16))
    assert not log()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["NumPy", "torch"])
def test_memory_of_the_host_beside_a_device(name: str, kind: str, torch_state: type[Torch]) -> None:
    tensors = of_torch()
    tensors[name] = arrays()[name] if kind == "NumPy" else Tensor(arrays()[name])
    message = f"gather_pa_kv_cache: {name}: lives on device cpu:0, expected the context's cuda:0"
    with pytest.raises(ValueError, match=message):
        gather(tensors)


def test_tensors_and_contexts_of_other_devices(torch_state: type[Torch]) -> None:
    tensors = of_torch()
    tensors["value"] = Tensor(arrays()["value"], device_type=producer.CUDA, device_id=1)
    with pytest.raises(ValueError, match="value: lives on device cuda:1, expected the context's cuda:0"):
        gather(tensors)
    with pytest.raises(ValueError, match="key_cache: lives on device cuda:0, expected the context's cuda:1"):
        gather(of_torch(), context=kvferry.Context(device="cuda:1"))
    with pytest.raises(ValueError, match="key_cache: lives on device cuda:0, expected the context's cpu:0"):
        gather(of_torch(), context=kvferry.Context())
    with pytest.raises(RuntimeError, match="key_cache: lives on device cuda:2: .*device 2 of 2"):
        gather(of_torch(device_id=2))
    assert not launches()


def test_what_a_device_does_not_do(torch_state: type[Torch]) -> None:
    with pytest.raises(NotImplementedError, match="kReject"):
        gather(of_torch(), index_policy="reject")


def test_error_records(torch_state: type[Torch]) -> None:
    tensors = of_torch()
    with pytest.raises(ValueError, match=r"error_record: is a kvferry\.ErrorRecord.*on cuda:0"):
        gather(tensors, index_policy="report", error_record=kvferry.ErrorRecord())
    for array in (np.zeros(40, np.uint8), np.zeros(5, np.int64)):
        gather(tensors, index_policy="report", error_record=Tensor(array, device_type=producer.CUDA))
        assert launches() == {"0 0x0"}
    for array in (np.zeros(41, np.uint8)[1:], np.zeros(41, np.uint8), np.zeros((5, 1), np.int64)):
        with pytest.raises(ValueError, match="error_record: .*expected uint8"):
            gather(tensors, index_policy="report", error_record=Tensor(array, device_type=producer.CUDA))
    with pytest.raises(ValueError, match="error_record: lives on device cpu:0, expected cuda:0"):
        gather(tensors, index_policy="report", error_record=Tensor(np.zeros(5, np.int64)))
    with pytest.raises(TypeError, match="error_record: dict"):
        gather(tensors, index_policy="report", error_record={})
    assert not launches()


def test_contexts_are_kept_by_device_and_stream(torch_state: type[Torch]) -> None:
    streams = [0x100000 + 16 * i for i in range(100)]
    for Torch.stream in streams:
        for _ in range(2):
            gather(of_torch())
    lines = log()
    assert [line.split()[2] for line in lines if line.startswith("open")] == [hex(s) for s in streams]
    assert 30 <= len([line for line in lines if line.startswith("close")]) < 100
    gather(of_torch())
    assert not any(line.startswith("open") for line in log())


def test_threads(torch_state: type[Torch]) -> None:
    def work(device: int) -> None:
        context = kvferry.Context(device=f"cuda:{device}", stream=0x40)
        for _ in range(50):
            gather(on_device(device_id=device))
            gather(on_device(device_id=device), context=context)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert launches() == {f"{device} {stream}" for device in (0, 1) for stream in ("0x0", "0x40")}


class _Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0x10


class _Property:
    __cuda_stream__ = (0, 0x20)


class _OfTorch:
    cuda_stream = 0x30


class _OfCuPy:
    ptr = 0x40


@pytest.mark.parametrize(
    ("make", "address"), [(_Protocol, 0x10), (_Property, 0x20), (_OfTorch, 0x30), (_OfCuPy, 0x40)]
)
def test_streams_as_libraries_have_them(make: Callable[[], Any], address: int) -> None:
    stream = make()
    context = kvferry.Context(device="cuda:1", stream=stream)
    assert (context.device, context.cuda_stream, context.stream) == ("cuda:1", address, None)
    gather(on_device(device_id=1), context=context)
    assert launches() == {f"1 {address:#x}"}


@pytest.mark.parametrize("given", [{}, {"staging_bytes": 4096}, {"staging_bytes": -1}])
def test_staging_as_the_context_says(given: dict[str, int]) -> None:
    context = kvferry.Context(device="cuda:1", **given)
    pool = np.zeros((8, 16), np.uint8)
    kvferry.swap_blocks(
        [OnDevice(pool, device_type=CUDA_HOST, device_id=1)],
        [OnDevice(pool.copy(), device_id=1)],
        np.array([[1, 2], [2, 5]], np.int64),
        context=context,
    )
    assert f"staging 1 0x0 {given.get('staging_bytes', 0)}" in log()


def test_records_of_a_plan_and_of_bytes() -> None:
    tensors = on_device()
    plan = kvferry.plan_gather_pa_kv_cache(*(tensors[name] for name in NAMES), index_policy="report")
    assert all(tensor.exported == tensor.deleted for tensor in tensors.values())
    record = OnDevice(np.zeros(5, np.int64))
    plan.run(*(tensors[name] for name in NAMES), error_record=record)
    assert launches() == {"0 0x0"} and record.streams == [1]
    read = kvferry.ErrorRecord.from_bytes(struct.pack("<QqqqII", 2, 0, 1, 7, 3, 1))
    assert (read.bad, read.batch, read.column, read.id, read.which, read.op) == (
        2,
        0,
        1,
        7,
        kvferry.BAD_KEY | kvferry.BAD_VALUE,
        "gather_pa_kv_cache",
    )
