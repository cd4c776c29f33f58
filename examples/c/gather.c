// SPDX-License-Identifier: Apache-2.0
//
// Gathers two sequences out of the paged caches of two layers, and shows what an error looks like.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvferry/kvferry.h"

enum { kLayers = 2, kTokens = 5 };

static int failed(const char* what) {
  printf("%s: %s\n", what, kvferry_last_error_message());
  return 1;
}

// [tensor]
// A dense tensor of int32 in the CPU's memory. Inputs are only read, so the cast takes nothing from them.
static kvferry_tensor int32_tensor(const int32_t* data, int32_t ndim, const int64_t* shape) {
  const kvferry_tensor tensor = {
      .data = (void*)data,
      .device = {KVFERRY_DEVICE_CPU, 0},
      .ndim = ndim,
      .dtype = {KVFERRY_DTYPE_INT, 32, 1},
      .shape = shape,
  };
  return tensor;
}
// [tensor]

int main(void) {
  // Of each layer 4 blocks of 2 tokens; a token has 1 head of 2 elements.
  static int32_t caches[kLayers][4][2][1][2];
  int32_t gathered[kLayers][kTokens][1][2];
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int block = 0; block < 4; ++block) {
      for (int slot = 0; slot < 2; ++slot) {
        caches[layer][block][slot][0][0] = 100 * layer + 10 * block + slot;
        caches[layer][block][slot][0][1] = 0;
      }
    }
  }

  // [plan]
  // The first sequence has 3 tokens, in blocks 3 and 0; the second has 2, in block 1.
  const int32_t block_tables[2][2] = {{3, 0}, {1, -1}};
  const int32_t seq_lens[2] = {3, 2};
  const int64_t cache_shape[] = {4, 2, 1, 2}, table_shape[] = {2, 2}, lens_shape[] = {2};
  const int64_t key_shape[] = {kTokens, 1, 2};
  const kvferry_tensor cache = int32_tensor(caches[0][0][0][0], 4, cache_shape);
  const kvferry_tensor tables = int32_tensor(block_tables[0], 2, table_shape);
  const kvferry_tensor lens = int32_tensor(seq_lens, 1, lens_shape);
  const kvferry_tensor key = int32_tensor(gathered[0][0][0], 3, key_shape);
  // Keys alone, as of MLA: values without elements.
  const int64_t no_cache_shape[] = {4, 2, 1, 0}, no_value_shape[] = {kTokens, 1, 0};
  const kvferry_tensor no_cache = int32_tensor(NULL, 4, no_cache_shape);
  const kvferry_tensor no_value = int32_tensor(NULL, 3, no_value_shape);

  const kvferry_gather_pa_kv_cache_args args = {
      .struct_size = sizeof args,
      .key_cache = &cache,
      .value_cache = &no_cache,
      .block_tables = &tables,
      .seq_lens = &lens,
      .key = &key,
      .value = &no_value,
      .seq_lens_mode = KVFERRY_SEQ_LENS_COUNTS,
      .index_policy = KVFERRY_INDEX_POLICY_REJECT,  // while you debug
  };
  kvferry_context* context = NULL;
  if (kvferry_context_create(NULL, &context) != KVFERRY_OK) return failed("context");
  kvferry_plan* plan = NULL;
  if (kvferry_gather_pa_kv_cache_plan(&args, context, &plan) != KVFERRY_OK) return failed("plan");
  // [plan]

  // [run]
  // A plan holds no pointer to tensors: it serves every layer and step with these shapes.
  const int64_t workspace_bytes = kvferry_plan_workspace_bytes(plan);
  void* workspace = malloc((size_t)workspace_bytes);
  for (int layer = 0; layer < kLayers; ++layer) {
    const kvferry_gather_pa_kv_cache_buffers buffers = {
        .struct_size = sizeof buffers,
        .key_cache = caches[layer],
        .block_tables = block_tables,
        .seq_lens = seq_lens,
        .key = gathered[layer],
        .workspace = workspace,
        .workspace_bytes = workspace_bytes,
    };
    if (kvferry_gather_pa_kv_cache_run(plan, &buffers, context) != KVFERRY_OK) return failed("run");
  }
  // [run]
  free(workspace);
  kvferry_plan_destroy(plan);

  static const int32_t expected[kTokens] = {30, 31, 0, 10, 11};
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int token = 0; token < kTokens; ++token) {
      if (gathered[layer][token][0][0] == 100 * layer + expected[token]) continue;
      printf("layer %d, token %d: %d\n", layer, token, gathered[layer][token][0][0]);
      return 1;
    }
  }

  // [error]
  // The sequence of 3 tokens needs block 3, of which a cache of 3 blocks knows nothing.
  const int64_t small_shape[] = {3, 2, 1, 2};
  kvferry_tensor small = cache;
  small.shape = small_shape;
  kvferry_gather_pa_kv_cache_args wrong = args;
  wrong.key_cache = &small;
  if (kvferry_gather_pa_kv_cache(&wrong, context, NULL) == KVFERRY_INDEX)
    printf("%s\n", kvferry_last_error_message());
  // [error]
  if (strstr(kvferry_last_error_message(), "id 3") == NULL) return failed("expected a bad id");
  kvferry_context_destroy(context);
  printf("ok\n");
  return 0;
}
