#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call from Python costs over the same call from C++, for the smallest problem of an operator.

Method: all contenders work on the same memory, and each is timed only after its result was right. They take turns
in random order, 100 batches of 100 calls each; a batch in which a thread of the process waited for a processor is
thrown away. The figure is the median batch's time a call. The module kvferry must be importable.
"""

import argparse
import gc
import timeit

import numpy as np

import kvferry
from measure import Contender, Native, Problem, take_turns, torch, write_results

if torch:
    import kvferry.torch

BATCHES, CALLS = 100, 100
TARGET_US = 5
# Of each operator: what is written, and from what; the arguments that are no tensors.
OPERATORS = {
    "gather_pa_kv_cache": ({"key": "key_cache", "value": "value_cache"}, {}),
    "scatter_pa_kv_cache": ({"key_cache": "key", "value_cache": "value"}, {}),
    "gather_selection_kv_cache": (
        {"selection_k_rope": "full_k_rope", "selection_kv_cache": "full_kv_cache"},
        {"selection_topk_block_size": 1},
    ),
    "group_memcpy": ({"destination": "source"}, {"copy_bytes": 32}),
}


def contender(name, statement, names):
    # As a program would write the call: arguments by name from a list would cost more.
    timer = timeit.Timer(statement, globals=names)
    made = Contender(name, lambda first, calls: timer.timeit(calls) * 1e9)
    made.calls = CALLS
    return made


def contenders(op, tensors, options):
    """The Python ones; the names of those that run a plan begin with "plan.run"."""
    arguments = ", ".join(tensors)
    given = ", ".join([arguments, *(f"{key}={value}" for key, value in options.items())])
    empty = eval(f"lambda {', '.join([arguments, *options])}: None")
    result = [
        contender("empty builtin", "call()", {"call": gc.isenabled}),
        contender("empty function", f"call({given})", {"call": empty, **tensors}),
    ]
    kinds = {"NumPy": tensors}
    if torch:
        kinds["torch"] = {name: torch.from_numpy(array) for name, array in tensors.items()}
        packet = getattr(torch.ops.kvferry, op)
        result.append(contender("torch.ops", f"call({given})", {"call": packet, **kinds["torch"]}))
    for kind, names in kinds.items():
        plan = getattr(kvferry, f"plan_{op}")(**names, **options)
        result.append(
            contender(f"kvferry, {kind}", f"call({given})", {"call": getattr(kvferry, op), **names})
        )
        result.append(contender(f"plan.run, {kind}", f"plan.run({arguments})", {"plan": plan, **names}))
    return result


def check(problem, op, each, written):
    arrays = problem.arrays
    for name in written:
        arrays[name][...] = 0
    each.run(0, 1)
    if not all(np.array_equal(arrays[to].ravel(), arrays[source].ravel()) for to, source in written.items()):
        raise SystemExit(f"{op}: {each.name}: wrong result")


def measure(native, op, seed):
    written, options = OPERATORS[op]
    problem = Problem(native, f"call:op={op}")
    tensors = {name: array for name, array in problem.arrays.items() if name not in ("source", "destination")}
    ours = contenders(op, tensors, options)
    for each in problem.contenders:
        each.name, each.calls = {"plan_run": "C++ plan and run", "run": "C++ run"}[each.name], CALLS
    for each in problem.contenders + [each for each in ours if not each.name.startswith("empty")]:
        check(problem, op, each, written)
    take_turns(native, problem.contenders + ours, BATCHES, seed)
    times = {
        each.name: {**each.summary(), "calls": CALLS * len(each.samples)}
        for each in problem.contenders + ours
    }
    for each in ours:
        if not each.name.startswith("empty"):
            beside = "C++ run" if each.name.startswith("plan.run") else "C++ plan and run"
            times[each.name]["over_cpp_us"] = times[each.name]["us"] - times[beside]["us"]
    problem.close()
    return {"operator": op, "tensors": len(tensors), "target_us": TARGET_US, "times": times}


def show(row):
    print(f"{row['operator']}, {row['tensors']} tensors")
    for name, time in row["times"].items():
        low, high = time["quartiles_us"]
        text = f"  {name:<18} {time['us']:>7.3f} us  {low:>7.3f} .. {high:<7.3f}"
        if "over_cpp_us" in time:
            verdict = "meets" if time["over_cpp_us"] <= TARGET_US else "falls short"
            text += f" {time['over_cpp_us']:>7.3f} over C++, target <= {TARGET_US}  {verdict}"
        print(text.rstrip(), flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shared_object", help="libkvferry_bench.so of a release build")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the numbers here")
    options = parser.parse_args()
    if not torch:
        print("skipped: torch (not installed in this Python)")
    native, rows = Native(options.shared_object), []
    for op in OPERATORS:
        rows.append(measure(native, op, options.seed))
        show(rows[-1])
    if options.json:
        write_results(options.json, rows)


if __name__ == "__main__":
    main()
