// SPDX-License-Identifier: Apache-2.0
//
// What capi_test.c checks with, and on: a valid call of each operator and its result by plain loops.
#ifndef KVFERRY_TESTS_CAPI_EXAMPLES_H
#define KVFERRY_TESTS_CAPI_EXAMPLES_H

#include <stdio.h>
#include <stdlib.h>

#include "kvferry/kvferry.h"

// ---- Checks

static int failures;  // of the test that runs

static void check(int condition, const char* text, int line) {
  if (condition) return;
  ++failures;
  printf("%s:%d: %s\n  last error: %s\n", __FILE__, line, text, kvferry_last_error_message());
}
#define CHECK(condition) check((condition) != 0, #condition, __LINE__)

// The call failed with this status, and its message has this text.
static void check_refused(kvferry_status seen, kvferry_status expected, const char* part, int line) {
  check(seen == expected, kvferry_status_name(seen), line);
  check(strstr(kvferry_last_error_message(), part) != NULL, part, line);
}
#define CHECK_REFUSED(call, status, part) check_refused(call, status, part, __LINE__)

// ---- Examples: a valid call of each operator, its result by plain loops

typedef struct {
  int op;
  kvferry_status (*plan)(const void* args, const kvferry_context* context, kvferry_plan** plan);
  kvferry_status (*run)(const kvferry_plan* plan, const void* buffers, const kvferry_context* context);
  kvferry_status (*once)(const void* args, const kvferry_context* context, kvferry_error_record* record);
  void (*make)(void);   // operands, outputs as they are before the call, and what is expected of them
  void (*spoil)(void);  // makes an entry of an index tensor bad
  void* args;
  void* buffers;
  void** workspace;  // members of buffers
  int64_t* workspace_bytes;
  kvferry_error_record** record;  // null: the operator has none
  const void* out;                // all that is written
  const void* expected;
  size_t out_bytes;
  int64_t* policy;  // a member of args, and its value for "refuse"
  int64_t reject;
  kvferry_error_record bad;  // what the bad entry leaves in a record
} example;

// Functions of one operator with the structs as void.
#define OPERATOR(op)                                                                                       \
  static kvferry_status op##_plan(const void* args, const kvferry_context* context, kvferry_plan** plan) { \
    return kvferry_##op##_plan(args, context, plan);                                                       \
  }                                                                                                        \
  static kvferry_status op##_run(const kvferry_plan* plan, const void* buffers,                            \
                                 const kvferry_context* context) {                                         \
    return kvferry_##op##_run(plan, buffers, context);                                                     \
  }
#define OPERATOR_WITH_RECORD(op)                                              \
  OPERATOR(op)                                                                \
  static kvferry_status op##_once(const void* args, const kvferry_context* c, \
                                  kvferry_error_record* record) {             \
    return kvferry_##op(args, c, record);                                     \
  }
OPERATOR_WITH_RECORD(gather_pa_kv_cache)
OPERATOR_WITH_RECORD(scatter_pa_kv_cache)
OPERATOR_WITH_RECORD(gather_selection_kv_cache)
OPERATOR_WITH_RECORD(copy_blocks)
OPERATOR_WITH_RECORD(swap_blocks)
OPERATOR_WITH_RECORD(transfer_layers)
OPERATOR_WITH_RECORD(gather_dequant)
OPERATOR(group_memcpy)
static kvferry_status group_memcpy_once(const void* args, const kvferry_context* context,
                                        kvferry_error_record* record) {
  (void)record;
  return kvferry_group_memcpy(args, context);
}

static kvferry_tensor tensor(const void* data, int code, int bits, int ndim, const int64_t* shape) {
  kvferry_tensor t;
  memset(&t, 0, sizeof t);
  t.data = (void*)(uintptr_t)data;
  t.device.type = KVFERRY_DEVICE_CPU;
  t.ndim = ndim;
  t.dtype.code = (uint8_t)code;
  t.dtype.bits = (uint8_t)bits;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}
static kvferry_tensor bytes(const void* data, int ndim, const int64_t* shape) {
  return tensor(data, KVFERRY_DTYPE_UINT, 8, ndim, shape);
}
static kvferry_tensor ids64(const void* data, int ndim, const int64_t* shape) {
  return tensor(data, KVFERRY_DTYPE_INT, 64, ndim, shape);
}
static kvferry_tensor ids32(const void* data, int ndim, const int64_t* shape) {
  return tensor(data, KVFERRY_DTYPE_INT, 32, ndim, shape);
}
static void fill(void* data, size_t count, size_t first) {
  for (size_t i = 0; i < count; ++i) ((uint8_t*)data)[i] = (uint8_t)(first + i * 7 + i / 251);
}

// gather_pa_kv_cache: sequences of 3 and 2 tokens in blocks of 2, keys of 6 bytes, values of 5, and a row
// that nobody writes.
static struct {
  kvferry_gather_pa_kv_cache_args args;
  kvferry_gather_pa_kv_cache_buffers buffers;
  uint16_t key_cache[4 * 2 * 3];
  uint8_t value_cache[4 * 2 * 5];
  int64_t table[2 * 2], lens[2];
  struct {
    uint16_t key[6 * 3];
    uint8_t value[6 * 5];
  } out, expected;
  kvferry_tensor tensors[6];
} gather;

static void make_gather(void) {
  static const int64_t shapes[6][4] = {{4, 2, 1, 3}, {4, 2, 1, 5}, {2, 2}, {2}, {6, 1, 3}, {6, 1, 5}};
  static const int64_t table[4] = {3, 0, 1, -1};
  memset(&gather, 0, sizeof gather);
  fill(gather.key_cache, sizeof gather.key_cache, 3);
  fill(gather.value_cache, sizeof gather.value_cache, 90);
  memcpy(gather.table, table, sizeof table);
  gather.lens[0] = 3;
  gather.lens[1] = 2;
  int64_t row = 0;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < gather.lens[b]; ++t, ++row) {
      const int64_t token = table[b * 2 + t / 2] * 2 + t % 2;
      memcpy(gather.expected.key + row * 3, gather.key_cache + token * 3, 6);
      memcpy(gather.expected.value + row * 5, gather.value_cache + token * 5, 5);
    }
  }
  gather.tensors[0] = tensor(gather.key_cache, KVFERRY_DTYPE_BFLOAT, 16, 4, shapes[0]);
  gather.tensors[1] = bytes(gather.value_cache, 4, shapes[1]);
  gather.tensors[2] = ids64(gather.table, 2, shapes[2]);
  gather.tensors[3] = ids64(gather.lens, 1, shapes[3]);
  gather.tensors[4] = tensor(gather.out.key, KVFERRY_DTYPE_BFLOAT, 16, 3, shapes[4]);
  gather.tensors[5] = bytes(gather.out.value, 3, shapes[5]);
  gather.args = (kvferry_gather_pa_kv_cache_args){
      .struct_size = sizeof gather.args,
      .key_cache = &gather.tensors[0],
      .value_cache = &gather.tensors[1],
      .block_tables = &gather.tensors[2],
      .seq_lens = &gather.tensors[3],
      .key = &gather.tensors[4],
      .value = &gather.tensors[5],
      .seq_lens_mode = KVFERRY_SEQ_LENS_COUNTS,
  };
  gather.buffers = (kvferry_gather_pa_kv_cache_buffers){
      .struct_size = sizeof gather.buffers,
      .key_cache = gather.key_cache,
      .value_cache = gather.value_cache,
      .block_tables = gather.table,
      .seq_lens = gather.lens,
      .key = gather.out.key,
      .value = gather.out.value,
  };
}

// scatter_pa_kv_cache: 3 tokens, one of them padding, of 4 and 2 bytes into 2 blocks of 4 slots.
static struct {
  kvferry_scatter_pa_kv_cache_args args;
  kvferry_scatter_pa_kv_cache_buffers buffers;
  uint8_t key[3 * 4], value[3 * 2];
  int64_t slots[3];
  struct {
    uint8_t key_cache[8 * 4], value_cache[8 * 2];
  } out, expected;
  kvferry_tensor tensors[5];
} scatter;

static void make_scatter(void) {
  static const int64_t shapes[5][4] = {{3, 1, 4}, {2, 4, 1, 4}, {3}, {3, 1, 2}, {2, 4, 1, 2}};
  static const int64_t slots[3] = {6, -1, 1};
  memset(&scatter, 0, sizeof scatter);
  fill(scatter.key, sizeof scatter.key, 5);
  fill(scatter.value, sizeof scatter.value, 60);
  memcpy(scatter.slots, slots, sizeof slots);
  for (int64_t t = 0; t < 3; ++t) {
    if (slots[t] < 0) continue;
    memcpy(scatter.expected.key_cache + slots[t] * 4, scatter.key + t * 4, 4);
    memcpy(scatter.expected.value_cache + slots[t] * 2, scatter.value + t * 2, 2);
  }
  scatter.tensors[0] = bytes(scatter.key, 3, shapes[0]);
  scatter.tensors[1] = bytes(scatter.out.key_cache, 4, shapes[1]);
  scatter.tensors[2] = ids64(scatter.slots, 1, shapes[2]);
  scatter.tensors[3] = bytes(scatter.value, 3, shapes[3]);
  scatter.tensors[4] = bytes(scatter.out.value_cache, 4, shapes[4]);
  scatter.args = (kvferry_scatter_pa_kv_cache_args){
      .struct_size = sizeof scatter.args,
      .key = &scatter.tensors[0],
      .key_cache = &scatter.tensors[1],
      .slot_mapping = &scatter.tensors[2],
      .value = &scatter.tensors[3],
      .value_cache = &scatter.tensors[4],
  };
  scatter.buffers = (kvferry_scatter_pa_kv_cache_buffers){
      .struct_size = sizeof scatter.buffers,
      .key = scatter.key,
      .key_cache = scatter.out.key_cache,
      .slot_mapping = scatter.slots,
      .value = scatter.value,
      .value_cache = scatter.out.value_cache,
  };
}

// group_memcpy: 3 pairs of 5 bytes, the last source first.
static struct {
  kvferry_group_memcpy_args args;
  kvferry_group_memcpy_buffers buffers;
  uint8_t src[15], out[15], expected[15];
  int64_t table[6];
  kvferry_tensor tensor;
} memcpys;

static void make_memcpys(void) {
  static const int64_t shape[2] = {3, 2};
  memset(&memcpys, 0, sizeof memcpys);
  fill(memcpys.src, sizeof memcpys.src, 1);
  for (int64_t p = 0; p < 3; ++p) {
    memcpys.table[2 * p] = (int64_t)(uintptr_t)(memcpys.src + 5 * (2 - p));
    memcpys.table[2 * p + 1] = (int64_t)(uintptr_t)(memcpys.out + 5 * p);
    for (int64_t i = 0; i < 5; ++i) memcpys.expected[5 * p + i] = memcpys.src[5 * (2 - p) + i];
  }
  memcpys.tensor = ids64(memcpys.table, 2, shape);
  memcpys.args = (kvferry_group_memcpy_args){
      .struct_size = sizeof memcpys.args, .addr_table = &memcpys.tensor, .copy_bytes = 5};
  memcpys.buffers =
      (kvferry_group_memcpy_buffers){.struct_size = sizeof memcpys.buffers, .addr_table = memcpys.table};
}

// gather_selection_kv_cache: one row selects tokens 5 and 2 of 7, in pages of 4, out of 8 pages.
static struct {
  kvferry_gather_selection_kv_cache_args args;
  kvferry_gather_selection_kv_cache_buffers buffers;
  uint8_t full[8 * 4 * 3];
  int32_t table[1], topk[2], full_table[2], lens[1], q[1];
  struct {
    int32_t status[3], actual[1];
    uint8_t cache[4 * 3];
  } out, expected;
  kvferry_tensor tensors[9];
} selection;

static void make_selection(void) {
  static const int64_t shapes[9][4] = {{1, 4, 3}, {1, 1}, {1, 1, 1, 3}, {1, 1, 1, 2}, {8, 4, 3},
                                       {1, 2},    {1},    {1},          {1}};
  memset(&selection, 0, sizeof selection);
  fill(selection.full, sizeof selection.full, 11);
  selection.topk[0] = 5;
  selection.topk[1] = 2;
  selection.full_table[0] = 6;
  selection.full_table[1] = 1;
  selection.lens[0] = 7;
  selection.q[0] = 1;
  for (int64_t slot = 0; slot < 2; ++slot) {
    const int32_t id = selection.topk[slot];
    const int64_t token = (int64_t)selection.full_table[id / 4] * 4 + id % 4;
    memcpy(selection.expected.cache + slot * 3, selection.full + token * 3, 3);
    selection.expected.status[slot] = id;
  }
  selection.expected.status[2] = selection.expected.actual[0] = 2;
  selection.tensors[0] = bytes(selection.out.cache, 3, shapes[0]);
  selection.tensors[1] = ids32(selection.table, 2, shapes[1]);
  selection.tensors[2] = ids32(selection.out.status, 4, shapes[2]);
  selection.tensors[3] = ids32(selection.topk, 4, shapes[3]);
  selection.tensors[4] = bytes(selection.full, 3, shapes[4]);
  selection.tensors[5] = ids32(selection.full_table, 2, shapes[5]);
  selection.tensors[6] = ids32(selection.lens, 1, shapes[6]);
  selection.tensors[7] = ids32(selection.q, 1, shapes[7]);
  selection.tensors[8] = ids32(selection.out.actual, 1, shapes[8]);
  selection.args = (kvferry_gather_selection_kv_cache_args){
      .struct_size = sizeof selection.args,
      .selection_kv_cache = &selection.tensors[0],
      .selection_kv_block_table = &selection.tensors[1],
      .selection_kv_block_status = &selection.tensors[2],
      .selection_topk_indices = &selection.tensors[3],
      .full_kv_cache = &selection.tensors[4],
      .full_kv_block_table = &selection.tensors[5],
      .full_kv_actual_seq = &selection.tensors[6],
      .full_q_actual_seq = &selection.tensors[7],
      .selection_kv_actual_seq = &selection.tensors[8],
      .selection_topk_block_size = 1,
  };
  selection.buffers = (kvferry_gather_selection_kv_cache_buffers){
      .struct_size = sizeof selection.buffers,
      .selection_kv_cache = selection.out.cache,
      .selection_kv_block_table = selection.table,
      .selection_kv_block_status = selection.out.status,
      .selection_topk_indices = selection.topk,
      .full_kv_cache = selection.full,
      .full_kv_block_table = selection.full_table,
      .full_kv_actual_seq = selection.lens,
      .full_q_actual_seq = selection.q,
      .selection_kv_actual_seq = selection.out.actual,
  };
}

// copy_blocks: blocks 0 and 1 of two caches, of 3 and 2 bytes, onto blocks 3 and 2.
static struct {
  kvferry_copy_blocks_args args;
  kvferry_copy_blocks_buffers buffers;
  struct {
    uint8_t first[4 * 3], second[4 * 2];
  } out, expected;
  int64_t mapping[4];
  void* pointers[2];
  kvferry_tensor caches[2], mapping_tensor;
} copies;

static const int64_t kFourByThree[2] = {4, 3}, kFourByTwo[2] = {4, 2}, kTwoByTwo[2] = {2, 2};

static void make_copies(void) {
  static const int64_t mapping[4] = {0, 3, 1, 2};
  memset(&copies, 0, sizeof copies);
  fill(copies.out.first, sizeof copies.out.first / 2, 20);
  fill(copies.out.second, sizeof copies.out.second / 2, 40);
  memcpy(copies.mapping, mapping, sizeof mapping);
  copies.expected = copies.out;
  for (int64_t p = 0; p < 2; ++p) {
    memcpy(copies.expected.first + mapping[2 * p + 1] * 3, copies.out.first + mapping[2 * p] * 3, 3);
    memcpy(copies.expected.second + mapping[2 * p + 1] * 2, copies.out.second + mapping[2 * p] * 2, 2);
  }
  copies.pointers[0] = copies.out.first;
  copies.pointers[1] = copies.out.second;
  copies.caches[0] = bytes(copies.out.first, 2, kFourByThree);
  copies.caches[1] = bytes(copies.out.second, 2, kFourByTwo);
  copies.mapping_tensor = ids64(copies.mapping, 2, kTwoByTwo);
  copies.args = (kvferry_copy_blocks_args){.struct_size = sizeof copies.args,
                                           .caches = copies.caches,
                                           .num_caches = 2,
                                           .mapping = &copies.mapping_tensor};
  copies.buffers = (kvferry_copy_blocks_buffers){
      .struct_size = sizeof copies.buffers, .caches = copies.pointers, .mapping = copies.mapping};
}

// swap_blocks: two blocks of two caches, of 3 and 2 bytes, into pools of 4.
static struct {
  kvferry_swap_blocks_args args;
  kvferry_swap_blocks_buffers buffers;
  uint8_t first[2 * 3], second[2 * 2];
  struct {
    uint8_t first[4 * 3], second[4 * 2];
  } out, expected;
  int64_t mapping[4];
  const void* sources[2];
  void* destinations[2];
  kvferry_tensor src[2], dst[2], mapping_tensor;
} swaps;

static void make_swaps(void) {
  static const int64_t two_by_three[2] = {2, 3}, mapping[4] = {0, 3, 1, 1};
  memset(&swaps, 0, sizeof swaps);
  fill(swaps.first, sizeof swaps.first, 20);
  fill(swaps.second, sizeof swaps.second, 40);
  memcpy(swaps.mapping, mapping, sizeof mapping);
  for (int64_t p = 0; p < 2; ++p) {
    memcpy(swaps.expected.first + mapping[2 * p + 1] * 3, swaps.first + mapping[2 * p] * 3, 3);
    memcpy(swaps.expected.second + mapping[2 * p + 1] * 2, swaps.second + mapping[2 * p] * 2, 2);
  }
  swaps.sources[0] = swaps.first;
  swaps.sources[1] = swaps.second;
  swaps.destinations[0] = swaps.out.first;
  swaps.destinations[1] = swaps.out.second;
  swaps.src[0] = bytes(swaps.first, 2, two_by_three);
  swaps.src[1] = bytes(swaps.second, 2, kTwoByTwo);
  swaps.dst[0] = bytes(swaps.out.first, 2, kFourByThree);
  swaps.dst[1] = bytes(swaps.out.second, 2, kFourByTwo);
  swaps.mapping_tensor = ids64(swaps.mapping, 2, kTwoByTwo);
  swaps.args = (kvferry_swap_blocks_args){.struct_size = sizeof swaps.args,
                                          .src = swaps.src,
                                          .dst = swaps.dst,
                                          .num_caches = 2,
                                          .mapping = &swaps.mapping_tensor};
  swaps.buffers = (kvferry_swap_blocks_buffers){.struct_size = sizeof swaps.buffers,
                                                .src = swaps.sources,
                                                .dst = swaps.destinations,
                                                .mapping = swaps.mapping};
}

// transfer_layers: blocks 2 and 0 of 2 layers of K and V, 4 bytes a block, out to a page-first chunk.
static struct {
  kvferry_transfer_layers_args args;
  kvferry_transfer_layers_buffers buffers;
  uint8_t pools[2][2][3 * 4];  // K or V, layer, block
  uint8_t out[2][2][2][4], expected[2][2][2][4];
  int32_t ids[2];
  void* pointers[2][2];
  kvferry_tensor tensors[2][2], chunk, ids_tensor;
} layers;

static void make_layers(void) {
  static const int64_t pool[4] = {3, 2, 1, 2}, chunk[6] = {2, 2, 2, 2, 1, 2}, two[1] = {2};
  memset(&layers, 0, sizeof layers);
  fill(layers.pools, sizeof layers.pools, 7);
  layers.ids[0] = 2;
  for (int64_t part = 0; part < 2; ++part) {
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (int64_t i = 0; i < 2; ++i)
        memcpy(layers.expected[i][layer][part], layers.pools[part][layer] + (int64_t)layers.ids[i] * 4, 4);
      layers.pointers[part][layer] = layers.pools[part][layer];
      layers.tensors[part][layer] = bytes(layers.pools[part][layer], 4, pool);
    }
  }
  layers.chunk = bytes(layers.out, 6, chunk);
  layers.ids_tensor = ids32(layers.ids, 1, two);
  layers.args = (kvferry_transfer_layers_args){.struct_size = sizeof layers.args,
                                               .key_caches = layers.tensors[0],
                                               .value_caches = layers.tensors[1],
                                               .num_layers = 2,
                                               .chunk = &layers.chunk,
                                               .block_ids = &layers.ids_tensor,
                                               .chunk_layout = KVFERRY_CHUNK_PAGE_FIRST};
  layers.buffers = (kvferry_transfer_layers_buffers){.struct_size = sizeof layers.buffers,
                                                     .key_caches = layers.pointers[0],
                                                     .value_caches = layers.pointers[1],
                                                     .chunk = layers.out,
                                                     .block_ids = layers.ids};
}

// gather_dequant: one sequence of 2 tokens, each in its block. Values are 1 and 2, scales 1, 2, 4 and 8.
static struct {
  kvferry_gather_dequant_args args;
  kvferry_gather_dequant_buffers buffers;
  uint8_t cache[2][656];
  int64_t table[2], lens[2];
  uint16_t out[2][576], expected[2][576];
  kvferry_tensor tensors[4];
} dequant;

static void make_dequant(void) {
  static const int64_t shapes[4][3] = {{2, 1, 656}, {1, 2}, {2}, {2, 576}};
  memset(&dequant, 0, sizeof dequant);
  dequant.table[0] = 1;
  dequant.lens[1] = 2;
  for (int64_t block = 0; block < 2; ++block) {
    for (int64_t i = 0; i < 512; ++i) dequant.cache[block][i] = (i + block) % 2 ? 0x40 : 0x38;
    for (int64_t i = 0; i < 4; ++i) {
      const float scale = (float)(1 << i);
      memcpy(dequant.cache[block] + 512 + 4 * i, &scale, 4);
    }
    fill(dequant.cache[block] + 528, 128, (size_t)block);
  }
  for (int64_t row = 0; row < 2; ++row) {
    const int64_t block = dequant.table[row];
    for (int64_t i = 0; i < 512; ++i) {
      const float value = (float)(((i + block) % 2 ? 2 : 1) * (1 << i / 128));
      uint32_t bits;
      memcpy(&bits, &value, 4);
      dequant.expected[row][i] = (uint16_t)(bits >> 16);
    }
    memcpy(dequant.expected[row] + 512, dequant.cache[block] + 528, 128);
  }
  dequant.tensors[0] = bytes(dequant.cache, 3, shapes[0]);
  dequant.tensors[1] = ids64(dequant.table, 2, shapes[1]);
  dequant.tensors[2] = ids64(dequant.lens, 1, shapes[2]);
  dequant.tensors[3] = tensor(dequant.out, KVFERRY_DTYPE_BFLOAT, 16, 2, shapes[3]);
  dequant.args = (kvferry_gather_dequant_args){.struct_size = sizeof dequant.args,
                                               .cache = &dequant.tensors[0],
                                               .block_tables = &dequant.tensors[1],
                                               .seq_lens = &dequant.tensors[2],
                                               .out = &dequant.tensors[3]};
  dequant.buffers = (kvferry_gather_dequant_buffers){.struct_size = sizeof dequant.buffers,
                                                     .cache = dequant.cache,
                                                     .block_tables = dequant.table,
                                                     .seq_lens = dequant.lens,
                                                     .out = dequant.out};
}

static void spoil_gather(void) {
  gather.table[1] = 9;
}
static void spoil_scatter(void) {
  scatter.slots[2] = 99;
}
static void spoil_memcpys(void) {
  memcpys.table[3] = memcpys.table[1];
}
static void spoil_selection(void) {
  selection.full_table[0] = 99;
}
static void spoil_copies(void) {
  copies.mapping[2] = 7;
}
static void spoil_swaps(void) {
  swaps.mapping[3] = 7;
}
static void spoil_layers(void) {
  layers.ids[1] = 7;
}
static void spoil_dequant(void) {
  dequant.table[1] = 7;
}

// The members that each operator's statics have by the same names.
// NOLINTBEGIN(bugprone-macro-parentheses): they are names.
#define FUNCTIONS(name, function)                                                               \
  .plan = function##_plan, .run = function##_run, .once = function##_once, .make = make_##name, \
  .spoil = spoil_##name
#define MEMORY(name)                                                                              \
  .args = &name.args, .buffers = &name.buffers, .workspace = &name.buffers.workspace,             \
  .workspace_bytes = &name.buffers.workspace_bytes, .out = &name.out, .expected = &name.expected, \
  .out_bytes = sizeof name.out
#define POLICY(name)                                                       \
  .record = &name.buffers.error_record, .policy = &name.args.index_policy, \
  .reject = KVFERRY_INDEX_POLICY_REJECT
// NOLINTEND(bugprone-macro-parentheses)

static const example kExamples[] = {
    {KVFERRY_OP_GATHER_PA_KV_CACHE, FUNCTIONS(gather, gather_pa_kv_cache), MEMORY(gather), POLICY(gather),
     .bad = {2, 0, 1, 9, KVFERRY_BAD_KEY | KVFERRY_BAD_VALUE, KVFERRY_OP_GATHER_PA_KV_CACHE}},
    {KVFERRY_OP_SCATTER_PA_KV_CACHE, FUNCTIONS(scatter, scatter_pa_kv_cache), MEMORY(scatter),
     POLICY(scatter),
     .bad = {2, 2, 0, 99, KVFERRY_BAD_KEY | KVFERRY_BAD_VALUE, KVFERRY_OP_SCATTER_PA_KV_CACHE}},
    {KVFERRY_OP_GROUP_MEMCPY, FUNCTIONS(memcpys, group_memcpy), MEMORY(memcpys),
     .policy = &memcpys.args.checked, .reject = 1},
    {KVFERRY_OP_GATHER_SELECTION_KV_CACHE, FUNCTIONS(selection, gather_selection_kv_cache), MEMORY(selection),
     POLICY(selection), .bad = {1, 0, 1, 2, KVFERRY_BAD_SOURCE, KVFERRY_OP_GATHER_SELECTION_KV_CACHE}},
    {KVFERRY_OP_COPY_BLOCKS, FUNCTIONS(copies, copy_blocks), MEMORY(copies), POLICY(copies),
     .bad = {1, 1, 0, 7, KVFERRY_BAD_SOURCE, KVFERRY_OP_COPY_BLOCKS}},
    {KVFERRY_OP_SWAP_BLOCKS, FUNCTIONS(swaps, swap_blocks), MEMORY(swaps), POLICY(swaps),
     .bad = {1, 1, 0, 7, KVFERRY_BAD_DESTINATION, KVFERRY_OP_SWAP_BLOCKS}},
    {KVFERRY_OP_TRANSFER_LAYERS, FUNCTIONS(layers, transfer_layers), MEMORY(layers), POLICY(layers),
     .bad = {1, 1, 0, 7, KVFERRY_BAD_SOURCE, KVFERRY_OP_TRANSFER_LAYERS}},
    {KVFERRY_OP_GATHER_DEQUANT, FUNCTIONS(dequant, gather_dequant), MEMORY(dequant), POLICY(dequant),
     .bad = {1, 0, 1, 7, KVFERRY_BAD_KEY, KVFERRY_OP_GATHER_DEQUANT}},
};
enum { kExampleCount = sizeof kExamples / sizeof kExamples[0] };

static int is_right(const example* e) {
  return memcmp(e->out, e->expected, e->out_bytes) == 0;
}

static kvferry_context* make_context(int64_t threads, kvferry_stream* stream) {
  kvferry_context_options options;
  KVFERRY_INIT(options);
  options.threads = threads;
  options.stream = stream;
  kvferry_context* context = NULL;
  CHECK(kvferry_context_create(&options, &context) == KVFERRY_OK);
  return context;
}

// Plans `e` and gives its buffers a workspace, which the caller frees.
static kvferry_plan* plan_example(const example* e, const kvferry_context* context, void** workspace) {
  kvferry_plan* plan = NULL;
  CHECK(e->plan(e->args, context, &plan) == KVFERRY_OK);
  *e->workspace_bytes = kvferry_plan_workspace_bytes(plan);
  *workspace = *e->workspace = malloc((size_t)*e->workspace_bytes + 1);
  return plan;
}

#endif  // KVFERRY_TESTS_CAPI_EXAMPLES_H
