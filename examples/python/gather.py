# SPDX-License-Identifier: Apache-2.0
"""The first call: two sequences of a paged pool to contiguous keys and values."""

# [gather]
import numpy as np

import kvferry

# A pool of 64 blocks of 16 tokens, 8 heads of 128; two sequences of 40 and 16 tokens in scattered blocks.
key_pool, value_pool = np.random.default_rng(0).random((2, 64, 16, 8, 128)).astype(np.float16)
tables = np.array([[7, 3, 41], [12, -1, -1]], np.int32)
lens = np.array([40, 16], np.int32)
key, value = np.empty((2, 56, 8, 128), np.float16)

kvferry.gather_pa_kv_cache(key_pool, value_pool, tables, lens, key, value, index_policy="reject")

# Check once, run for every layer.
plan = kvferry.plan_gather_pa_kv_cache(key_pool, value_pool, tables, lens, key, value)
plan.run(key_pool, value_pool, tables, lens, key, value)
# [gather]

assert np.array_equal(key[:16], key_pool[7]) and np.array_equal(value[40:], value_pool[12])
print(f"{plan.op} by {plan.implementation}: ok")
