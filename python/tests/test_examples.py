# SPDX-License-Identifier: Apache-2.0
"""Each example runs, checks itself and says what it shows."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import kvferry

EXAMPLES = sorted((pathlib.Path(__file__).parents[2] / "examples" / "python").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if "import torch" in example.read_text():
        pytest.importorskip("torch")
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(kvferry.__file__).parents[1])}
    run = subprocess.run(
        [sys.executable, example], cwd=tmp_path, env=environment, text=True, capture_output=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5
