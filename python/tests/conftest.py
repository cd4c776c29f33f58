# SPDX-License-Identifier: Apache-2.0
"""KVFERRY_HYPOTHESIS_EXAMPLES raises the number of examples of every property."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "kvferry",
    derandomize="KVFERRY_HYPOTHESIS_EXAMPLES" not in os.environ,
    deadline=None,
    max_examples=int(os.environ.get("KVFERRY_HYPOTHESIS_EXAMPLES", "400")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    print_blob=True,
)
settings.load_profile("kvferry")
