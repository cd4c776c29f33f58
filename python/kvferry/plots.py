# SPDX-License-Identifier: Apache-2.0
"""Charts of a `kvferry replay` report as PNG and SVG files.

    kvferry replay                                    # writes kvferry-report.json
    python -m kvferry.plots kvferry-report.json --out charts --format svg

The charts are those of the report's HTML page, one file each: for papers, slides and pages that cannot embed
HTML. Needs matplotlib, which is imported by the first call.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot"]

REPORT_FORMAT = "kvferry-replay-1"  # what tools/replay writes
FORMATS = ("png", "svg")

# Okabe and Ito's colours, which differ for every kind of colour vision; lines differ in their dashes too.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
LINES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-"},
    {"color": ORANGE, "linestyle": "--"},
    {"color": GREEN, "linestyle": "-."},
)
INK, SOFT, RULE, BAD = "#14181f", "#5b6573", "#e3e7ec", "#b3261e"
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.dpi": 200,
    "svg.fonttype": "path",  # text looks the same where the font is missing
    "svg.hashsalt": "kvferry",  # the same report gives the same file
}
WIDTH, HEADER = 7.2, 0.62  # inches


class _Node:
    """A value of the report that knows where it is, so that errors can say so."""

    def __init__(self, value: object, path: str = "") -> None:
        self._value = value
        self._path = path

    def _refuse(self, expected: str) -> ValueError:
        where = self._path or "the report"
        return ValueError(f"plot: {where} is {_short(self._value)}, expected {expected}")

    def __getitem__(self, key: str) -> _Node:
        if not isinstance(self._value, Mapping):
            raise self._refuse("an object")
        path = f"{self._path}.{key}" if self._path else key
        if key not in self._value:
            raise ValueError(f"plot: {path} is missing from the report")
        return _Node(self._value[key], path)

    def __contains__(self, key: str) -> bool:
        return isinstance(self._value, Mapping) and key in self._value

    def __iter__(self) -> Iterator[_Node]:
        if not isinstance(self._value, list):
            raise self._refuse("an array")
        return (_Node(value, f"{self._path}[{i}]") for i, value in enumerate(self._value))

    def is_null(self) -> bool:
        return self._value is None

    def number(self) -> float:
        try:
            if isinstance(self._value, int | float) and not isinstance(self._value, bool):
                number = float(self._value)
                if math.isfinite(number):
                    return number
        except OverflowError:  # an integer of hundreds of digits
            pass
        raise self._refuse("a number")

    def text(self) -> str:
        if not isinstance(self._value, str):
            raise self._refuse("a string")
        return self._value.replace("$", r"\$")  # names are no formulas

    def numbers(self, length: int | None = None) -> list[float]:
        values = [value.number() for value in self]
        if length is not None and len(values) != length:
            raise ValueError(
                f"plot: {self._path} has {len(values)} entries, expected {length} as in series.steps"
            )
        return values


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _quantity(value: float, unit: str = "") -> str:
    """1234567 as "1.23 M"."""
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    power = 0
    while abs(value) >= 999.5 and power + 1 < len(prefixes):
        value /= 1000
        power += 1
    digits = (
        max(0, 2 - int(math.log10(abs(value))))
        if abs(value) >= 1 and power > 0
        else 0
        if value == int(value)
        else 2
    )
    return f"{value:.{digits}f} {prefixes[power]}{unit}".rstrip()


def _name(call: _Node) -> str:
    return f"{call['operator'].text()}\n{call['purpose'].text()}"


def _context(report: _Node) -> str:
    model, trace = report["model"], report["trace"]
    return (
        f"{model['name'].text()} tp {model['tp'].number():.0f}, {model['run_layers'].number():.0f} of "
        f"{model['layers'].number():.0f} layers   {trace['name'].text()}: {trace['requests'].number():.0f} requests   "
        f"{report['machine']['threads'].number():.0f} threads"
    )


def _figure(report: _Node, title: str, height: float) -> tuple[Figure, Axes]:
    """One plot of `height` inches below a title and a line that says what ran, or how it failed."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(rect=(0, 0, 0.99, height / (height + HEADER)), w_pad=0.08, h_pad=0.06)
    figure = Figure(figsize=(WIDTH, height + HEADER), layout=layout)
    y = 1 - 0.12 / (height + HEADER)
    figure.text(0.014, y, title, weight="bold", size=11, va="top")
    failed = not report["error"].is_null()
    note = f"FAILED: {report['error'].text()}" if failed else _context(report)
    figure.text(0.014, y - 0.24 / (height + HEADER), note, size=8, va="top", color=BAD if failed else SOFT)
    return figure, figure.add_subplot()


def _rows(axes: Axes, names: Sequence[str]) -> None:
    """The rows of a chart, first on top."""
    axes.set_yticks(range(len(names)), names, color=INK)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")


def _note(axes: Axes, row: int, note: str) -> None:
    """Text to the right of a row."""
    axes.text(1.015, row, note, transform=axes.get_yaxis_transform(), va="center", size=8.5)


def _bars(axes: Axes, names: Sequence[str], values: Sequence[float], notes: Sequence[str]) -> None:
    axes.barh(range(len(names)), values, height=0.55, color=BLUE)
    axes.set_xlim(left=0)
    _rows(axes, names)
    for row, note in enumerate(notes):
        _note(axes, row, note)


def _rates(report: _Node) -> Figure:
    calls = list(report["calls"])
    limit = report["machine"]["copy_limit_gb_per_second"].number()
    rates = [call["gb_per_second"].number() for call in calls]
    figure, axes = _figure(report, "Rate of each operator against a plain copy", 0.9 + 0.46 * len(calls))
    notes = [
        f"{rate:.2f} GB/s" + (f"\n{call['percent_of_limit'].number():.1f} %" if limit > 0 else "")
        for rate, call in zip(rates, calls, strict=True)
    ]
    _bars(axes, [_name(call) for call in calls], rates, notes)
    if limit > 0:
        axes.axvline(limit, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.annotate(
            f"copy limit {limit:.1f} GB/s",
            (limit, 1),
            (0, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            size=8.5,
        )
        axes.set_xlim(right=1.05 * max([limit, *rates]))
    axes.set_xlabel("payload, counted once, over the time in the operator (GB/s)")
    return figure


def _bytes(report: _Node) -> Figure:
    from matplotlib.ticker import EngFormatter

    calls = list(report["calls"])
    moved = [call["bytes"].number() for call in calls]
    figure, axes = _figure(report, "Bytes that each operator moved", 0.8 + 0.46 * len(calls))
    _bars(axes, [_name(call) for call in calls], moved, [_quantity(n, "B") for n in moved])
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.set_xlabel("payload, counted once, of the layers and heads of this run (bytes)")
    return figure


def _over(axes: Axes, x: Sequence[float], label: str) -> None:
    from matplotlib.ticker import StrMethodFormatter

    axes.set_xlim(0, x[-1] if x and x[-1] > 0 else 1)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1), ncols=3, borderaxespad=0.2)


def _tiers(report: _Node) -> list[tuple[str, dict[str, Any]]]:
    """Name and line of the tiers that the run has."""
    return [
        (name, line)
        for name, line in zip(("device", "host"), LINES, strict=False)
        if report["options"][f"{name}_tokens"].number() > 0
    ]


def _hits(report: _Node) -> Figure:
    series = report["series"]
    requests = series["requests"].numbers(len(series["steps"].numbers()))
    figure, axes = _figure(report, "Prompt tokens that came from the cache", 2.9)
    below = [0.0] * len(requests)
    for name, line in _tiers(report):
        hits = series[f"{name}_hit_percent"].numbers(len(requests))
        above = [a + b for a, b in zip(below, hits, strict=True)]
        axes.fill_between(requests, below, above, color=line["color"], alpha=0.22, linewidth=0)
        share = report["cache"][f"{name}_hit_percent"].number()
        axes.plot(requests, above, **line, label=f"{name} hits, {share:.1f} % at the end")
        below = above
    axes.set_ylabel("share of all prompt tokens so far (%)")
    _over(axes, requests, "requests admitted")
    return figure


def _pools(report: _Node) -> Figure:
    series = report["series"]
    steps = series["steps"].numbers()
    figure, axes = _figure(report, "Pages of the pools in use, cached prefixes included", 2.9)
    lines = [(f"{name} pool", f"{name}_percent", line) for name, line in _tiers(report)]
    lines.append(("running requests", "running_percent", LINES[2]))
    for label, column, line in lines:
        axes.plot(steps, series[column].numbers(len(steps)), **line, label=label)
    axes.set_ylabel("share of the pool (%)")
    _over(axes, steps, "steps")
    axes.set_ylim(top=104)
    return figure


def _latencies(report: _Node) -> Figure:
    from matplotlib.ticker import EngFormatter

    calls = list(report["calls"])
    figure, axes = _figure(report, "How long a call takes", 0.8 + 0.62 * len(calls))
    names = []
    for row, call in enumerate(calls):
        bins = list(call["latency"])
        edges = [(b["from_us"].number() / 1e6, b["to_us"].number() / 1e6) for b in bins]
        counts = [b["calls"].number() for b in bins]
        names.append(_name(call))
        if not counts or max(counts) <= 0:
            continue
        heights = [-0.8 * n / max(counts) for n in counts]  # upwards: rows go down
        axes.bar(
            [left for left, _ in edges],
            heights,
            [right - left for left, right in edges],
            bottom=row + 0.4,
            align="edge",
            color=BLUE,
            linewidth=0,
        )
        for quantile, dashes in (("median_us", "-"), ("p99_us", (0, (2, 1.5)))):
            value = call[quantile].number() / 1e6
            axes.plot([value] * 2, [row + 0.4, row - 0.4], color=ORANGE, linewidth=1.4, linestyle=dashes)
        _note(
            axes,
            row,
            "median {}\np99 {}".format(*(_duration(call[q].number()) for q in ("median_us", "p99_us"))),
        )
    _rows(axes, names)
    axes.set_ylim(len(names) - 0.5, -0.6)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(unit="s"))
    axes.tick_params(axis="x", which="minor", length=0)
    axes.set_xlabel(
        "time of a call (logarithmic); height: calls, each row of its own; lines: median, dashed p99"
    )
    return figure


def _duration(us: float) -> str:
    for size, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} µs"


def _two_lines(report: _Node, title: str, ylabel: str, lines: Sequence[tuple[str, str, str]]) -> Figure:
    """Columns of the series, in bytes, over steps. A line is a column's name, what it is, and its total."""
    from matplotlib.ticker import EngFormatter

    series = report["series"]
    steps = series["steps"].numbers()
    figure, axes = _figure(report, title, 2.9)
    for (column, label, total), line in zip(lines, LINES, strict=False):
        axes.plot(steps, series[column].numbers(len(steps)), **line, label=f"{label}, {total}")
    axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.set_ylabel(ylabel)
    _over(axes, steps, "steps")
    return figure


def _selection(report: _Node) -> Figure:
    s = report["selection"]
    share, hits = s["fetched_percent"].number(), s["hit_percent"].number()
    return _two_lines(
        report,
        f"Decode reads {share:.1f} % of what it selects: {hits:.1f} % hits",
        "read so far (bytes)",
        [
            ("fetched_bytes", "fetched", _quantity(s["fetched_bytes"].number(), "B")),
            ("fetch_all_bytes", "fetching all", _quantity(s["fetch_all_bytes"].number(), "B")),
        ],
    )


def _memory(report: _Node) -> Figure:
    s = report["selection"]
    return _two_lines(
        report,
        f"Fast memory that decode needs: {s['memory_ratio'].number():.1f} times less at the peak",
        "memory (bytes)",
        [
            (
                "selection_memory_bytes",
                "selection caches",
                _quantity(s["selection_memory_bytes"].number(), "B"),
            ),
            (
                "full_memory_bytes",
                "full cache of the requests",
                _quantity(s["full_memory_bytes"].number(), "B"),
            ),
        ],
    )


_CHARTS: dict[str, Callable[[_Node], Figure]] = {
    "rates": _rates,
    "bytes": _bytes,
    "hits": _hits,
    "pools": _pools,
    "latencies": _latencies,
}
_SELECTION_CHARTS: dict[str, Callable[[_Node], Figure]] = {"selection": _selection, "memory": _memory}


def _load(report: Mapping[str, Any] | str | os.PathLike[str]) -> _Node:
    value: object = report
    if isinstance(report, str | os.PathLike):
        try:
            value = json.loads(Path(report).read_bytes())
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"plot: {os.fspath(report)} is no JSON: {error}") from None
    root = _Node(value)
    written = root["format"].text()
    if written != REPORT_FORMAT:
        raise ValueError(f'plot: format is "{written}", this version reads "{REPORT_FORMAT}"')
    return root


def plot(
    report: Mapping[str, Any] | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draws the charts of a report into `folder`, which is made if it is not there. Returns the files.

    report   what `kvferry replay` wrote as JSON: a path, or the object that json.load made of it
    formats  "png", "svg"; both look the same

    Files are kvferry-CHART.FORMAT. CHART is rates, bytes, hits, pools and latencies; with --select also
    selection and memory. The same report gives the same bytes with the same matplotlib. Files of these names
    are replaced.

    ValueError: no report, one of another version, or a field is missing or of another type; names the field.
    OSError: a file cannot be read or written. ImportError: no matplotlib. Nothing is written if the report
    is refused.
    """
    for wanted in formats:
        if wanted not in FORMATS:
            raise ValueError(f'plot: formats has "{wanted}", expected "png" or "svg"')
    root = _load(report)
    try:
        style = importlib.import_module("matplotlib.style")
    except ImportError as error:
        raise ImportError("kvferry.plots needs matplotlib: pip install matplotlib") from error
    charts = _CHARTS | (_SELECTION_CHARTS if "selection" in root else {})
    files = []
    with style.context(["default", STYLE]):
        figures = {name: draw(root) for name, draw in charts.items()}
        out = Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            for wanted in formats:
                file = out / f"kvferry-{name}.{wanted}"
                figure.savefig(file, format=wanted, metadata={"Date": None} if wanted == "svg" else None)
                files.append(file)
    return files


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kvferry.plots", description="Charts of a kvferry replay report."
    )
    parser.add_argument("report", metavar="REPORT.json", help="what kvferry replay wrote")
    parser.add_argument("--out", metavar="DIR", default=".", help="where the files go (default: here)")
    parser.add_argument("--format", action="append", choices=FORMATS, help="may be repeated (default: both)")
    options = parser.parse_args(arguments)
    try:
        for file in plot(options.report, options.out, options.format or FORMATS):
            print(file)
    except (ValueError, OSError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
