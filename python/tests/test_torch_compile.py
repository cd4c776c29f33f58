# SPDX-License-Identifier: Apache-2.0
"""torch.compile(fullgraph=True) runs the operators in place: no clone, no copy back, no second cache.

What counts is the code that Inductor makes: every buffer that it allocates is an empty_strided there. The
forms that do cost a cache are here too, each beside the one that does not.
"""

from __future__ import annotations

import math
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._functorch import config as functorch_config  # noqa: E402
from torch._inductor import config  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402

import kvferry.torch  # noqa: E402, F401

ops = torch.ops.kvferry
BLOCKS, SIZE, HEADS, DIM, LAYERS = 16, 4, 2, 16, 3
CACHE = BLOCKS * SIZE * HEADS * DIM
SLOTS = torch.tensor([0, 5, 9])
TABLES = torch.tensor([[0, 1, 2]])
LENS = torch.tensor([12])
PAIRS = torch.tensor([[0, 3], [1, 4]])
counted = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the copies of these forms were counted with torch 2.13"
)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """No graph of another test or another run, which another version of the operators may have been part of."""
    torch._dynamo.reset()
    with config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        yield


def compile_and_run(function: Callable[..., Any], *args: Any) -> tuple[Any, list[int], str]:
    """The result, the sizes of the buffers that hold a cache or more, and the code."""
    result, modules = run_and_get_code(torch.compile(function, fullgraph=True), *args)
    code = "\n".join(modules)
    sizes = [
        math.prod(int(n) for n in shape.split(",") if n.strip())
        for shape in re.findall(r"= empty_strided_cpu\(\(([^)]*)\)", code)
    ]
    return result, [size for size in sizes if size >= CACHE], code


def is_in_place(code: str) -> bool:
    return re.search(r"clone|copy_(?!blocks)", code) is None


def new_tokens(seed: int = 0) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    shape = (SLOTS.numel(), HEADS, DIM)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def whole(key: Any, value: Any, slots: Any, caches: Any) -> None:
    ops.scatter_pa_kv_cache(key, value, caches[0], caches[1], slots)


def unbound(key: Any, value: Any, slots: Any, caches: Any) -> None:
    ops.scatter_pa_kv_cache(key, value, *caches.unbind(0), slots)


def interleaved(key: Any, value: Any, slots: Any, caches: Any) -> None:
    ops.scatter_pa_kv_cache(key, value, caches[:, 0], caches[:, 1], slots)


def heads_first(key: Any, value: Any, slots: Any, caches: Any) -> None:
    ops.scatter_pa_kv_cache(key, value, caches[0].transpose(1, 2), caches[1].transpose(1, 2), slots)


def layers(key: Any, value: Any, slots: Any, caches: Any) -> Any:
    """What a model does: each layer writes its tokens and reads them back, the next depends on it."""
    for layer in caches:
        ops.scatter_pa_kv_cache(key, value, layer[0], layer[1], slots)
        gathered = [key.new_empty(12, HEADS, DIM) for _ in range(2)]
        ops.gather_pa_kv_cache(layer[0], layer[1], TABLES, LENS, *gathered)
        key = gathered[1][: key.shape[0]]
    return key


def blocks(key: Any, value: Any, slots: Any, caches: Any) -> None:
    ops.copy_blocks([half for layer in caches for half in layer.unbind(0)], PAIRS)


def transferred(key: Any, value: Any, slots: Any, caches: Any) -> None:
    pools = [layer[0] for layer in caches]
    ops.swap_blocks(pools[:1], pools[1:2], PAIRS)
    chunk = key.new_empty(2, 2, 1, SIZE, HEADS, DIM)
    ops.transfer_layers(pools[:2], None, chunk, PAIRS[0])
    ops.transfer_layers([pools[2], caches[2][1]], None, chunk, PAIRS[1], direction="chunk_to_pools")


def pool(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


NORM, HND = (BLOCKS, SIZE, HEADS, DIM), (BLOCKS, HEADS, SIZE, DIM)
FORMS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "two inputs": (whole, lambda: [pool(*NORM), pool(*NORM)]),
    "slices of an input": (whole, lambda: pool(2, *NORM)),
    "unbind": (unbound, lambda: pool(2, *NORM)),
    "K and V of a block side by side": (interleaved, lambda: pool(BLOCKS, 2, *NORM[1:])),
    "heads first": (heads_first, lambda: pool(2, *HND)),
    "layers of their own": (layers, lambda: [pool(2, *NORM) for _ in range(LAYERS)]),
    "layers of one tensor": (layers, lambda: pool(LAYERS, 2, *NORM)),
    "blocks of all layers": (blocks, lambda: pool(LAYERS, 2, *NORM)),
    "between pools of one tensor": (transferred, lambda: pool(LAYERS, 2, *NORM)),
}


@pytest.mark.parametrize("form", FORMS)
def test_in_place(form: str) -> None:
    function, make = FORMS[form]
    caches, expected, untouched = make(), make(), make()
    tensors, others, olds = (x if isinstance(x, list) else [x] for x in (caches, expected, untouched))
    before = [tensor.data_ptr() for tensor in tensors]
    wanted = function(*new_tokens(), SLOTS, expected)
    result, large, code = compile_and_run(function, *new_tokens(), SLOTS, caches)
    assert [tensor.data_ptr() for tensor in tensors] == before
    for tensor, other, old in zip(tensors, others, olds, strict=True):
        assert torch.equal(tensor, other) and not torch.equal(tensor, old)
    assert wanted is None or torch.equal(result, wanted)
    assert large == [] and is_in_place(code), code
    assert "torch.ops.kvferry." in code


def test_in_place_with_kernels_around() -> None:
    def step(key: Any, value: Any, caches: Any) -> Any:
        ops.scatter_pa_kv_cache(key * 2, value + 1, caches[0], caches[1], SLOTS)
        return caches[0].sum()

    caches = torch.zeros(2, *NORM)
    key, value = new_tokens()
    total, large, code = compile_and_run(step, key, value, caches)
    assert torch.equal(caches[1].flatten(0, 1)[SLOTS], value + 1)
    torch.testing.assert_close(total, (key * 2).sum())
    assert large == [] and is_in_place(code), code


def read_then_write(key: Any, value: Any, caches: Any) -> Any:
    before = caches[0].sum()
    ops.scatter_pa_kv_cache(key, value, caches[0], caches[1], SLOTS)
    return before + caches[0].sum()


@counted
def test_a_read_before_a_write_that_is_used_after_it_clones() -> None:
    """Inductor moves the read to where its result is used, behind the write: it must keep the old cache."""
    key, value = new_tokens()
    caches = torch.zeros(2, *NORM)
    _, large, code = compile_and_run(read_then_write, key, value, caches)
    assert large == [2 * CACHE] and not is_in_place(code)
    torch._dynamo.reset()
    with config.patch(reorder_for_locality=False):
        _, large, code = compile_and_run(read_then_write, key, value, caches)
    assert large == [] and is_in_place(code), code


def test_a_gather_before_a_write_does_not_clone() -> None:
    def step(key: Any, value: Any, caches: Any) -> Any:
        rows = [key.new_empty(12, HEADS, DIM) for _ in range(2)]
        ops.gather_pa_kv_cache(caches[0], caches[1], TABLES, LENS, *rows)
        ops.scatter_pa_kv_cache(key, value, caches[0], caches[1], SLOTS)
        return rows[0], rows[1]

    caches = pool(2, *NORM)
    before = caches.clone()
    rows, large, code = compile_and_run(step, *new_tokens(), caches)
    assert torch.equal(rows[0], before[0, :3].flatten(0, 1))
    assert large == [] and is_in_place(code), code


@counted
def test_a_slice_made_outside_of_the_graph_clones() -> None:
    """An input behind the start of its storage is functionalised as a view of all of it, and stays so."""
    key, value = new_tokens()
    caches = torch.zeros(2, *NORM)
    _, large, code = compile_and_run(whole, key, value, SLOTS, list(caches))
    assert torch.equal(caches[1].flatten(0, 1)[SLOTS], value)
    assert large == [2 * CACHE] and not is_in_place(code)


@counted
def test_a_view_of_another_dtype_inside_the_graph_copies() -> None:
    def inside(key: Any, value: Any, raw: Any) -> None:
        caches = raw.view(torch.float32)
        ops.scatter_pa_kv_cache(key, value, caches[0], caches[1], SLOTS)

    key, value = new_tokens()
    raw = torch.zeros(2, *NORM[:-1], DIM * 4, dtype=torch.uint8)
    _, _, code = compile_and_run(inside, key, value, raw)
    assert torch.equal(raw.view(torch.float32)[0].flatten(0, 1)[SLOTS], key)
    assert not is_in_place(code)
    torch._dynamo.reset()
    _, large, code = compile_and_run(
        lambda k, v, c: whole(k, v, SLOTS, c), key, value, raw.view(torch.float32)
    )
    assert large == [] and is_in_place(code), code


def clones(backend: str, caches: Any) -> int:
    compiled = torch.compile(whole, fullgraph=True, backend=backend)
    key, value = new_tokens()
    compiled(key, value, SLOTS, caches)
    with torch.profiler.profile() as profile:
        compiled(key, value, SLOTS, caches)
    assert torch.equal(caches[0].flatten(0, 1)[SLOTS], key)
    return sum(event.name in ("aten::clone", "aten::copy_") for event in profile.events())


def test_backend_eager_does_not_clone() -> None:
    assert clones("eager", torch.zeros(2, *NORM)) == 0


@counted
def test_backend_aot_eager_clones() -> None:
    """It functionalises and does not go back: a clone and a copy of what the caches are slices of."""
    assert clones("aot_eager", torch.zeros(2, *NORM)) > 0


def test_group_memcpy_is_kept_in_order() -> None:
    """A chain of copies through memory that the graph knows nothing of, of which it uses no result."""
    a, b, c = torch.arange(16.0), torch.zeros(16), torch.zeros(16)
    first, second = (torch.tensor([[x.data_ptr(), y.data_ptr()]]) for x, y in ((a, b), (b, c)))

    def chain(first: Any, second: Any, x: Any) -> Any:
        ops.group_memcpy(first, 64)
        ops.group_memcpy(second, 64)
        return x.view(4, 4)

    _, _, code = compile_and_run(chain, first, second, torch.zeros(16))
    assert code.count("torch.ops.kvferry.group_memcpy.default(") == 2
    assert torch.equal(b, a) and torch.equal(c, a)
    for backend in ("eager", "aot_eager"):
        b.zero_(), c.zero_()
        torch.compile(chain, fullgraph=True, backend=backend)(first, second, torch.zeros(16))
        assert torch.equal(b, a) and torch.equal(c, a)


@counted
def test_group_memcpy_does_not_wait_for_tensors_behind_its_addresses() -> None:
    """Why a graph must not touch them otherwise: this copy runs before the write that it should carry on."""
    source, destination = torch.ones(16), torch.zeros(16)
    table = torch.tensor([[source.data_ptr(), destination.data_ptr()]])

    def write_and_copy(table: Any, source: Any) -> None:
        source.mul_(3)
        ops.group_memcpy(table, 64)

    compile_and_run(write_and_copy, table, source)
    assert source.eq(3).all() and destination.eq(1).all()


def test_dynamic_sizes_compile_once() -> None:
    def read(key_cache: Any, value_cache: Any, tables: Any, lens: Any, count: Any) -> Any:
        return ops.gather_pa_kv_cache_functional(key_cache, value_cache, tables, lens, count.shape[0])

    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(read, fullgraph=True, dynamic=True, backend="aot_eager")
    key_cache, value_cache = pool(*NORM), pool(*NORM)
    for count in (5, 7, 9):
        tables, lens = torch.zeros(count, 2, dtype=torch.int64), torch.ones(count, dtype=torch.int64)
        key, _ = compiled(key_cache, value_cache, tables, lens, torch.zeros(count))
        assert torch.equal(key, key_cache[0, 0].expand(count, HEADS, DIM))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_grad_is_refused_while_compiling() -> None:
    key, value = new_tokens()
    compiled = torch.compile(whole, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="key requires grad"):
        compiled(key.requires_grad_(), value, SLOTS, torch.zeros(2, *NORM))


def test_example() -> None:
    path = Path(__file__).parents[2] / "examples" / "python" / "torch_compile.py"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    runpy.run_path(str(path), run_name="__main__")


PEAK = """
import sys, torch
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_torch_compile import new_tokens, read_then_write, SLOTS, whole

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10

key, value = new_tokens()
steps = [torch.compile(lambda k, v, c: whole(k, v, SLOTS, c)), torch.compile(read_then_write)]
for step in steps:  # the compiler's own memory
    step(key, value, torch.zeros(2, 16, 4, 2, 16))
caches = torch.ones(2, 128 << 7, 64, 2, 16)  # 256 MiB
seen = [peak()]
for step in steps:
    step(key, value, caches)
    seen.append(peak())
print(seen[1] - seen[0], seen[2] - seen[1])
"""


@counted
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status")
def test_peak_memory() -> None:
    script = PEAK.format(tests=str(Path(__file__).parent))
    environment = {**os.environ, "TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    in_place, cloned = map(int, done.stdout.split())
    print(f"growth of the peak, MiB: {in_place} in place, {cloned} with a clone")
    assert in_place < 64 and cloned > 200, (in_place, cloned)
