# SPDX-License-Identifier: Apache-2.0
"""What several operators draw. Small shapes; ids that repeat, are negative, or out of range often.

Hypothesis draws seeds; a generator turns each into a case. (Drawn number by number, most cases of a short run
are empty or copies of one another.) A failure names the seed: generator(Draw(seed)) is the case.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from support import KV_DTYPES, WAYS

ways = st.sampled_from(WAYS)
threads = st.sampled_from((1, 3))

FAR = {"int32": (2**31 - 1, -(2**31)), "int64": (2**31, 2**40, 2**63 - 1, -(2**63))}


def drawn(generator: Callable[..., Any], *args: Any) -> st.SearchStrategy[Any]:
    return st.integers(0, 2**32 - 1).map(lambda seed: generator(Draw(seed), *args))


class Draw(random.Random):
    def flag(self, chance: float = 0.5) -> bool:
        return self.random() < chance

    def size(self, most: int, empty: float = 0.07) -> int:
        """1 to most, seldom 0."""
        return 0 if self.flag(empty) else self.randint(1, most)

    def layout(self) -> int:
        """A seed of support.buffer; 0 is dense."""
        return 0 if self.flag(0.2) else self.randrange(1, 100000)

    def dtype(self) -> str:
        return self.choice(KV_DTYPES)

    def index_dtype(self) -> str:
        return self.choice(("int32", "int64"))

    def policy(self) -> str:
        return self.choice(("default", "report", "reject"))

    def ids(self, n: int, limit: int, dtype: str, dirty: float = 0.25) -> list[int]:
        """Indices below `limit`, but for the share `dirty`; they repeat."""
        bad = (-1, -1, limit, limit + 1, -2, *FAR[dtype])
        return [
            self.choice(bad) if limit <= 0 or self.flag(dirty) else self.randrange(limit) for _ in range(n)
        ]
