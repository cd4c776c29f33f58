#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times KVFerry against other ways to do the same, all in one process, and says which targets are met.

Method: a contender is timed only after its result was right. Contenders of a row take turns in random order; a
sample moves at least 32 MB or lasts 2 ms; a sample in which a thread of the process waited for a processor is
thrown away. Medians and ratios; the spread is the middle half of the ratios. See docs/performance.md.
"""
import argparse
import json
import os
import sys

import chart
import growth
import sweep
from measure import Native, Problem, measure, ratio, torch, write_results


def judge(row, times, done):
    """(what, target, value, spread, met) for every target of a row; value None: not measured."""
    ours, result = times["kvferry"], []
    for peer, target in row.get("over", {}).items():
        if peer not in times:
            result.append((f"over {peer}", f">= {target:g}", None, None, None))
            continue
        value, spread = ratio(times, peer)
        result.append((f"over {peer}", f">= {target:g}", value, spread, value >= target))
    if "limit" in row:
        value, spread = ratio(times, "limit")
        value, spread = 100 * value, tuple(100 * s for s in spread)
        result.append(("% of limit", f">= {row['limit']}", value, spread, value >= row["limit"]))
    if "us" in row:
        low, high = ours["quartiles_us"] or (ours["us"],) * 2
        result.append(("us", f"<= {row['us']:g}", ours["us"], (low, high), ours["us"] <= row["us"]))
    for peer, target in row.get("extra_us", {}).items():
        value = ours["us"] - times[peer]["us"]
        result.append((f"us more than {peer}", f"<= {target:g}", value, None, value <= target))
    if "uniform" in row:
        other = done.get(row["uniform"]["row"])
        value = None
        if other:
            value = ours["gb_per_second"] / other["kvferry"]["gb_per_second"]
        target = row["uniform"]["share"]
        result.append(("of the uniform case", f">= {target:g}", value, None, value is not None and value >= target))
    return result


def targets(native, rows, options):
    samples = options.samples or 15
    if torch is None:
        print("skipped: torch (not installed in this Python)")
    else:
        torch.set_num_threads(1)
    done, results, met, missed = {}, [], 0, 0
    print(f"{'row':<48} {'':<22} {'target':>9} {'measured':>9} {'spread':>15}")
    for row in rows:
        problem = Problem(native, row["problem"])
        times = measure(problem, samples, options.seed)
        problem.close()
        done[row["name"]] = times
        verdicts = judge(row, times, done)
        print(f"{row['name']:<48} {times['kvferry']['us']:.1f} us, {times['kvferry']['gb_per_second']:.1f} GB/s")
        for what, target, value, spread, good in verdicts:
            if value is None:
                print(f"{'':<48} {what:<22} {target:>9} {'skipped':>9}")
                continue
            shown = f"{spread[0]:.2f} .. {spread[1]:.2f}" if spread else ""
            print(f"{'':<48} {what:<22} {target:>9} {value:>9.2f} {shown:>15}  {'meets' if good else 'falls short'}")
            met, missed = met + good, missed + (not good)
        sys.stdout.flush()
        results.append({**row, "times": times,
                        "targets": [{"what": w, "target": t, "value": v, "spread": s, "met": g}
                                    for w, t, v, s, g in verdicts]})
    print(f"{met} targets met, {missed} fall short")
    return results


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared_object", help="libkvferry_bench.so of a release build")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--sweep", action="store_true", help="piece sizes against memcpy (sweep.json) instead of the targets")
    what.add_argument("--growth", action="store_true", help="cost by tokens, sequences, ids (growth.json) instead of the targets")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--samples", type=int, help="of each contender (15; sweep and growth: 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the numbers here")
    parser.add_argument("--svg", help="and a chart here")
    options = parser.parse_args()
    kind, run, draw = ("sweep", sweep.run, sweep.draw) if options.sweep else \
        ("growth", growth.run, growth.draw) if options.growth else ("targets", targets, chart.bars)
    with open(os.path.join(here, kind + ".json"), encoding="utf-8") as file:
        data = json.load(file)
    if kind == "targets":
        data = [row for row in data["rows"] if options.only in row["name"]]
    results = run(Native(options.shared_object), data, options)
    if not results:
        raise SystemExit(f"no row's name contains '{options.only}'")
    if options.json:
        write_results(options.json, results)
    if options.svg:
        draw(results, options.svg)


if __name__ == "__main__":
    main()
