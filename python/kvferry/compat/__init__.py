# SPDX-License-Identifier: Apache-2.0
"""Operators under the names that other libraries gave them. Each module registers its own when imported."""
