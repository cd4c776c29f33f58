#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants each defect of mutants.py in a copy of the sources, builds, and demands that a test fails.

run.py [-k TEXT]: only the defects whose name contains TEXT. Ends non-zero if one survives, does not apply or does not
build. The copy and its build folder stay in build/mutants, so that a second run compiles little.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutants" / "source"
BUILD = ROOT / "build" / "mutants" / "build"
JOBS = str(os.cpu_count() or 1)
TEST_SECONDS = 600  # a defect that hangs is caught too


ENVIRONMENT = {**os.environ, "GTEST_FAIL_FAST": "1"}  # one failure is enough


def run(*command, timeout=None):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
                          env=ENVIRONMENT)


def copy_sources():
    """Only what changed, so that the build stays incremental."""
    listed = run("git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard").stdout.split("\n")
    for name in filter(None, listed):
        source, target = ROOT / name, COPY / name
        if not source.is_file():
            continue
        if target.exists() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        shutil.copymode(source, target)


def build():
    result = run("cmake", "--build", str(BUILD), "-j", JOBS)
    return result.stdout if result.returncode else None


def failing_test(tests):
    """Name of the first test that fails, or None."""
    command = ["ctest", "--test-dir", str(BUILD), "-LE", "long|script", "--stop-on-failure", "--no-tests=error"]
    try:
        result = run(*command, *(["-R", tests] if tests else []), timeout=TEST_SECONDS)
    except subprocess.TimeoutExpired:
        return "time limit"
    if result.returncode == 0:
        return None
    names = re.findall(r"^\s+\d+ - (\S+) \(", result.stdout, re.M)
    return names[0] if names else "ctest: " + result.stdout.strip().split("\n")[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only defects whose name contains this")
    wanted = parser.parse_args().k
    chosen = [m for m in MUTANTS if wanted in m.name]
    if not chosen:
        sys.exit(f"no defect has '{wanted}' in its name")

    copy_sources()
    configured = run("cmake", "-S", str(COPY), "-B", str(BUILD), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                     "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g0")
    if configured.returncode:
        sys.exit(configured.stdout)
    print("building without a defect", flush=True)
    if error := build():
        sys.exit(error)
    if not wanted and (test := failing_test("")):
        sys.exit(f"without a defect, {test} fails")

    caught, problems = 0, []
    for mutant in chosen:
        path, start = COPY / mutant.file, time.monotonic()
        original = path.read_text()
        pattern = r"\s+".join(map(re.escape, mutant.find.split()))  # whatever the formatter did
        changed, found = re.subn(pattern, lambda _, text=mutant.replace: text, original)
        if found != 1:
            problems.append(f"{mutant.name}: its text occurs {found} times in {mutant.file}")
            print(problems[-1], flush=True)
            continue
        path.write_text(changed)
        try:
            if error := build():
                problems.append(f"{mutant.name}: does not build\n{error}")
            else:
                test = failing_test(mutant.tests) or (failing_test("") if mutant.tests else None)
                if test:
                    caught += 1
                    print(f"caught    {mutant.name} (by {test}, {time.monotonic() - start:.0f} s)", flush=True)
                    continue
                problems.append(f"SURVIVED  {mutant.name}")
            print(problems[-1], flush=True)
        finally:
            path.write_text(original)
    build()
    print("\n".join(problems))
    print(f"{caught} passed, {len(problems)} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
