# SPDX-License-Identifier: Apache-2.0
"""Many threads, forks, and the life of what a stream still needs."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import kvferry


def gather(seed: int, blocks: int = 40, head: int = 64) -> tuple[list[Any], tuple[Any, Any]]:
    """Arguments of a gather and what it gives."""
    rng = np.random.default_rng(seed)
    key_cache, value_cache = rng.integers(0, 256, (2, blocks, 8, 2, head), np.uint8)
    table = rng.permutation(blocks).reshape(2, -1).astype(np.int32)
    lens = np.array([table.shape[1] * 8, table.shape[1] * 8 - 3], np.int32)
    rows = int(lens.sum())
    expected = []
    for cache in (key_cache, value_cache):
        whole = cache[table].reshape(2, -1, 2, head)
        expected.append(np.concatenate([whole[b, : lens[b]] for b in range(2)]))
    key, value = np.zeros((2, rows, 2, head), np.uint8)
    return [key_cache, value_cache, table, lens, key, value], (expected[0], expected[1])


def right(arguments: list[Any], expected: tuple[Any, Any]) -> bool:
    return np.array_equal(arguments[4], expected[0]) and np.array_equal(arguments[5], expected[1])


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("shared", ["default", "context"])
def test_many_threads(planned: bool, shared: str) -> None:
    context = None if shared == "default" else kvferry.Context(threads=3)
    plan = kvferry.plan_gather_pa_kv_cache(*gather(0)[0], context=context)
    start = threading.Barrier(8)

    def work(seed: int) -> bool:
        start.wait()
        for i in range(12):
            arguments, expected = gather(seed * 100 + i)
            if planned:
                plan.run(*arguments, context=context)
            else:
                kvferry.gather_pa_kv_cache(*arguments, context=context)
            if not right(arguments, expected):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_errors_of_one_thread_stay_there() -> None:
    start = threading.Barrier(6)

    def work(seed: int) -> bool:
        start.wait()
        for i in range(20):
            arguments, expected = gather(seed + i, blocks=8)
            if seed % 2:
                arguments[2][0, 0] = 1000 + seed
                with pytest.raises(IndexError, match=str(1000 + seed)):
                    kvferry.gather_pa_kv_cache(*arguments, index_policy="reject")
            else:
                kvferry.gather_pa_kv_cache(*arguments, index_policy="reject")
                if not right(arguments, expected):
                    return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


def counted_during(prepare: Callable[[], None], call: Callable[[], None]) -> int:
    """How far a second Python thread counts while `call` runs.

    A thread that waits for the GIL makes the holder hand it over after the switch interval. That is endless
    here, so every count comes from a GIL that `call` let go, however slow the machine. One call may end
    before the other thread woke up, hence a few.
    """
    counts, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counts[0] += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    counter = threading.Thread(target=count)
    counter.start()
    try:
        sys.setswitchinterval(1000)
        for _ in range(50):
            prepare()
            before = counts[0]
            call()
            if counts[0] > before:
                break
        return counts[0] - before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        counter.join()


@pytest.mark.parametrize("planned", [False, True])
def test_calls_release_the_gil(planned: bool) -> None:
    source, target = np.ones(64 << 20, np.uint8), np.zeros(64 << 20, np.uint8)
    table = np.array([[source.ctypes.data, target.ctypes.data]])
    context = kvferry.Context(threads=1)
    plan = kvferry.plan_group_memcpy(table, source.size, context=context)
    call = (
        (lambda: plan.run(table, context=context))
        if planned
        else (lambda: kvferry.group_memcpy(table, source.size, context=context))
    )
    assert counted_during(lambda: None, call) > 0
    assert target.all()


def test_wait_releases_the_gil() -> None:
    stream = kvferry.Stream()
    context = kvferry.Context(stream=stream, threads=1)
    source, target = np.ones(64 << 20, np.uint8), np.zeros(64 << 20, np.uint8)
    table = np.array([[source.ctypes.data, target.ctypes.data]])
    enqueue = lambda: kvferry.group_memcpy(table, source.size, context=context)  # noqa: E731
    assert counted_during(enqueue, stream.wait) > 0
    assert target.all()


ENDS = """
import threading, time
import numpy as np, kvferry

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(1)

slow = Slow()  # dies when the interpreter is ending already
source, target = np.ones((2, 1, 16 << 20), np.uint8)
stream = kvferry.Stream() if {streams} else None
context = kvferry.Context(threads=1, stream=stream)
started = threading.Event()

def work(swap=kvferry.swap_blocks, pairs=np.array([[0, 0]]), source=source, target=target, started=started,
         stream=stream, context=context):
    while True:
        swap([source], [target], pairs, context=context)
        if stream is not None:
            stream.wait()
        started.set()

threading.Thread(target=work, daemon=True).start()
started.wait()
"""


@pytest.mark.parametrize("streams", [False, True])
def test_the_interpreter_ends_during_a_call(streams: bool) -> None:
    script = ENDS.format(streams=streams)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------------------------------------------- streams


class Array(np.ndarray[Any, Any]):
    """NumPy arrays have no weak references of their own that survive views; subclasses do."""


def owned(array: Any) -> Any:
    return array.view(Array)


@pytest.mark.parametrize("planned", [False, True])
def test_a_stream_keeps_tensors_and_workspace(planned: bool) -> None:
    """All references are dropped before wait(); the memory is there until then and not longer."""
    for policy in ("default", "report"):
        stream = kvferry.Stream()
        context = kvferry.Context(stream=stream)
        busy, free = np.ones(32 << 20, np.uint8), np.zeros(32 << 20, np.uint8)
        kvferry.group_memcpy(np.array([[busy.ctypes.data, free.ctypes.data]]), busy.size, context=context)
        arguments, expected = gather(11)
        results = arguments[4:]
        arguments = [owned(a) for a in arguments]
        refs = [weakref.ref(a) for a in arguments]
        record = kvferry.ErrorRecord() if policy == "report" else None
        if planned:
            plan = kvferry.plan_gather_pa_kv_cache(*arguments, index_policy=policy, context=context)
            plan.run(*arguments, error_record=record, context=context)
            del plan
        else:
            kvferry.gather_pa_kv_cache(*arguments, index_policy=policy, error_record=record, context=context)
        del arguments, record, context
        gc.collect()
        assert all(ref() is not None for ref in refs)
        filler = [
            np.full(1 << 16, 255, np.uint8) for _ in range(100)
        ]  # takes memory that was freed too early
        stream.wait()
        del filler
        gc.collect()
        assert [ref() for ref in refs] == [None] * len(refs)
        assert np.array_equal(results[0], expected[0]) and np.array_equal(results[1], expected[1])


def test_a_stream_keeps_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    stream = kvferry.Stream()
    context = kvferry.Context(stream=stream)
    busy, free = np.ones(32 << 20, np.uint8), np.zeros(32 << 20, np.uint8)
    kvferry.group_memcpy(np.array([[busy.ctypes.data, free.ctypes.data]]), busy.size, context=context)
    arguments, expected = gather(12)
    results = torch.from_numpy(arguments[4]), torch.from_numpy(arguments[5])
    tensors = [torch.from_numpy(a.copy()) for a in arguments[:4]]
    kvferry.gather_pa_kv_cache(*tensors, *results, context=context)
    del tensors, arguments
    gc.collect()
    filler = [torch.full((1 << 16,), 255, dtype=torch.uint8) for _ in range(100)]
    stream.wait()
    del filler
    assert np.array_equal(results[0].numpy(), expected[0]) and np.array_equal(results[1].numpy(), expected[1])


def test_a_stream_runs_in_order_and_says_errors_once() -> None:
    stream = kvferry.Stream()
    context = kvferry.Context(stream=stream)
    caches = [np.arange(6, dtype=np.uint8).reshape(6, 1)]
    for s, d in ((0, 1), (1, 2), (2, 3)):
        kvferry.copy_blocks(caches, np.array([[s, d]]), context=context)
    kvferry.copy_blocks(caches, np.array([[4, 9]]), index_policy="reject", context=context)
    kvferry.copy_blocks(caches, np.array([[4, 10]]), index_policy="reject", context=context)
    kvferry.copy_blocks(caches, np.array([[3, 4]]), context=context)
    with pytest.raises(IndexError, match="copy_blocks: mapping.*9"):
        stream.wait()
    assert caches[0].ravel().tolist() == [0, 0, 0, 0, 0, 5]
    stream.wait()
    with pytest.raises(ValueError, match="copy_blocks"):  # what plan() refuses is said at once
        kvferry.copy_blocks([np.zeros((2, 2), np.float64)], np.array([[0, 1]]), context=context)
    stream.wait()


def test_a_stream_outlives_its_python_object() -> None:
    """The context keeps it; dropping both waits for the work."""
    arguments, expected = gather(13)
    context = kvferry.Context(stream=kvferry.Stream())
    gc.collect()
    for _ in range(3):
        kvferry.gather_pa_kv_cache(*arguments, context=context)
    del context
    gc.collect()
    assert right(arguments, expected)


def test_error_records_live_until_wait() -> None:
    stream = kvferry.Stream()
    record = kvferry.ErrorRecord()
    cache = np.zeros((2, 2), np.uint8)
    mapping = np.array([[0, 5]])
    kvferry.copy_blocks(
        [cache], mapping, index_policy="report", error_record=record, context=kvferry.Context(stream=stream)
    )
    stream.wait()
    assert record.bad == 1 and record.id == 5


# ------------------------------------------------------------------------------------------------------ forks


def in_child(work: Callable[[], None]) -> None:
    """Runs it after os.fork(); an exception or a hang of the child fails the test."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    for _ in range(600):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    pytest.fail("the child hangs")


pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*")


def large(context: Any, seed: int = 3) -> None:
    """Large enough for helper threads."""
    arguments, expected = gather(seed, blocks=400, head=256)
    kvferry.gather_pa_kv_cache(*arguments, context=context)
    assert right(arguments, expected)


def test_fork_after_threads() -> None:
    context = kvferry.Context(threads=3)
    large(context)
    large(None)

    def child() -> None:
        large(context, 4)
        large(None, 5)
        large(kvferry.Context(threads=2), 6)

    in_child(child)
    large(context, 7)


def test_fork_while_other_threads_call() -> None:
    context = kvferry.Context(threads=2)
    stop = threading.Event()
    failures: list[BaseException] = []

    def busy(seed: int) -> None:
        try:
            while not stop.is_set():
                large(context if seed % 2 else None, seed)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    workers = [threading.Thread(target=busy, args=(seed,)) for seed in range(3)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(3):
            in_child(lambda: (large(context, 9), large(None, 9))[0])
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert not failures


def test_streams_stay_with_the_parent() -> None:
    stream = kvferry.Stream()
    context = kvferry.Context(stream=stream)
    arguments, expected = gather(1)
    kvferry.gather_pa_kv_cache(*arguments, context=context)

    def child() -> None:
        with pytest.raises(RuntimeError, match="fork"):
            stream.wait()
        other, _ = gather(2)
        with pytest.raises(RuntimeError, match="fork"):
            kvferry.gather_pa_kv_cache(*other, context=context)
        assert not other[4].any()
        mine = kvferry.Stream()
        kvferry.gather_pa_kv_cache(*other, context=kvferry.Context(stream=mine))
        mine.wait()
        assert other[4].any()

    in_child(child)
    stream.wait()
    assert right(arguments, expected)


def child_process(seed: int) -> bool:
    large(None, seed)
    return True


def test_multiprocessing_fork() -> None:
    large(None)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(child_process, range(4)) == [True] * 4
