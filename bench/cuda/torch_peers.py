# SPDX-License-Identifier: Apache-2.0
"""The gathers and scatters of kvferry_cuda_bench by PyTorch: index_select and index_copy_ of what they move.

Reads the rows that `kvferry_cuda_bench --list` prints and, where it is there, its table for ratios. Exits with 77 where
there is no PyTorch with CUDA.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

SAMPLES = 25
FLUSH_BYTES = 512 << 20
POOL_BYTES = 128 << 20
NO_TORCH = 77


def number(text: str) -> int:
    """Integers as the benchmark reads them: k and M are powers of 1024."""
    unit = {"k": 1 << 10, "M": 1 << 20}.get(text[-1:])
    return int(text[:-1]) * unit if unit else int(text)


def parse(problem: str) -> tuple[str, dict[str, str]]:
    """The kind of a problem and its keys."""
    kind, _, rest = problem.partition(":")
    return kind, dict(item.split("=", 1) for item in rest.split(",") if item)


def why_not(kind: str, keys: dict[str, str]) -> str:
    """Why PyTorch has no one call for this problem; empty if it has."""
    if kind not in ("gather", "scatter"):
        return f"no peer for {kind}"
    if keys.get("layout", "nd") != "nd":
        return "only of blocks with whole tokens"
    if keys.get("cache") == "host":
        return "index_select does not read memory of the host"
    if number(keys.get("skew", "0")):
        return "only of whole blocks"
    return ""


def calls(torch, kind: str, keys: dict[str, str]) -> list:
    """A call for each of K and V."""
    row = number(keys.get("row", "2048"))
    sides = 2 if number(keys.get("v", "1")) else 1
    generator = torch.Generator().manual_seed(3)

    def pool(rows: int, width: int):
        return torch.randint(0, 1 << 15, (rows, width // 2), dtype=torch.int16, device="cuda")

    made = []
    if kind == "gather":
        block = number(keys.get("bs", "16"))
        length = number(keys.get("len", "1k"))
        used = number(keys.get("b", "8")) * ((length + block - 1) // block)
        blocks = max(used, POOL_BYTES // (block * row))
        ids = torch.randperm(blocks, generator=generator)[:used].to("cuda")
        for _ in range(sides):
            cache = pool(blocks, block * row)
            to = torch.empty((used, block * row // 2), dtype=cache.dtype, device="cuda")
            made.append(lambda cache=cache, to=to: torch.index_select(cache, 0, ids, out=to))
    else:
        tokens = number(keys.get("tokens", "8k"))
        slots = max(2 * tokens, POOL_BYTES // row)
        ids = torch.randperm(slots, generator=generator)[:tokens].to("cuda")
        for _ in range(sides):
            cache, rows = pool(slots, row), pool(tokens, row)
            made.append(lambda cache=cache, rows=rows: cache.index_copy_(0, ids, rows))
    return made


def measure(torch, each: list, repeats: int, flush) -> float:
    """Median microseconds of one call, the L2 cache flushed before each sample of a single one."""
    samples = []
    for sample in range(SAMPLES + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.fill_(sample % 128)
        if repeats > 1:
            for call in each:
                call()
        begin.record()
        for _ in range(repeats):
            for call in each:
                call()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / repeats)
    return statistics.median(samples[2:])


def main() -> int:
    """Times every row and writes the table again after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--ours", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"skipped: torch: {error}")
        return NO_TORCH
    if not torch.cuda.is_available():
        print("skipped: torch: no CUDA device for it")
        return NO_TORCH

    ours = {}
    if arguments.ours and arguments.ours.exists():
        for row in json.loads(arguments.ours.read_text())["rows"]:
            if "variants" in row:
                ours[row["name"]] = row["variants"]["kvferry"]["us"]
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    table = []
    for line in arguments.rows.read_text().splitlines():
        name, problem = line.split("\t")
        kind, keys = parse(problem)
        row = {"name": name, "problem": problem}
        if reason := why_not(kind, keys):
            row["skipped"] = reason
        else:
            row["us"] = measure(torch, calls(torch, kind, keys), number(keys.get("calls", "1")), flush)
            if name in ours:
                row["over_ours"] = row["us"] / ours[name]
        table.append(row)
        arguments.out.write_text(json.dumps({"torch": torch.__version__, "rows": table}, indent=1) + "\n")
    print(f"{sum('us' in row for row in table)} rows by PyTorch {torch.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
