#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Deletes each barrier of each kernel header in turn and demands a finding of the emulated operators.

barriers.py BUILD [HEADER...]: BUILD is a build folder of Ninja in which the tests are built, HEADER the name of one in
src/backends/cuda without its suffix. Ends non-zero if a barrier is not missed.
"""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "src" / "backends" / "cuda"
BARRIER = re.compile(r"\bx\.sync(_warp)?\([^()]*\)")
FINDING = re.compile(r"^.*: block \d+ thread \d+ .*$", re.M)
# The operators that run the kernels of a header; those that are not here: all of them.
OPERATORS = {
    "paged_gather": "gather_pa_kv_cache",
    "paged_reads": "gather_pa_kv_cache",
}


def run(command, cwd):
    return subprocess.run(command, cwd=cwd, shell=isinstance(command, str), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env={**os.environ, "KVFERRY_RANDOM_CASES": "300"})


class Test:
    """The test of all operators with another header in front: one source has all kernels."""

    def __init__(self, build, header, scratch):
        self.build, self.object, self.program = build, scratch / "queue.o", scratch / "test"
        self.filter = f"*/{OPERATORS.get(header, '*')}"
        entries = json.loads((build / "compile_commands.json").read_text())
        entry = next(e for e in entries if e["file"].endswith("tests/cuda_emulation/queue.cpp"))
        self.compile = shlex.split(entry["command"])
        self.compile[self.compile.index("-o") + 1] = str(self.object)
        self.compile.insert(1 + ("ccache" in self.compile[0]), f"-I{scratch}")
        link = run(["ninja", "-t", "commands", "emulated_operators_test"], build).stdout.strip().split("\n")[-1]
        program = re.search(r" -o (\S+) ", link).group(1)
        # In front of the library's own, which is then not taken.
        self.link = link.replace(f" -o {program} ", f" {self.object} -o {self.program} ")

    def run(self):
        """None if it does not build, or the outcome."""
        for command in (self.compile, self.link):
            result = run(command, self.build)
            if result.returncode:
                print(result.stdout)
                return None
        return run([str(self.program), "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={self.filter}"],
                   self.build)


def check(build, name):
    """(barriers that were missed, barriers)"""
    text = (KERNELS / f"{name}.hpp").read_text()
    barriers = list(BARRIER.finditer(text))
    if not barriers:
        return 0, 0
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        header = scratch / "backends" / "cuda" / f"{name}.hpp"
        header.parent.mkdir(parents=True)
        test = Test(build, name, scratch)
        header.write_text(text)
        whole = test.run()
        if whole is None or whole.returncode:
            sys.exit(f"{name}: fails with all its barriers\n{whole.stdout if whole else ''}")
        for barrier in barriers:
            place = f"{name}.hpp:{text.count(chr(10), 0, barrier.start()) + 1}"
            header.write_text(text[:barrier.start()] + "static_cast<void>(0)" + text[barrier.end():])
            result = test.run()
            found = FINDING.search(result.stdout) if result is not None and result.returncode else None
            missed += found is not None
            print(f"{place}: missed ({found.group(0).strip()})" if found else f"{place}: NOT MISSED", flush=True)
    return missed, len(barriers)


def main():
    build = Path(sys.argv[1]).resolve()
    names = sys.argv[2:] or sorted(p.stem for p in KERNELS.glob("*.hpp") if p.stem != "kernel")
    counts = [check(build, name) for name in names]
    missed, barriers = (sum(column) for column in zip(*counts))
    print(f"{missed} of {barriers} barriers are missed when they are gone")
    return 0 if missed == barriers > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
