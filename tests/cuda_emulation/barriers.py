#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Deletes each barrier of each kernel header in turn and demands a finding of the kernel's emulated test.

barriers.py BUILD [KERNEL...]: BUILD is a build folder of Ninja in which the tests are built. The test of
src/backends/cuda/KERNEL.hpp is tests/cuda_emulation/KERNEL_test.cpp. Ends non-zero if a barrier is not missed.
"""
import json
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


def run(command, cwd):
    return subprocess.run(command, cwd=cwd, shell=isinstance(command, str), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)


class Test:
    """How the build compiles and links the test of a kernel, with another header in front."""

    def __init__(self, build, kernel, scratch):
        source = f"tests/cuda_emulation/{kernel}_test.cpp"
        self.build, self.object, self.program = build, scratch / "test.o", scratch / "test"
        entry = next(e for e in json.loads((build / "compile_commands.json").read_text()) if e["file"].endswith(source))
        self.compile = shlex.split(entry["command"])
        built = self.compile[self.compile.index("-o") + 1]
        self.compile[self.compile.index("-o") + 1] = str(self.object)
        self.compile.insert(1 + ("ccache" in self.compile[0]), f"-I{scratch}")
        link = run(["ninja", "-t", "commands", f"{kernel}_test"], build).stdout.strip().split("\n")[-1]
        program = re.search(r" -o (\S+) ", link).group(1)
        self.link = link.replace(built, str(self.object)).replace(f"-o {program}", f"-o {self.program}")

    def run(self):
        """None if it does not build, or the outcome."""
        for command in (self.compile, self.link):
            result = run(command, self.build)
            if result.returncode:
                print(result.stdout)
                return None
        return run([str(self.program), "--gtest_brief=1", "--gtest_fail_fast"], self.build)


def check(build, kernel):
    """(barriers that were missed, barriers)"""
    text = (KERNELS / f"{kernel}.hpp").read_text()
    barriers = list(BARRIER.finditer(text))
    if not barriers:
        return 0, 0
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        header = scratch / "backends" / "cuda" / f"{kernel}.hpp"
        header.parent.mkdir(parents=True)
        test = Test(build, kernel, scratch)
        header.write_text(text)
        whole = test.run()
        if whole is None or whole.returncode:
            sys.exit(f"{kernel}: fails with all its barriers\n{whole.stdout if whole else ''}")
        for barrier in barriers:
            place = f"{kernel}.hpp:{text.count(chr(10), 0, barrier.start()) + 1}"
            header.write_text(text[:barrier.start()] + "static_cast<void>(0)" + text[barrier.end():])
            result = test.run()
            found = FINDING.search(result.stdout) if result is not None and result.returncode else None
            missed += found is not None
            print(f"{place}: missed ({found.group(0).strip()})" if found else f"{place}: NOT MISSED", flush=True)
    return missed, len(barriers)


def main():
    build = Path(sys.argv[1]).resolve()
    kernels = sys.argv[2:] or sorted(p.stem for p in KERNELS.glob("*.hpp") if p.stem != "kernel")
    counts = [check(build, kernel) for kernel in kernels]
    missed, barriers = (sum(column) for column in zip(*counts))
    print(f"{missed} of {barriers} barriers are missed when they are gone")
    return 0 if missed == barriers > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
