# SPDX-License-Identifier: Apache-2.0
"""The types that users see: the checked-in stub is the extension's, mypy accepts right programs and only those."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import kvferry

ROOT = pathlib.Path(__file__).parents[2]
TYPED_USER = pathlib.Path(__file__).with_name("typed_user.py")

HEADER = """\
from __future__ import annotations
import kvferry
import numpy
from numpy.typing import NDArray
A = NDArray[numpy.int32]
"""
IN_PLACE = "def use(a: A, b: NDArray[numpy.float16]) -> None:\n    "
# Each breaks one rule, and what mypy calls it.
REJECTED = {
    "cache mode": ("kvferry.gather_pa_kv_cache(a, a, a, a, a, a, cache_mode='Nz')", "arg-type"),
    "index policy": ("kvferry.copy_blocks([a], a, index_policy='ignore')", "arg-type"),
    "direction": ("kvferry.transfer_layers([a], None, a, a, direction='back')", "arg-type"),
    "any string": ("kvferry.scatter_pa_kv_cache(a, a, a, a, a, scatter_mode=str(1))", "arg-type"),
    "missing argument": ("kvferry.gather_pa_kv_cache(a, a, a, a, a)", "call-arg"),
    "unknown argument": ("kvferry.group_memcpy(a, 8, count_on_host=1)", "call-arg"),
    "option by position": ("kvferry.gather_dequant(a, a, a, a, a)", "call-arg"),
    "int for a tensor": ("kvferry.gather_pa_kv_cache(a, a, a, 3, a, a)", "arg-type"),
    "list for a tensor": ("kvferry.gather_dequant(a, a, [1, 2], a)", "arg-type"),
    "None for a tensor": ("kvferry.gather_pa_kv_cache(a, None, a, a, a, a)", "arg-type"),
    "tensor for a list": ("kvferry.copy_blocks(1, a)", "arg-type"),
    "error record of a plan": ("kvferry.plan_copy_blocks([a], a, error_record=None)", "call-arg"),
    "tensor missing in run": ("kvferry.plan_group_memcpy(a, 8).run()", "call-arg"),
    "schedule of another plan": ("kvferry.plan_group_memcpy(a, 8).schedule()", "attr-defined"),
    "result of a call in place": ("print(kvferry.group_memcpy(a, 8))", "func-returns-value"),
    "result of another kind": ("kvferry.gather_dequant_functional(b, a, a, 1).append(1)", "attr-defined"),
    "context by position": ("kvferry.Context(2)", "call-arg"),
    "device by number": ("kvferry.Context(device=0)", "arg-type"),
    "stream by name": ("kvferry.Context(device='cuda', stream='0')", "arg-type"),
    "thread count is read only": ("kvferry.Context().threads = 2", "misc"),
    "no such operator": ("kvferry.gather_kv(a)", "attr-defined"),
}


def test_stub_is_up_to_date() -> None:
    pytest.importorskip("nanobind")
    command = [sys.executable, ROOT / "tools" / "stub.py", "--check"]
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(kvferry.__file__).parents[1])}
    checked = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, check=False)
    assert checked.returncode == 0, f"python tools/stub.py makes the stub anew:\n{checked.stdout}"


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What one run of mypy says about the package, the typed user and the snippets."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("rejected")
    for number, (line, _) in enumerate(REJECTED.values()):
        (folder / f"rejected_{number}.py").write_text(f"{HEADER}{IN_PLACE}{line}\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--no-error-summary",
        "--no-pretty",
    ]
    command += ["--cache-dir", str(ROOT / "build" / "mypy")]
    command += [str(ROOT / "python" / "kvferry"), str(TYPED_USER), *map(str, sorted(folder.iterdir()))]
    # The sources, whatever is installed.
    environment = os.environ | {"MYPYPATH": str(ROOT / "python")}
    run = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return [line for line in run.stdout.splitlines() if ": error: " in line]


def test_typed_user(errors: list[str]) -> None:
    assert [line for line in errors if TYPED_USER.name in line] == []


def test_package(errors: list[str]) -> None:
    pytest.importorskip("torch")
    assert [line for line in errors if "rejected_" not in line and TYPED_USER.name not in line] == []


@pytest.mark.parametrize("name", REJECTED)
def test_rejected(errors: list[str], name: str) -> None:
    number = list(REJECTED).index(name)
    found = [line for line in errors if f"rejected_{number}.py:" in line]
    assert [line.rpartition("  ")[2] for line in found] == [f"[{REJECTED[name][1]}]"]
