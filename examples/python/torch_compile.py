# SPDX-License-Identifier: Apache-2.0
"""A decode step over two layers, compiled: tokens into paged caches, the sequence out of them, attention."""

from __future__ import annotations

import torch

import kvferry.compat.vllm
import kvferry.torch  # noqa: F401

LAYERS, BLOCKS, BLOCK_SIZE, HEADS, DIM = 2, 16, 4, 2, 16
ops = torch.ops.kvferry


# [step]
def decode_step(
    x: torch.Tensor,
    caches: torch.Tensor,
    slot: torch.Tensor,
    table: torch.Tensor,
    lens: torch.Tensor,
    longest: int,
) -> torch.Tensor:
    for layer in caches:  # [K | V, blocks, block size, heads, head size]
        ops.scatter_pa_kv_cache(x * 0.5, x + 1, layer[0], layer[1], slot)
        rows = [x.new_empty(longest, HEADS, DIM) for _ in range(2)]
        ops.gather_pa_kv_cache(layer[0], layer[1], table, lens, rows[0], rows[1])
        key, value = (row.transpose(0, 1) for row in rows)
        x = torch.nn.functional.scaled_dot_product_attention(x.transpose(0, 1), key, value).transpose(0, 1)
    return x


compiled_step = torch.compile(decode_step, fullgraph=True)
# [step]


def raw_bytes(x: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """Caches that an engine keeps as bytes."""
    # [bytes]
    raw = torch.zeros(2, BLOCKS, BLOCK_SIZE, HEADS, DIM * 4, dtype=torch.uint8)
    caches = raw.view(torch.float32)  # outside of the graph: inside, it would be copied and copied back

    @torch.compile(fullgraph=True)
    def store(x: torch.Tensor, caches: torch.Tensor, slot: torch.Tensor) -> None:
        ops.scatter_pa_kv_cache(x, x, caches[0], caches[1], slot)

    store(x, caches, slot)
    # [bytes]
    return raw


def blocks_of(key_cache: torch.Tensor, value_cache: torch.Tensor) -> torch.Tensor:
    # [twin]
    chunk: torch.Tensor = ops.transfer_layers_functional([key_cache], [value_cache], torch.tensor([3, 1]))
    # [twin]
    return chunk


def main() -> None:
    torch.manual_seed(0)
    table, lens, longest = torch.tensor([[5, 2]]), torch.tensor([6]), 6
    slot = torch.tensor([2 * BLOCK_SIZE + 1])  # the sixth token: block 2, position 1
    caches = torch.randn(LAYERS, 2, BLOCKS, BLOCK_SIZE, HEADS, DIM)
    x, same = torch.randn(1, HEADS, DIM), caches.clone()
    expected = decode_step(x, same, slot, table, lens, longest)
    torch.testing.assert_close(compiled_step(x, caches, slot, table, lens, longest), expected)
    torch.testing.assert_close(caches, same)

    assert raw_bytes(x, slot).any()
    assert torch.equal(blocks_of(caches[0, 0], caches[0, 1])[0, 0, 1], caches[0, 1, 3])

    key, value, one = torch.randn(1, HEADS, DIM), torch.randn(1, HEADS, DIM), torch.ones(())
    key_cache, value_cache = caches[0]
    # [vllm]
    torch.ops._C_cache_ops.reshape_and_cache_flash(key, value, key_cache, value_cache, slot, "auto", one, one)
    # [vllm]
    assert torch.equal(key_cache[2, 1], key[0])
    print("the compiled step is the step")


if __name__ == "__main__":
    main()
