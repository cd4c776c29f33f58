# SPDX-License-Identifier: Apache-2.0
"""The functional forms for JAX arrays on a GPU: JAX is one of the test's, and the operators run on the emulated
device when somebody waits. What JAX takes too early is full of 0xa5."""

from __future__ import annotations

import ctypes
import gc
import pathlib
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import kvferry

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python" / "tests"))

from test_fake_cuda import OnDevice, _log, log

import calls
import producer
from support import EXTENDED, dtype_of
from test_frameworks import map_arrays
from test_functional import RESULTS, call

DeviceMemory = kvferry._core.DeviceMemory
DEFAULT_STREAM, JAX_STREAM = 1, 0xE0
OPS = [op for op in RESULTS if op in calls.OUTPUTS]

_library = ctypes.CDLL(kvferry._core.__file__)
_execute = _library.kvferry_fake_cuda_execute
_execute.argtypes, _execute.restype = [ctypes.c_bool], None
_lend, _take_back = _library.kvferry_fake_cuda_lend, _library.kvferry_fake_cuda_take_back
_lend.argtypes, _lend.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
_take_back.argtypes, _take_back.restype = [ctypes.c_void_p], None
_name_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_TAKEN = b"used_dltensor"
_CODES = {
    "bfloat16": producer.BFLOAT,
    "float8_e4m3fn": producer.FLOAT8_E4M3FN,
    "float8_e5m2": producer.FLOAT8_E5M2,
}


class Jax:
    """Its state: what happened in order, with a line "take" for each array that it took; why it takes none."""

    events: list[str] = []
    fails = False


class Array(OnDevice):
    """Of JAX, on a GPU: gives its memory when somebody has waited for it."""

    def __init__(self, array: Any, **fields: Any) -> None:
        code = _CODES.get(array.dtype.name)
        super().__init__(array, versioned=False, **({} if code is None else {"code": code}), **fields)
        self.shape, self.dtype = array.shape, array.dtype
        self.device = types.SimpleNamespace(platform=fields.get("platform", "gpu"))
        self.sharding = object()
        self.waited = False
        if array.nbytes and fields.get("lent", True):
            weakref.finalize(self, _take_back, _lend(array.ctypes.data, array.nbytes))

    def devices(self) -> list[Any]:
        return [self.device] * self.fields.get("shards", 1)

    def block_until_ready(self) -> Array:
        self.waited = True
        return self

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.fields.get("shards", 1) > 1:
            raise BufferError("__dlpack__ only supported for unsharded arrays.")
        return super().__dlpack_device__()

    def __dlpack__(self, **keywords: Any) -> Any:
        assert self.waited
        return super().__dlpack__(**keywords)


Array.__module__ = "jaxlib._jax"


def take(memory: Any) -> tuple[Any, Callable[[], None], producer.DLTensor]:
    """What JAX does with memory of another library: the array, how to give it back, and what was told."""
    device_type, _ = memory.__dlpack_device__()
    assert device_type == producer.CUDA
    capsule = memory.__dlpack__(stream=JAX_STREAM)
    Jax.events += [*log(), "take"]
    if Jax.fails:
        raise RuntimeError("not taken")
    address = _pointer(capsule, b"dltensor")
    _name_capsule(capsule, _TAKEN)
    managed = producer.Managed.from_address(address)
    tensor = managed.tensor
    assert tensor.data % 64 == 0 and tensor.byte_offset == 0 and tensor.lanes == 1
    shape = tuple(tensor.shape[: tensor.ndim])
    size = int(np.prod(shape)) * tensor.bits // 8
    dense = [int(np.prod(shape[axis + 1 :])) for axis in range(tensor.ndim)]
    assert tensor.strides[: tensor.ndim] == dense
    raw = np.frombuffer((ctypes.c_uint8 * size).from_address(tensor.data), np.uint8)
    # From a thread of JAX's, say: a function of ctypes is called without the GIL.
    return raw, lambda: managed.deleter(address), tensor


def from_dlpack(memory: Any) -> Any:
    raw, give_back, tensor = take(memory)
    names = {(producer.FLOAT, 16): "float16", (producer.FLOAT, 32): "float32", (producer.INT, 8): "int8"}
    names |= {(producer.INT, 32): "int32", (producer.UINT, 8): "uint8"}
    names |= {(code, 16 if name == "bfloat16" else 8): name for name, code in _CODES.items()}
    shape = tuple(tensor.shape[: tensor.ndim])
    array = Array(raw.view(dtype_of(names[tensor.code, tensor.bits])).reshape(shape), lent=False)
    array.fields["device_id"] = tensor.device_id
    array.when_taken = raw.copy()
    weakref.finalize(array, give_back)
    return array


def device_put(array: Any, sharding: Any, *, may_alias: bool) -> Any:
    assert may_alias
    array.sharding = sharding
    return array


@pytest.fixture(autouse=True)
def jax(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Jax]]:
    library = types.ModuleType("jax")
    library.device_put = device_put  # type: ignore[attr-defined]
    dlpack = types.ModuleType("jax.dlpack")
    dlpack.from_dlpack = from_dlpack  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax", library)
    monkeypatch.setitem(sys.modules, "jax.dlpack", dlpack)
    _log()
    Jax.events, Jax.fails = [], False
    _execute(True)
    yield Jax
    _execute(False)
    gc.collect()
    _log()


def given(op: str, **fields: Any) -> dict[str, Any]:
    """What the form is given, and where the operator in place left other tensors like them."""
    tensors = calls.tensors(op)
    for unused in ("counters", "fetch_counts"):
        tensors.pop(unused, None)
    return map_arrays(tensors, lambda array: Array(array, **fields))


def in_place(op: str) -> dict[str, Any]:
    tensors = calls.tensors(op)
    for unused in ("counters", "fetch_counts"):
        tensors.pop(unused, None)
    getattr(kvferry, op)(**tensors, **calls.OPTIONS.get(op, {}))
    return tensors


def each(results: dict[str, Any]) -> list[Any]:
    return [array for _, array in calls.each_by_name(results)]


def counted(what: str, lines: list[str]) -> int:
    return sum(line.startswith(f"{what} ") for line in lines)


@pytest.mark.parametrize("stream", [None, 0x9900])
@pytest.mark.parametrize("op", OPS)
def test_results_are_those_of_numpy(op: str, stream: int | None) -> None:
    """Each is there when it is taken, of the kind and place of its argument, and freed once: when it is dropped."""
    wanted, arrays = in_place(op), given(op, device_id=1)
    before = [array.array.copy() for array in each(arrays)]
    context = None if stream is None else kvferry.Context(device="cuda:1", stream=stream)
    results = call(op, arrays, **calls.OPTIONS.get(op, {}), context=context)
    made = 0
    for name, result in results.items():
        like = arrays.get(name, next(iter(arrays.values())))
        several = isinstance(result, list)
        triples = zip(result, wanted[name], like, strict=True) if several else [(result, wanted[name], like)]
        for array, expected, source in triples:
            made += 1
            assert array.dtype == expected.dtype and array.shape == expected.shape, name
            assert array.when_taken.tobytes() == array.array.tobytes() == expected.tobytes(), name
            assert array.__dlpack_device__() == (producer.CUDA, 1)
            if name in arrays and name not in ("key", "value", "out", "chunk", "selection_kv_actual_seq"):
                assert array.sharding is source.sharding
    assert all((a.array == b).all() for a, b in zip(each(arrays), before, strict=True))
    # JAX is not asked to wait for a stream: its arrays were waited for, and are read on this one.
    read = [array for array in each(arrays) if array.exported]
    assert read and all(s == (stream or DEFAULT_STREAM) for array in read for s in array.streams)
    place = f"1 {stream or 0:#x}"
    events = Jax.events
    launched = [i for i, line in enumerate(events) if line.startswith(("launch ", "copies "))]
    assert launched and all(events[i].split(" ", 1)[1].startswith(place) for i in launched)
    assert events.count("take") == counted("memory", events) == made
    assert launched[-1] < events.index(f"wait {place}") < events.index("take")
    assert counted("free", events + log()) == 0
    del results, result, array, triples
    gc.collect()
    assert sorted(log()) == sorted("free" + line[len("memory") :] for line in events if "memory" in line)


def test_the_default_context_is_kept() -> None:
    for _ in range(3):
        call("copy_blocks", given("copy_blocks"))
    assert counted("open", Jax.events) <= 1


@pytest.mark.parametrize("dtype", ["float16", *EXTENDED])
def test_every_bit_pattern_survives(dtype: str) -> None:
    raw = np.arange(2**16, dtype=np.uint16).view(np.uint8)
    array = Array(raw.view(dtype_of(dtype)).reshape(2, -1))
    (result,) = kvferry.copy_blocks_functional([array], np.array([[0, 1]]))
    assert result.dtype == array.dtype
    assert result.array.tobytes() == 2 * raw[: raw.size // 2].tobytes()


def test_no_rows_and_rows_that_no_sequence_reaches() -> None:
    arrays = given("gather_pa_kv_cache")
    del arrays["key"], arrays["value"]
    key, value = kvferry.gather_pa_kv_cache_functional(**arrays, num_tokens=9)
    assert key.array[:5].all() and not key.array[5:].any() and not value.array[5:].any()
    arrays["seq_lens"] = Array(np.zeros(2, np.int32))
    key, value = kvferry.gather_pa_kv_cache_functional(**arrays, num_tokens=0)
    assert key.shape == (0, 3, 8) and value.shape == (0, 1, 16)


def test_arrays_beside_those_of_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their stream is not followed: the memory is made and written on one stream, the context's."""
    from kvferry import _cuda_streams

    monkeypatch.setattr(_cuda_streams, "cupy_stream", lambda device: 0x3300)
    ndarray = type("ndarray", (OnDevice,), {"__module__": "cupy"})
    wanted, arrays = in_place("swap_blocks"), given("swap_blocks")
    arrays["src"] = [ndarray(array.array) for array in arrays["src"]]
    lent = [_lend(array.array.ctypes.data, array.array.nbytes) for array in arrays["src"]]
    results = kvferry.swap_blocks_functional(**arrays)
    assert [r.when_taken.tobytes() for r in results] == [w.tobytes() for w in wanted["dst"]]
    assert all(array.streams == [DEFAULT_STREAM] for array in arrays["src"])
    for one in lent:
        _take_back(one)


def refused(error: type[Exception], message: str, call: Callable[[], Any]) -> list[str]:
    """All that was made is freed, which waits for the device and so is done without the GIL. What happened."""
    with pytest.raises(error, match=message):
        call()
    gc.collect()
    lines = Jax.events + log()
    Jax.events = []
    assert counted("memory", lines) == counted("free", lines)
    assert not any("GIL" in line for line in lines)
    return lines


def test_what_fails_is_freed(jax: type[Jax]) -> None:
    form = kvferry.scatter_pa_kv_cache_functional
    arrays = given("scatter_pa_kv_cache")
    refused(NotImplementedError, "kReject", lambda: form(**arrays, index_policy="reject"))
    wrong = arrays | {"slot_mapping": Array(np.zeros((3, 2), np.int32))}
    refused(ValueError, "slot_mapping", lambda: form(**wrong))
    jax.fails = True
    assert refused(RuntimeError, "not taken", lambda: form(**arrays)).count("take") == 1
    jax.fails = False
    arrays["value_cache"] = Array(arrays["value_cache"].array.copy(), lent=False)
    refused(RuntimeError, "scatter_pa_kv_cache_functional: key_cache: a copy outside", lambda: form(**arrays))
    arrays["value_cache"] = Array(np.zeros((1 << 19, 2, 1, 5), np.int8))
    message = "scatter_pa_kv_cache_functional: value_cache: too much"
    refused(MemoryError, message, lambda: form(**arrays))


def test_what_is_refused() -> None:
    mapping = np.array([[0, 1]])

    def copy(array: Any, **keywords: Any) -> Callable[[], Any]:
        return lambda: kvferry.copy_blocks_functional([array], mapping, **keywords)

    data = np.zeros((2, 3, 5), np.float16)
    where = r"copy_blocks_functional: caches\[0\]: "
    kind = where + "a JAX array on .* of one CUDA device"
    elsewhere = where + "lives on device cuda:1, expected the context's "
    layout = where + r"is float16 \[2, 5, 3\] strides .*expected a dense row-major layout"
    on_cpu, on_first = kvferry.Context(), kvferry.Context(device="cuda:0")
    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (NotImplementedError, kind, copy(Array(data, shards=2))),
        (NotImplementedError, kind, copy(Array(data, device_type=3))),
        (NotImplementedError, kind, copy(Array(data, device_type=10))),
        (ValueError, elsewhere + "cpu:0", copy(Array(data, device_id=1), context=on_cpu)),
        (ValueError, elsewhere + "cuda:0", copy(Array(data, device_id=1), context=on_first)),
        (RuntimeError, where + ".*device 2 of 2", copy(Array(data, device_id=2))),
        (ValueError, layout, copy(Array(data.transpose(0, 2, 1)))),
        (ValueError, r"copy_blocks: caches\[0\]: dtype is float64", copy(Array(data.astype(np.float64)))),
    ]
    for error, message, case in cases:
        lines = refused(error, message, case)
        assert not any(line.startswith(("memory", "take", "launch", "copies")) for line in lines), message


def test_memory_that_cannot_be() -> None:
    context = kvferry.Context(device="cuda:0")

    def zeros(shape: list[int], dtype: str = "int32") -> Callable[[], Any]:
        return lambda: DeviceMemory.zeros("op", "out", context, shape, dtype)

    refused(ValueError, "op: out: dtype is complex64, expected one of float16", zeros([1], "complex64"))
    refused(ValueError, "op: out: 9 dimensions, expected at most 8", zeros([1] * 9))
    for shape in ([-1], [2**62, 4], [2**31, 2**31]):
        refused(ValueError, "op: out: is to be int32 .*expected what memory can hold", zeros(shape))
    refused(MemoryError, "op: out: too much", zeros([1 << 30]))
    on_cpu = kvferry.Context()
    message = "op: out: device_memory: the context's device is the CPU, expected a CUDA device"
    refused(ValueError, message, lambda: DeviceMemory.zeros("op", "out", on_cpu, [1], "int8"))


@pytest.mark.parametrize(
    ("own", "consumer", "waits"),
    [
        (0, None, True),
        (0, 1, False),
        (0, 2, True),
        (0, 0x40, True),
        (0, -1, False),
        (0x40, 0x40, False),
        (0x40, 1, True),
        (0x40, None, True),
        (2, 2, False),
    ],
)
def test_who_waits(own: int, consumer: int | None, waits: bool) -> None:
    """One that goes on on the stream that the memory is written on has nothing to wait for."""
    memory = DeviceMemory.zeros("op", "out", kvferry.Context(device="cuda:0", stream=own), [3], "int8")
    log()
    memory.__dlpack__(stream=consumer, max_version=(1, 0))
    assert log() == ([f"wait 0 {own:#x}"] if waits else [])


def test_the_protocol() -> None:
    context = kvferry.Context(device="cuda:1")
    memory = DeviceMemory.zeros("op", "out", context, [2, 3], "bfloat16")
    assert memory.__dlpack_device__() == (producer.CUDA, 1)
    for keywords in ({"copy": True}, {"dl_device": (1, 0)}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError, match="op: out: "):
            memory.__dlpack__(**keywords)
    for version, name in ((None, b"dltensor"), ((0, 8), b"dltensor"), ((1, 1), b"dltensor_versioned")):
        capsule = memory.__dlpack__(max_version=version, copy=False, dl_device=(2, 1))
        struct = producer.ManagedVersioned if name != b"dltensor" else producer.Managed
        managed = struct.from_address(_pointer(capsule, name))
        tensor = managed.tensor
        assert (tensor.device_type, tensor.device_id) == (producer.CUDA, 1)
        assert (tensor.code, tensor.bits, tensor.lanes) == (producer.BFLOAT, 16, 1)
        assert (tensor.shape[:2], tensor.strides[:2]) == ([2, 3], [3, 1])
        if struct is producer.ManagedVersioned:
            assert (managed.major, managed.minor, managed.flags) == (1, 0, 0)
    # Every capsule holds the memory, taken or not.
    first, give_back, _ = take(memory)
    log()
    del memory
    assert not log() and not first.any()
    del capsule
    gc.collect()
    assert not log()
    give_back()
    assert log() == ["free 1 0x0 12"]


def test_real_jax_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none with a GPU here: the one for CPUs takes the same capsule, told to be on the CPU."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "jax"]:
        monkeypatch.delitem(sys.modules, name)
    real = pytest.importorskip("jax")
    pytest.importorskip("jax.dlpack")
    context = kvferry.Context(device="cuda:0")

    class OnCpu:
        def __init__(self, memory: Any) -> None:
            self.memory = memory

        def __dlpack_device__(self) -> tuple[int, int]:
            return producer.CPU, 0

        def __dlpack__(self, **keywords: Any) -> Any:
            capsule = self.memory.__dlpack__(**keywords)
            tensor = producer.Managed.from_address(_pointer(capsule, b"dltensor")).tensor
            tensor.device_type, self.data = producer.CPU, tensor.data
            return capsule

    names = ["float16", "float32", "int8", "uint8", "int16", "uint16", "int32", "uint32", *EXTENDED]
    for dtype in names:
        for shape in ([2, 3, 4], [1, 1], [5], []):
            given = OnCpu(DeviceMemory.zeros("op", "out", context, shape, dtype))
            array = real.dlpack.from_dlpack(given)
            assert array.unsafe_buffer_pointer() == given.data
            assert array.dtype.name == dtype and array.shape == tuple(shape)
            assert not np.asarray(array).view(np.uint8).any() if shape else True
            del given
            _log()
            del array
            gc.collect()
            assert counted("free", log()) == 1, dtype
    empty = real.dlpack.from_dlpack(OnCpu(DeviceMemory.zeros("op", "out", context, [0, 3], "int8")))
    assert empty.shape == (0, 3)
