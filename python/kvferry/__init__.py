# SPDX-License-Identifier: Apache-2.0
"""Operators that move KV caches of LLM inference."""

from kvferry._core import *  # noqa: F403
