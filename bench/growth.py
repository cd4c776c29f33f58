# SPDX-License-Identifier: Apache-2.0
"""How the cost of a call grows with tokens, sequences and ids, and what memory it takes. The problems and what counts
as flat are growth.json."""
import sys
import types

import chart
from measure import Problem, measure


def status_kib(key):
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key))


def memory_of(native, spec):
    """(bytes of workspace, KiB that the peak of the process grew in the first call)."""
    handle = native.make(spec.encode())
    if not handle:
        raise SystemExit(f"{spec}: {native.error().decode()}")
    with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
        file.write("5")  # the peak is what is resident now
    before = status_kib("VmHWM")
    native.run(handle, 0, 0, 1)
    grown = status_kib("VmHWM") - before
    workspace = native.workspace(handle)
    native.free(handle)
    return workspace, grown


def run_series(native, series, data, options):
    def cost(x):
        total = series.get("total", 0)
        problem = Problem(native, series["problem"].format(x=x, rest=total // x), {"kvferry"})
        times = measure(problem, options.samples or 5, options.seed)["kvferry"]
        problem.close()
        units = {"x": x, "total": total, "call": 1}[series["per"]]
        return {"x": x, "us": times["us"], "quartiles_us": times["quartiles_us"], "ns": 1e3 * times["us"] / units,
                "judged": series["from"] is not None and x >= series["from"]}

    points = [cost(x) for x in series["values"]]
    least = min((point["ns"] for point in points if point["judged"]), default=None)
    for i, point in enumerate(points):
        if point["judged"] and point["ns"] > data["flat"] * least:
            points[i] = min(point, cost(point["x"]), key=lambda p: p["ns"])
    judged = [point["ns"] for point in points if point["judged"]]
    growth = max(judged) / min(judged) if judged else None
    return {**series, "points": points, "growth": growth, "flat": growth is None or growth <= data["flat"]}


def run_pair(native, pair, options):
    problems = [Problem(native, pair[side], {"kvferry"}) for side in ("first", "second")]
    for problem, side in zip(problems, ("first", "second")):
        problem.contenders[0].name = side
    both = types.SimpleNamespace(native=native, bytes=problems[0].bytes, contenders=[p.contenders[0] for p in problems])
    times = measure(both, 3 * (options.samples or 5), options.seed)
    growth = times["first"]["us"] / problems[0].bytes / (times["second"]["us"] / problems[1].bytes)
    for problem in problems:
        problem.close()
    return {**pair, "times": times, "growth": growth, "flat": growth <= pair["most"]}


def run(native, data, options):
    results = []
    for series in data["series"]:
        if options.only not in series["name"]:
            continue
        row = run_series(native, series, data, options)
        unit = "a call" if series["per"] == "call" else "each"
        verdict = "printed only" if row["growth"] is None else \
            f"{row['growth']:.2f}x the smallest, {'flat' if row['flat'] else 'NOT FLAT'}"
        print(f"{row['name']}: {verdict}")
        for point in row["points"]:
            print(f"  {point['x']:>9}  {point['us']:>12.2f} us  {point['ns']:>12.2f} ns {unit}"
                  f"{'' if point['judged'] or row['growth'] is None else '  (in a cache)'}")
        results.append(row)
        sys.stdout.flush()
    for pair in data["pairs"]:
        if options.only in pair["name"]:
            row = run_pair(native, pair, options)
            print(f"{row['name']}: {row['growth']:.2f}x for each byte, {'flat' if row['flat'] else 'NOT FLAT'}")
            results.append(row)
    for series in data["workspaces"]:
        if options.only in series["name"]:
            print(f"workspace of {series['name']}")
            points = []
            for x in series["values"]:
                workspace, grown = memory_of(native, series["problem"].format(x=x))
                print(f"  {x:>9}  {workspace:>12} bytes, peak memory of the first call {grown:+d} KiB")
                points.append({"x": x, "workspace_bytes": workspace, "peak_kib": grown})
            results.append({**series, "points": points})
    steep = sum(not row.get("flat", True) for row in results)
    print(f"{steep} of {sum('flat' in row for row in results)} not flat")
    return results


def draw(rows, path):
    graphs = {}
    for row in rows:
        if "growth" not in row or "points" not in row:
            continue
        least = min(point["ns"] for point in row["points"])
        kind, _, by = row["name"].rpartition(" by ")
        graphs.setdefault(kind or row["name"], {})[by or "sequences"] = [(p["x"], p["ns"] / least) for p in row["points"]]
    chart.panels("cost for each token, id or call over the smallest of the series (dashed: 1.25)", graphs, path, str, 1.25)
