# SPDX-License-Identifier: Apache-2.0
"""KVFERRY_HYPOTHESIS_EXAMPLES raises the number of examples of every property. With KVFERRY_REQUIRE_TORCH=1 (CI) it
is an error that there is no torch, and not a skip."""

from __future__ import annotations

import importlib.util
import os

import pytest
from hypothesis import HealthCheck, settings

if os.environ.get("KVFERRY_REQUIRE_TORCH") == "1" and importlib.util.find_spec("torch") is None:
    raise pytest.UsageError("KVFERRY_REQUIRE_TORCH=1, and this Python has no torch")

settings.register_profile(
    "kvferry",
    derandomize="KVFERRY_HYPOTHESIS_EXAMPLES" not in os.environ,
    deadline=None,
    max_examples=int(os.environ.get("KVFERRY_HYPOTHESIS_EXAMPLES", "400")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    print_blob=True,
)
settings.load_profile("kvferry")
