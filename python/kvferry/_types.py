# SPDX-License-Identifier: Apache-2.0
"""What the operators take for a tensor."""

from collections.abc import Sequence
from typing import Any, Protocol


class Tensor(Protocol):
    """A NumPy array (ml_dtypes too), or any object that offers its memory by DLPack: torch, JAX, CuPy, ..."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


class _StreamOfCuda(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...


class _StreamOfTorch(Protocol):
    @property
    def cuda_stream(self) -> int: ...


class _StreamOfCuPy(Protocol):
    @property
    def ptr(self) -> int: ...


CudaStream = _StreamOfCuda | _StreamOfTorch | _StreamOfCuPy


class Array(Tensor, Protocol):
    """A tensor of a library that makes new ones like it: NumPy, torch, JAX, CuPy."""

    @property
    def shape(self) -> Sequence[int]: ...
