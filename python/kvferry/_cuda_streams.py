# SPDX-License-Identifier: Apache-2.0
"""What the extension asks of frameworks about CUDA streams. Streams are addresses, 0 is CUDA's default stream."""

from __future__ import annotations

import importlib


def torch_stream(device: int) -> int:
    """The stream that torch launches on; of versions that do not tell it through DLPack."""
    torch = importlib.import_module("torch")
    stream: int = torch.cuda.current_stream(device).cuda_stream
    return stream


def cupy_stream(device: int) -> int:
    """The stream that CuPy launches on."""
    cupy = importlib.import_module("cupy")
    stream: int = cupy.cuda.get_current_stream(device).ptr
    return stream


def wait_for_torch(device: int, stream: int) -> None:
    """Puts `stream` behind everything that torch's current stream holds."""
    torch = importlib.import_module("torch")
    waiting = (
        torch.cuda.ExternalStream(stream, device=device) if stream else torch.cuda.default_stream(device)
    )
    waiting.wait_stream(torch.cuda.current_stream(device))
