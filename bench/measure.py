# SPDX-License-Identifier: Apache-2.0
"""Problems of the shared object, and how their contenders are timed (docs/performance.md)."""
import ctypes
import json
import os
import platform
import random
import statistics
import time

# An OpenMP worker that spins after its part would take a core from the contender that follows.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import numpy as np

try:
    import torch
except ImportError:
    torch = None


class Native:
    def __init__(self, path):
        lib = ctypes.CDLL(path)
        for name, result, arguments in (
            ("make", ctypes.c_void_p, [ctypes.c_char_p]),
            ("error", ctypes.c_char_p, []),
            ("free", None, [ctypes.c_void_p]),
            ("bytes", ctypes.c_int64, [ctypes.c_void_p]),
            ("rounds", ctypes.c_int64, [ctypes.c_void_p]),
            ("workspace", ctypes.c_int64, [ctypes.c_void_p]),
            ("contenders", ctypes.c_char_p, [ctypes.c_void_p]),
            ("arrays", ctypes.c_char_p, [ctypes.c_void_p]),
            ("verify", ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_int32]),
            ("run", ctypes.c_int64, [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64]),
            ("waited", ctypes.c_int64, []),
        ):
            function = getattr(lib, "kvferry_bench_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


class Contender:
    """run(first, calls) -> nanoseconds."""

    def __init__(self, name, run):
        self.name, self.run = name, run
        self.calls, self.next, self.samples, self.disturbed = 1, 0, [], 0

    def sample(self):
        spent = self.run(self.next, self.calls)
        self.next += self.calls
        return spent / self.calls

    def summary(self):
        quartiles = statistics.quantiles(self.samples, n=4)[::2] if len(self.samples) > 1 else []
        return {
            "us": statistics.median(self.samples) / 1e3,
            "samples": len(self.samples),
            "disturbed": self.disturbed,
            "quartiles_us": [x / 1e3 for x in quartiles],
        }


def python_contender(name, call):
    def run(first, calls):
        start = time.perf_counter_ns()
        for i in range(first, first + calls):
            call(i)
        return time.perf_counter_ns() - start

    return Contender(name, run)


class Problem:
    def __init__(self, native, spec, only=None):
        """only: names of the contenders that are wanted, None for all."""
        self.native, self.spec = native, spec
        self.handle = native.make(spec.encode())
        if not self.handle:
            raise SystemExit(f"{spec}: {native.error().decode()}")
        self.bytes, self.rounds = native.bytes(self.handle), native.rounds(self.handle)
        self.arrays = dict(self.array(line) for line in native.arrays(self.handle).decode().splitlines())
        self.threads = int(dict(item.split("=") for item in spec.partition(":")[2].split(",")).get("threads", 1))
        self.contenders = []
        for i, name in enumerate(native.contenders(self.handle).decode().split()):
            if only and name not in only:
                continue
            wrong = native.verify(self.handle, i).decode()
            if wrong:
                raise SystemExit(f"{spec}: {name}: {wrong}")
            self.contenders.append(
                Contender(name, lambda first, calls, i=i: native.run(self.handle, i, first, calls)))
        if not only:
            self.contenders += self.others()

    def close(self):
        self.native.free(self.handle)

    @staticmethod
    def array(line):
        name, dtype, address, *shape = line.split()
        shape = [int(n) for n in shape]
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if count == 0:
            return name, np.zeros(shape, dtype)
        memory = (ctypes.c_uint8 * count).from_address(int(address))
        return name, np.frombuffer(memory, dtype=dtype).reshape(shape)

    def others(self):
        """NumPy and PyTorch on the same arrays; checked once against what the library left there."""
        kind, a = self.spec.partition(":")[0], self.arrays
        if self.threads != 1:
            return []
        if kind == "gather" and "blocks" in a:
            return self.gathers(a, "nz=1" in self.spec)
        if kind == "scatter" and "nz=1" not in self.spec:
            return self.scatters(a)
        if kind == "selection" and "overlap=0" in self.spec:
            return self.rows(a)
        if kind == "selection_plan":
            return self.plans(a)
        return []

    def gathers(self, a, nz):
        sides = [(a[s + "_pool"], a[s + "_rows"]) for s in "kv" if s + "_pool" in a]
        blocks = a["blocks"]
        count, width = blocks.shape[1], sides[0][0].shape[1]
        row = sides[0][1].shape[1]
        bs = width // row

        def numpy_call(i):
            ids = blocks[i % self.rounds]
            for pool, rows in sides:
                if nz:
                    units = row // 32
                    got = pool.reshape(-1, units, bs, 32)[ids]
                    np.copyto(rows.reshape(count, bs, units, 32), got.transpose(0, 2, 1, 3))
                else:
                    np.take(pool, ids, axis=0, out=rows.reshape(count, width), mode="clip")

        result = [python_contender("numpy", numpy_call)]
        if torch:
            tsides = [(torch.from_numpy(p), torch.from_numpy(r)) for p, r in sides]
            tblocks = torch.from_numpy(blocks)

            def torch_call(i):
                ids = tblocks[i % self.rounds]
                for pool, rows in tsides:
                    if nz:
                        units = row // 32
                        got = pool.view(-1, units, bs, 32).index_select(0, ids)
                        rows.view(count, bs, units, 32).copy_(got.permute(0, 2, 1, 3))
                    else:
                        torch.index_select(pool, 0, ids, out=rows.view(count, width))

            result.append(python_contender("torch", torch_call))
        for contender in result:
            self.native.run(self.handle, 0, 0, 1)
            right = [rows.copy() for _, rows in sides]
            for _, rows in sides:
                rows[:] = 0
            contender.run(0, 1)
            if not all(np.array_equal(x, rows) for x, (_, rows) in zip(right, sides)):
                raise SystemExit(f"{self.spec}: {contender.name}: wrong rows")
        return result

    def scatters(self, a):
        sides = [(a[s + "_source"], a[s + "_pool"]) for s in "kv" if s + "_pool" in a]
        slots, row = a["slots"], sides[0][0].shape[2]
        sides = [(source, pool.reshape(-1, row)) for source, pool in sides]

        def numpy_call(i):
            at = slots[i % self.rounds]
            for source, pool in sides:
                pool[at] = source[i % len(source)]

        result = [python_contender("numpy", numpy_call)]
        if torch:
            tsides = [(torch.from_numpy(s), torch.from_numpy(p)) for s, p in sides]
            tslots = torch.from_numpy(slots)

            def torch_call(i):
                at = tslots[i % self.rounds]
                for source, pool in tsides:
                    pool.index_copy_(0, at, source[i % len(source)])

            result.append(python_contender("torch", torch_call))
        return result

    def rows(self, a):
        sides = [(a[s], a[s + "_out"]) for s in ("kv", "rope") if a[s].size]
        index = a["rows"]

        def numpy_call(i):
            at = index[i % self.rounds]
            for pool, out in sides:
                np.take(pool, at, axis=0, out=out, mode="clip")

        result = [python_contender("numpy", numpy_call)]
        if torch:
            tsides = [(torch.from_numpy(p), torch.from_numpy(o)) for p, o in sides]
            tindex = torch.from_numpy(index)

            def torch_call(i):
                at = tindex[i % self.rounds]
                for pool, out in tsides:
                    torch.index_select(pool, 0, at, out=out)

            result.append(python_contender("torch", torch_call))
        return result

    def plans(self, a):
        topk = a["topk"]
        old = topk[0].copy()

        def numpy_call(i):
            new = topk[i % self.rounds]
            order = np.argsort(old)
            place = np.clip(np.searchsorted(old, new, sorter=order), 0, len(old) - 1)
            hit = old[order[place]] == new
            taken = np.zeros(len(old), bool)
            taken[order[place[hit]]] = True
            old[np.flatnonzero(~taken)[: np.count_nonzero(~hit)]] = new[~hit]

        return [python_contender("numpy", numpy_call)]


def measure(problem, samples, seed, longest_ms=20):
    """longest_ms: a sample takes at least 2 ms and moves at least 32 MB, but not if that takes longer."""
    native = problem.native
    for contender in problem.contenders:
        spent = contender.sample()
        while spent * contender.calls < 2e6 or problem.bytes * contender.calls < 32e6:
            short = max(2e6 / max(1, spent * contender.calls), 32e6 / (problem.bytes * contender.calls))
            most = max(1.1, longest_ms * 1e6 / max(1, spent * contender.calls))
            contender.calls = max(contender.calls + 1, int(contender.calls * min(short * 1.1, most, 100)))
            spent = contender.sample()
            if spent * contender.calls > longest_ms * 1e6:
                break
    take_turns(native, problem.contenders, samples, seed)
    return {c.name: {**c.summary(), "gb_per_second": problem.bytes / statistics.median(c.samples)}
            for c in problem.contenders}


def take_turns(native, contenders, samples, seed):
    """Fills the samples of the contenders, each of as many calls as the contender says."""
    order = random.Random(seed)
    for _ in range(4 * samples):
        waiting = [c for c in contenders if len(c.samples) < samples]
        if not waiting:
            break
        order.shuffle(waiting)
        for contender in waiting:
            before = native.waited()
            spent = contender.sample()
            if native.waited() - before > 0.02 * spent * contender.calls:
                contender.disturbed += 1
            else:
                contender.samples.append(spent)
    for contender in contenders:
        if not contender.samples:  # a machine that is never quiet
            contender.samples = [contender.sample() for _ in range(samples)]


def ratio(times, peer, ours="kvferry"):
    """How much longer the peer takes, and between what the middle halves of both put that."""
    value = times[peer]["us"] / times[ours]["us"]
    low, high = times[peer]["quartiles_us"] or (times[peer]["us"],) * 2
    our_low, our_high = times[ours]["quartiles_us"] or (times[ours]["us"],) * 2
    return value, (low / our_high, high / our_low)


def machine():
    def first(path, key):
        try:
            with open(path, encoding="utf-8") as file:
                for line in file:
                    if line.startswith(key):
                        return line.partition(":")[2].strip()
        except OSError:
            pass
        return "unknown"

    return {
        "cpu": first("/proc/cpuinfo", "model name"),
        "processors": len(os.sched_getaffinity(0)),
        "memory": first("/proc/meminfo", "MemTotal"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__ if torch else None,
    }


def short(value):
    """Five digits are more than a measurement has."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    return [short(item) for item in value] if isinstance(value, (list, tuple)) else value


def write_results(path, rows):
    lines = ",\n".join(json.dumps(short(row)) for row in rows)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'{{"machine": {json.dumps(machine())}, "rows": [\n{lines}\n]}}\n')
