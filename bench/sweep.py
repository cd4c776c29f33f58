# SPDX-License-Identifier: Apache-2.0
"""Is any piece size slower than memcpy for each piece? The grid is sweep.json.

Cold cases must reach 0.95 of memcpy, with the streaming hint and without; warm ones are printed. A loop of memcpy
overlaps the cache misses of one call with those of the next, and what a call of the library costs before its first
byte (0.3 us, targets.json) cannot be earned back in a few pieces: cases that lose no more than that a call are listed
apart. A case below is measured again with four times the samples, and that counts.
"""
import sys
import time

import chart
from measure import Problem, measure, ratio

OURS = {"kvferry": "hint", "kvferry_regular": "no hint"}


def size_text(n):
    for unit, shift in (("M", 20), ("K", 10)):
        if n >= 1 << shift and n % (1 << shift) == 0:
            return f"{n >> shift}{unit}"
    return str(n)


def cases(grid):
    for threads in (1, 2):
        for size in grid["sizes"]:
            fill = -(-grid["fill_bytes"] // size)
            for count in sorted({*grid["counts"], fill}):
                total = size * count
                if total > grid["most_bytes"] or (threads > 1 and total < grid["threads_bytes"]):
                    continue
                for kind in grid["copies"]:
                    if kind["state"] != "cold" and total > grid["cache_bytes"]:
                        continue
                    yield {**kind, "size": size, "count": count, "threads": threads, "peer": "memcpy",
                           "series": "32 MB" if count == fill and count not in grid["counts"] else f"{count}",
                           "problem": kind["problem"].format(size=size, count=count, threads=threads)}
        for size in grid["rows"]:
            for count in (*grid["row_counts"], -(-grid["fill_bytes"] // size)):
                if threads > 1 and size * count < grid["threads_bytes"]:
                    continue
                for paged in grid["paged"]:
                    yield {**paged, "size": size, "count": count, "threads": threads,
                           "series": f"{count}" if count in grid["row_counts"] else "32 MB",
                           "problem": paged["problem"].format(size=size, count=count, threads=threads)}


def text_of(case):
    return (f"{case['name']:<16} {size_text(case['size']):>5} x {case['count']:<8} {case['threads']}T "
            f"{case['state']}")


def run_case(native, case, grid, samples, seed):
    problem = Problem(native, case["problem"], {*OURS, case["peer"]})

    def once(count):
        times = measure(problem, count, seed, longest_ms=4)
        result = {}
        for ours, hint in OURS.items():
            if ours in times:
                hint = "no hint" if "streaming=0" in case["problem"] else hint
                value, spread = ratio(times, case["peer"], ours)
                result[hint] = {"us": times[ours]["us"], "ratio": value, "spread": spread,
                                "loss_us": times[ours]["us"] - times[case["peer"]]["us"]}
        return times, result

    times, result = once(samples)
    again = any(result[hint]["ratio"] < grid["least_ratio"] for hint in case["judged"])
    if again:
        for contender in problem.contenders:
            contender.samples = []
        times, result = once(4 * samples)
    problem.close()
    return {**case, "peer_us": times[case["peer"]]["us"], "again": again, "results": result}


def run(native, grid, options):
    start, rows = time.monotonic(), []
    todo = [case for case in cases(grid) if options.only in text_of(case)]
    print(f"{'case':<46} {'memcpy us':>10}   kvferry over memcpy: with the hint, spread; without it, spread")
    for case in todo:
        row = run_case(native, case, grid, options.samples or 5, options.seed)
        rows.append(row)
        shown = "   ".join(f"{r['ratio']:6.2f} {r['spread'][0]:6.2f} .. {r['spread'][1]:<6.2f}" for r in row["results"].values())
        print(f"{text_of(row):<46} {row['peer_us']:>10.2f}   {shown}")
        sys.stdout.flush()
    cold = sum(len(row["judged"]) for row in rows)
    below = [(row, hint, row["results"][hint]) for row in rows for hint in row["judged"]
             if row["results"][hint]["ratio"] < grid["least_ratio"]]
    for title, part in (
        ("more than a call's own cost", [b for b in below if b[2]["loss_us"] > grid["call_us"]]),
        (f"a loss of at most {grid['call_us']} us a call", [b for b in below if b[2]["loss_us"] <= grid["call_us"]]),
    ):
        print(f"{len(part)} of {cold} cold results below {grid['least_ratio']}: {title}")
        for row, hint, r in part:
            print(f"  {text_of(row):<46} {hint:<8} {r['ratio']:.2f} ({r['spread'][0]:.2f} .. {r['spread'][1]:.2f}), "
                  f"{r['us']:.2f} us, {r['loss_us']:+.2f} us")
    print(f"{len(rows)} cases in {time.monotonic() - start:.0f} s")
    return rows


def draw(rows, path):
    graphs = {}
    for row in rows:
        if row["name"].startswith("paged"):
            continue
        title = f"{row['name']}, {row['state']}, {row['threads']} thread{'s' if row['threads'] > 1 else ''}"
        graphs.setdefault(title, {}).setdefault(row["series"] + " pieces", []).append(
            (row["size"], row["results"]["hint"]["ratio"]))
    chart.panels("group_memcpy over memcpy for each piece, by piece size (dashed: 0.95)", graphs, path, size_text, 0.95)
