# SPDX-License-Identifier: Apache-2.0
"""What the operators take for a tensor."""

from typing import Any, Protocol


class Tensor(Protocol):
    """A NumPy array (ml_dtypes too), or any object that offers its memory by DLPack: torch, JAX, CuPy, ..."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
