# SPDX-License-Identifier: Apache-2.0
"""DLPack's traps, one at a time. swap_blocks copies block 0 of src to block 1 of dst; each may be a trap."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import kvferry
import producer
from producer import Producer

PAIRS = np.array([[0, 1]])


def swap(src: Any, dst: Any, **options: Any) -> None:
    kvferry.swap_blocks([src], [dst], PAIRS, **options)


def sample(dtype: str = "uint8") -> tuple[Any, Any]:
    return np.arange(1, 13).astype(dtype).reshape(3, 4), np.zeros((3, 4), dtype)


def taken_once(p: Producer) -> None:
    """There was a capsule, and each one's deleter was called once."""
    assert p.exported > 0 and p.deleted == p.exported


def refused(error: type[Exception] | tuple[type[Exception], ...], *words: str, **fields: Any) -> None:
    """As src and as dst: the text has operator, tensor and `words`; no byte is written, no deleter lost."""
    for role in ("src", "dst"):
        src, dst = sample()
        before = dst.copy()
        p = Producer(src if role == "src" else dst, **fields)
        with pytest.raises(error) as caught:
            swap(p if role == "src" else src, p if role == "dst" else dst)
        text = str(caught.value)
        assert all(word in text for word in ("swap_blocks", role, *words)), text
        assert (dst == before).all()
        assert p.deleted == p.exported


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("takes_max_version", [True, False])
def test_both_capsules_and_both_calls(versioned: bool, takes_max_version: bool) -> None:
    src, dst = sample()
    a = Producer(src, versioned=versioned, takes_max_version=takes_max_version)
    b = Producer(dst, versioned=versioned, takes_max_version=takes_max_version)
    swap(a, b)
    assert dst.tolist() == [[0] * 4, [1, 2, 3, 4], [0] * 4]
    taken_once(a)
    taken_once(b)


def test_null_strides_are_row_major() -> None:
    src, dst = sample("int32")
    swap(Producer(src, strides=None), Producer(dst, strides=None))
    assert dst[1].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("offset", [4, 3, 64])
def test_byte_offset(offset: int) -> None:
    """Any number of bytes: no multiple of the element either."""
    raw = np.arange(200, dtype=np.uint8)
    memory = np.zeros(200, np.uint8)
    shape = {"shape": (3, 4), "strides": (4, 1), "byte_offset": offset, "code": producer.INT, "bits": 32}
    swap(Producer(raw, **shape), Producer(memory, **shape))
    assert memory[offset + 16 : offset + 32].tolist() == raw[offset : offset + 16].tolist()
    assert not memory[: offset + 16].any() and not memory[offset + 32 :].any()


def test_negative_strides() -> None:
    src, dst = sample("int16")
    swap(Producer(src[::-1, ::-1]), Producer(dst[:, ::-1]))
    assert dst[1].tolist() == [9, 10, 11, 12]


def test_stride_0_of_an_input() -> None:
    src, dst = sample("int16")
    swap(Producer(src, strides=(4, 0)), dst)
    assert dst[1].tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="swap_blocks: dst.*one address"):
        swap(src, Producer(dst, strides=(4, 0)))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_zero_size_with_null_data(shape: tuple[int, int]) -> None:
    src, dst = Producer(np.zeros(shape, np.uint8), data=0), Producer(np.zeros((3, shape[1]), np.uint8))
    if shape[1] == 0:
        dst.fields["data"] = 0
    swap(src, dst)
    taken_once(src)
    taken_once(dst)


def test_null_data_with_elements() -> None:
    refused(ValueError, "null", data=0)


def test_the_read_only_flag() -> None:
    src, dst = sample()
    swap(Producer(src, flags=producer.READ_ONLY), dst)
    assert dst[1].tolist() == [1, 2, 3, 4]
    before = dst.copy()
    p = Producer(dst, flags=producer.READ_ONLY)
    with pytest.raises(ValueError, match="swap_blocks: dst.*read-only"):
        swap(src, p)
    taken_once(p)
    assert (dst == before).all()


def test_versions() -> None:
    src, dst = sample()
    swap(Producer(src, version=(1, 99)), dst)
    assert dst[1].tolist() == [1, 2, 3, 4]
    refused((ValueError, BufferError, NotImplementedError, RuntimeError), "2.0", version=(2, 0))


def test_a_capsule_that_was_consumed() -> None:
    class Again:
        def __init__(self, exporter: Producer) -> None:
            self.capsule = exporter.__dlpack__(max_version=(1, 0))

        def __dlpack_device__(self) -> tuple[int, int]:
            return producer.CPU, 0

        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule

    for versioned in (True, False):
        src, dst = sample()
        p = Producer(src, versioned=versioned)
        again = Again(p)
        taken = np.from_dlpack(again)  # renames the capsule
        with pytest.raises(ValueError, match=r"swap_blocks: src\[0\].*used_dltensor"):
            swap(again, dst)
        assert not dst.any() and p.deleted == 0
        del taken, again
        taken_once(p)


def test_ranks() -> None:
    src, dst = sample()
    count = Producer(np.array([1], np.int64), shape=(), strides=())
    swap(src, dst, count=count)
    assert dst[1].tolist() == [1, 2, 3, 4]
    taken_once(count)
    swap(np.ones((3,) + (1,) * 7, np.uint8), Producer(np.zeros((3,) + (1,) * 7, np.uint8)))
    refused(ValueError, "9 dimensions", shape=(3,) + (1,) * 8, strides=(4,) * 9)
    refused(ValueError, "rank", shape=(), strides=())
    refused(ValueError, "-1 dimensions", ndim=-1)
    refused(ValueError, f"{2**31 - 1} dimensions", ndim=2**31 - 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"lanes": 2},
        {"lanes": 0},
        {"bits": 4},
        {"bits": 1},
        {"bits": 64, "code": producer.FLOAT},
        {"bits": 8, "code": producer.BOOL},
        {"bits": 64, "code": producer.COMPLEX},
        {"bits": 8, "code": producer.FLOAT8_E4M3},
        {"bits": 4, "code": producer.FLOAT4_E2M1FN},
        {"bits": 4, "lanes": 2, "code": producer.FLOAT4_E2M1FN},
        {"bits": 64, "code": producer.OPAQUE},
        {"bits": 24, "code": producer.INT},
        {"bits": 8, "code": 250},
    ],
    ids=str,
)
def test_element_types_that_no_cache_has(fields: dict[str, int]) -> None:
    refused((ValueError, NotImplementedError, TypeError), "dtype", **fields)


@pytest.mark.parametrize(
    ("dtype", "fields"),
    [
        ("uint16", {"code": producer.BFLOAT, "bits": 16}),
        ("uint16", {"code": producer.FLOAT, "bits": 16}),
        ("uint8", {"code": producer.FLOAT8_E4M3FN, "bits": 8}),
        ("uint8", {"code": producer.FLOAT8_E5M2, "bits": 8}),
        ("uint32", {"code": producer.FLOAT, "bits": 32}),
    ],
)
def test_element_types_that_caches_have(dtype: str, fields: dict[str, int]) -> None:
    src, dst = sample(dtype)
    swap(Producer(src, **fields), Producer(dst, **fields))
    assert dst[1].tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="swap_blocks: dst.*dtype"):
        swap(Producer(src, **fields), dst)


def test_bad_dimensions() -> None:
    refused(ValueError, "dimension 1", "-4", shape=(3, -4))
    refused(ValueError, "2^63", shape=(2**62, 2**62), strides=(2**62, 1))
    refused(ValueError, "2^63", strides=(2**62, 1))


def test_no_deleter() -> None:
    src, dst = sample()
    swap(Producer(src, deleter=False), Producer(dst, versioned=False, deleter=False))
    assert dst[1].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("device", [2, 10, 13])
def test_other_devices(device: int) -> None:
    """RuntimeError with the reason: this build or machine cannot. Nobody follows the pointer."""
    reason = r"swap_blocks: (src|dst)\[0\]: (lives on device cuda:9999: .*cuda|on a device of DLPack type 10)"
    for role in ("src", "dst"):
        src, dst = sample()
        p = Producer(src if role == "src" else dst, device_type=device, device_id=9999, data=4096)
        with pytest.raises(RuntimeError, match=reason):
            swap(p if role == "src" else src, p if role == "dst" else dst)
        assert p.deleted == p.exported and not dst.any()


class Mine(Exception):
    pass


def test_what_a_producer_raises_comes_through() -> None:
    """As the cause of an error with the tensor's name. What was taken before is given back."""

    def fail(self: Any, **_: Any) -> Any:
        raise Mine("out of order")

    src, dst = sample()
    first = Producer(src)
    broken = type("Broken", (Producer,), {"__dlpack__": fail})(dst)
    with pytest.raises(ValueError, match=r"swap_blocks: dst\[0\].*out of order") as caught:
        swap(first, broken)
    assert isinstance(caught.value.__cause__, Mine)
    taken_once(first)
    assert broken.deleted == 0 and not dst.any()


def test_a_type_error_of_the_producer_is_not_an_old_producer() -> None:
    """The second, old call may happen, but what the producer says must come through."""

    class Broken(Producer):
        def __dlpack__(self, **_: Any) -> Any:
            raise TypeError("mine, not the keyword's")

    src, dst = sample()
    with pytest.raises((TypeError, ValueError), match="mine, not the keyword's"):
        swap(Broken(src), dst)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
def test_what_is_no_fault_of_the_tensor_stays_what_it_is(error: type[BaseException]) -> None:
    class Interrupted(Producer):
        def __dlpack__(self, **_: Any) -> Any:
            raise error()

    src, dst = sample()
    with pytest.raises(error):
        swap(Interrupted(src), dst)


@pytest.mark.parametrize("answer", [None, 7, "text", producer.capsule(b"arrow_array"), producer.capsule(b"")])
def test_answers_that_are_no_capsule(answer: Any) -> None:
    class Odd(Producer):
        def __dlpack__(self, **_: Any) -> Any:
            return answer

    src, dst = sample()
    with pytest.raises((TypeError, ValueError, BufferError), match="swap_blocks: src"):
        swap(Odd(src), dst)
    assert not dst.any()


def test_deleters_run_after_errors_of_the_call() -> None:
    src, dst = Producer(sample()[0]), Producer(np.zeros((3, 5), np.uint8))
    pairs = Producer(PAIRS)
    with pytest.raises(ValueError, match="swap_blocks: dst"):
        kvferry.swap_blocks([src], [dst], pairs)
    with pytest.raises(IndexError):
        kvferry.swap_blocks([src], [Producer(sample()[1])], Producer(PAIRS + 9), index_policy="reject")
    for p in (src, dst, pairs):
        taken_once(p)


def test_plans_keep_no_tensor() -> None:
    src, dst = sample()
    a, b = Producer(src), Producer(dst)
    plan = kvferry.plan_swap_blocks([a], [b], PAIRS)
    taken_once(a)
    taken_once(b)
    plan.run([a], [b], PAIRS)
    taken_once(a)
    taken_once(b)
    assert dst[1].tolist() == [1, 2, 3, 4]


def test_an_exchange_api_that_does_not_borrow() -> None:
    class Exchanges(Producer):
        # Major 1, no older table, five functions that are null.
        table = (ctypes.c_uint64 * 7)(1, *[0] * 6)
        __dlpack_c_exchange_api__ = producer.capsule(b"dlpack_exchange_api", ctypes.addressof(table))

    src, dst = sample()
    a, b = Exchanges(src), Exchanges(dst)
    swap(a, b)
    assert dst[1].tolist() == [1, 2, 3, 4]
    taken_once(a)
    taken_once(b)


def test_a_stream_deletes_after_wait() -> None:
    stream = kvferry.Stream()
    src, dst = sample()
    a, b = Producer(src), Producer(dst)
    swap(a, b, context=kvferry.Context(stream=stream))
    assert a.deleted == b.deleted == 0
    stream.wait()
    taken_once(a)
    taken_once(b)
    assert dst[1].tolist() == [1, 2, 3, 4]


def test_nothing_keeps_a_producer() -> None:
    a, b = (Producer(array) for array in sample())
    swap(a, b)
    with pytest.raises(ValueError):
        swap(a, Producer(np.zeros((3, 9), np.uint8)))
    dead = [weakref.ref(a), weakref.ref(b)]
    del a, b
    gc.collect()
    assert [ref() for ref in dead] == [None, None]
