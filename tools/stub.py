#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes python/kvferry/_core.pyi from the built extension; with --check prints how it differs instead.

PYTHONPATH=build/dev/python python tools/stub.py [--check]
"""

from __future__ import annotations

import difflib
import importlib
import pathlib
import sys

from nanobind.stubgen import StubGen

STUB = pathlib.Path(__file__).parents[1] / "python" / "kvferry" / "_core.pyi"


def make() -> str:
    # Without values: the version's would change the stub with every release.
    generator = StubGen(importlib.import_module("kvferry._core"), max_expr_length=0)
    generator.put(generator.module)
    return generator.get()


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    made = make()
    if not arguments:
        STUB.write_text(made)
        return 0
    old, new = STUB.read_text().splitlines(), made.splitlines()
    difference = list(difflib.unified_diff(old, new, str(STUB), "what the extension says", lineterm=""))
    print("\n".join(difference), end="\n" if difference else "")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
