# SPDX-License-Identifier: Apache-2.0
"""Charts of a report that the command line tool makes here."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("matplotlib")

import kvferry
from kvferry.plots import main, plot

CHARTS = ["bytes", "hits", "latencies", "pools", "rates"]
SELECTION_CHARTS = sorted([*CHARTS, "memory", "selection"])


@pytest.fixture(
    scope="module", params=[[], ["--model", "deepseek-v3.2", "--select", "512"]], ids=["all", "select"]
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    if "KVFERRY_CLI" not in os.environ:
        pytest.skip("KVFERRY_CLI names no command line tool")
    report = tmp_path_factory.mktemp("replay") / "report.json"
    command = [os.environ["KVFERRY_CLI"], "replay", "--requests", "20", "--json", str(report), *request.param]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=report.parent)
    return report


@pytest.fixture
def report(made: pathlib.Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(made.read_text())
    return read


def test_files(made: pathlib.Path, report: dict[str, Any], tmp_path: pathlib.Path) -> None:
    files = plot(made, tmp_path / "new" / "folder")
    charts = SELECTION_CHARTS if "selection" in report else CHARTS
    names = [f"kvferry-{chart}.{format}" for chart in charts for format in ("png", "svg")]
    assert sorted(file.name for file in files) == names
    for file in files:
        content = file.read_bytes()
        assert content.startswith(b"\x89PNG" if file.suffix == ".png" else b"<?xml"), file
    # The numbers of the report, not some others: as many bars, of the right lengths.
    from matplotlib.figure import Figure

    from kvferry.plots import _load, _rates

    figure: Figure = _rates(_load(report))
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == pytest.approx([call["gb_per_second"] for call in report["calls"]])


def test_the_same_report_gives_the_same_files(report: dict[str, Any], tmp_path: pathlib.Path) -> None:
    once = [file.read_bytes() for file in plot(report, tmp_path / "once", ["svg"])]
    again = [file.read_bytes() for file in plot(report, tmp_path / "again", ["svg"])]
    assert once == again
    assert not any(b"<dc:date>" in content for content in once)


def wrong(report: dict[str, Any], path: list[str | int], value: object) -> dict[str, Any]:
    """The report with one value in another place, or without it."""
    changed = copy.deepcopy(report)
    at: Any = changed
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (
            ["format"],
            "kvferry-replay-0",
            'format is "kvferry-replay-0", this version reads "kvferry-replay-1"',
        ),
        (["machine"], None, "machine is missing from the report"),
        (["calls", 0, "gb_per_second"], "fast", "calls[0].gb_per_second is 'fast', expected a number"),
        (["calls", 0, "gb_per_second"], float("nan"), "calls[0].gb_per_second is nan, expected a number"),
        (["calls", 0, "gb_per_second"], 10**400, "calls[0].gb_per_second is 1000"),
        (["series", "steps"], 7, "series.steps is 7, expected an array"),
        (["series", "requests"], [1], "series.requests has 1 entries, expected"),
        (["calls"], {}, "calls is {}, expected an array"),
    ],
    ids=["format", "machine", "text", "nan", "huge", "steps", "requests", "calls"],
)
def test_wrong_reports(
    report: dict[str, Any], tmp_path: pathlib.Path, path: list[str | int], value: object, text: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        plot(wrong(report, path, value), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_names_are_no_formulas(report: dict[str, Any], tmp_path: pathlib.Path) -> None:
    assert plot(wrong(report, ["trace", "name"], r"a$\foo$b.jsonl"), tmp_path, ["svg"])


def test_what_is_no_report(tmp_path: pathlib.Path) -> None:
    (tmp_path / "text.json").write_text("not JSON")
    with pytest.raises(ValueError, match=r"text\.json is no JSON"):
        plot(tmp_path / "text.json", tmp_path)
    with pytest.raises(FileNotFoundError):
        plot(tmp_path / "nothing.json", tmp_path)
    with pytest.raises(ValueError, match='formats has "pdf", expected "png" or "svg"'):
        plot({}, tmp_path, ["pdf"])


def test_command(made: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(kvferry.__file__).parents[1])}
    command = [sys.executable, "-m", "kvferry.plots", str(made), "--out", str(tmp_path), "--format", "svg"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "kvferry-rates.svg").exists() and not (tmp_path / "kvferry-rates.png").exists()
    assert main([str(tmp_path / "nothing.json")]) == 2
    assert "nothing.json" in capsys.readouterr().err
