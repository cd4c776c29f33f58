// SPDX-License-Identifier: Apache-2.0
//
// capi_test [REPORT]: the C API from C11. Every operator in every form against plain loops, and what is wrong
// with calls. Writes its cases to REPORT as GoogleTest does, so that tests/run.sh counts each.
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "capi_examples.h"

static void test_every_operator_in_every_form(void) {
  kvferry_stream* stream = NULL;
  CHECK(kvferry_stream_create(&stream) == KVFERRY_OK);
  kvferry_context* contexts[] = {make_context(1, NULL), make_context(3, NULL), make_context(1, stream)};
  for (const example* e = kExamples; e < kExamples + kExampleCount; ++e) {
    for (int i = 0; i < 3; ++i) {
      void* workspace;
      e->make();
      CHECK(!is_right(e));
      kvferry_plan* plan = plan_example(e, contexts[i], &workspace);
      CHECK(kvferry_plan_operator(plan) == e->op);
      CHECK(e->run(plan, e->buffers, contexts[i]) == KVFERRY_OK);
      CHECK(kvferry_stream_wait(stream) == KVFERRY_OK);
      CHECK(is_right(e));
      kvferry_plan_destroy(plan);
      free(workspace);

      e->make();
      CHECK(e->once(e->args, contexts[i], NULL) == KVFERRY_OK);
      CHECK(kvferry_stream_wait(stream) == KVFERRY_OK);
      CHECK(is_right(e));
    }
  }
  for (int i = 0; i < 3; ++i) kvferry_context_destroy(contexts[i]);
  kvferry_stream_destroy(stream);
}

static void test_schedule_and_copy(void) {
  const example* e = &kExamples[KVFERRY_OP_GATHER_SELECTION_KV_CACHE - 1];
  kvferry_context* context = make_context(1, NULL);
  void* workspace;
  e->make();
  kvferry_plan* plan = plan_example(e, context, &workspace);
  memset(workspace, 0, (size_t)*e->workspace_bytes);
  CHECK_REFUSED(kvferry_gather_selection_kv_cache_copy(plan, &selection.buffers, context),
                KVFERRY_INVALID_ARGUMENT, "schedule");
  selection.buffers.selection_kv_cache = NULL;  // not looked at
  CHECK(kvferry_gather_selection_kv_cache_schedule(plan, &selection.buffers, context) == KVFERRY_OK);
  CHECK(selection.out.actual[0] == 2 && selection.out.cache[0] == 0);
  const kvferry_gather_selection_kv_cache_buffers layer = {
      .struct_size = sizeof layer,
      .selection_kv_cache = selection.out.cache,
      .full_kv_cache = selection.full,
      .workspace = workspace,
      .workspace_bytes = selection.buffers.workspace_bytes,
  };
  CHECK(kvferry_gather_selection_kv_cache_copy(plan, &layer, context) == KVFERRY_OK);
  CHECK(is_right(e));
  kvferry_plan_destroy(plan);
  free(workspace);
  kvferry_context_destroy(context);
}

static void test_index_policies(void) {
  kvferry_context* context = make_context(1, NULL);
  for (const example* e = kExamples; e < kExamples + kExampleCount; ++e) {
    const char* name = kvferry_operator_name(e->op);
    void* workspace;
    kvferry_plan* plan;
    if (e->record != NULL) {
      e->make();
      e->spoil();
      *e->policy = KVFERRY_INDEX_POLICY_REPORT;
      kvferry_error_record record, twice = e->bad;
      memset(&record, 0, sizeof record);
      plan = plan_example(e, context, &workspace);
      *e->record = &record;
      CHECK(e->run(plan, e->buffers, context) == KVFERRY_OK);
      CHECK(memcmp(&record, &e->bad, sizeof record) == 0);
      twice.bad *= 2;
      if (e->op == KVFERRY_OP_GATHER_SELECTION_KV_CACHE) selection.out.status[2] = 0;  // a cold row again
      CHECK(e->once(e->args, context, &record) == KVFERRY_OK);
      CHECK(memcmp(&record, &twice, sizeof record) == 0);
      kvferry_plan_destroy(plan);
      free(workspace);
    }
    e->make();
    e->spoil();
    *e->policy = e->reject;
    uint8_t before[4096];
    CHECK(e->out_bytes <= sizeof before);
    memcpy(before, e->out, e->out_bytes);
    plan = plan_example(e, context, &workspace);
    CHECK_REFUSED(e->run(plan, e->buffers, context), KVFERRY_INDEX, name);
    CHECK_REFUSED(e->once(e->args, context, NULL), KVFERRY_INDEX, name);
    CHECK(memcmp(before, e->out, e->out_bytes) == 0);
    kvferry_plan_destroy(plan);
    free(workspace);
  }
  kvferry_context_destroy(context);
}

static void test_null_and_foreign_handles(void) {
  kvferry_context* context = make_context(1, NULL);
  for (const example* e = kExamples; e < kExamples + kExampleCount; ++e) {
    const char* name = kvferry_operator_name(e->op);
    void* workspace;
    e->make();
    kvferry_plan* plan = plan_example(e, context, &workspace);
    kvferry_plan* made = plan;
    CHECK_REFUSED(e->plan(NULL, context, &made), KVFERRY_NULL, "args");
    CHECK(made == NULL);
    made = plan;
    CHECK_REFUSED(e->plan(e->args, NULL, &made), KVFERRY_NULL, "context");
    CHECK(made == NULL);
    CHECK_REFUSED(e->plan(e->args, context, NULL), KVFERRY_NULL, "plan");
    CHECK_REFUSED(e->once(NULL, context, NULL), KVFERRY_NULL, "args");
    CHECK_REFUSED(e->once(e->args, NULL, NULL), KVFERRY_NULL, "context");
    CHECK_REFUSED(e->run(NULL, e->buffers, context), KVFERRY_NULL, "plan");
    CHECK_REFUSED(e->run(plan, NULL, context), KVFERRY_NULL, "buffers");
    CHECK_REFUSED(e->run(plan, e->buffers, NULL), KVFERRY_NULL, "context");
    CHECK(strstr(kvferry_last_error_message(), name) != NULL);

    const example* other = &kExamples[e->op % kExampleCount];
    void* other_workspace;
    other->make();
    kvferry_plan* foreign = plan_example(other, context, &other_workspace);
    CHECK_REFUSED(e->run(foreign, e->buffers, context), KVFERRY_INVALID_ARGUMENT,
                  kvferry_operator_name(other->op));
    kvferry_plan_destroy(foreign);
    free(other_workspace);

    --*e->workspace_bytes;
    if (*e->workspace_bytes >= 0)
      CHECK_REFUSED(e->run(plan, e->buffers, context), KVFERRY_INVALID_ARGUMENT, "workspace");
    CHECK(!is_right(e));
    kvferry_plan_destroy(plan);
    free(workspace);
  }
  kvferry_context_destroy(context);

  CHECK_REFUSED(kvferry_context_create(NULL, NULL), KVFERRY_NULL, "context");
  CHECK_REFUSED(kvferry_stream_create(NULL), KVFERRY_NULL, "stream");
  CHECK_REFUSED(kvferry_stream_wait(NULL), KVFERRY_NULL, "stream");
  CHECK(kvferry_context_threads(NULL) == -1);
  CHECK(kvferry_plan_operator(NULL) == 0);
  CHECK(kvferry_plan_workspace_bytes(NULL) == -1);
  CHECK(kvferry_plan_implementation(NULL) == NULL);
  CHECK(kvferry_plan_describe(NULL) == NULL);
  CHECK(strstr(kvferry_last_error_message(), "plan_describe") != NULL);
  kvferry_plan_destroy(NULL);
  kvferry_context_destroy(NULL);
  kvferry_stream_destroy(NULL);
}

static void test_sizes_of_structs(void) {
  kvferry_context* context = make_context(1, NULL);
  static const size_t wrong[] = {0, 4, 12, 4104, (size_t)-1};
  for (const example* e = kExamples; e < kExamples + kExampleCount; ++e) {
    void* workspace;
    e->make();
    kvferry_plan* plan = plan_example(e, context, &workspace);
    kvferry_plan* made = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
      memcpy(e->args, &wrong[i], sizeof wrong[i]);
      memcpy(e->buffers, &wrong[i], sizeof wrong[i]);
      CHECK_REFUSED(e->plan(e->args, context, &made), KVFERRY_INVALID_ARGUMENT, "args: struct_size");
      CHECK_REFUSED(e->once(e->args, context, NULL), KVFERRY_INVALID_ARGUMENT, "args: struct_size");
      CHECK_REFUSED(e->run(plan, e->buffers, context), KVFERRY_INVALID_ARGUMENT, "buffers: struct_size");
    }
    kvferry_plan_destroy(plan);
    free(workspace);
  }

  // An older program, whose struct ends before index_policy: what lies behind is not read.
  make_copies();
  copies.args.struct_size = offsetof(kvferry_copy_blocks_args, index_policy);
  copies.args.index_policy = 77;
  CHECK(kvferry_copy_blocks(&copies.args, context, NULL) == KVFERRY_OK);
  CHECK(is_right(&kExamples[KVFERRY_OP_COPY_BLOCKS - 1]));
  copies.args.struct_size = sizeof copies.args.struct_size;
  CHECK_REFUSED(kvferry_copy_blocks(&copies.args, context, NULL), KVFERRY_NULL, "mapping");

  // A newer one: its default is zero, all else is refused.
  struct {
    kvferry_copy_blocks_args args;
    int64_t news;
  } newer;
  make_copies();
  newer.args = copies.args;
  newer.args.struct_size = sizeof newer;
  newer.news = 0;
  CHECK(kvferry_copy_blocks(&newer.args, context, NULL) == KVFERRY_OK);
  CHECK(is_right(&kExamples[KVFERRY_OP_COPY_BLOCKS - 1]));
  make_copies();
  newer.news = (int64_t)1 << 40;
  CHECK_REFUSED(kvferry_copy_blocks(&newer.args, context, NULL), KVFERRY_INVALID_ARGUMENT, "byte 53 is 1");
  CHECK(!is_right(&kExamples[KVFERRY_OP_COPY_BLOCKS - 1]));
  kvferry_context_destroy(context);
}

static void test_enumerations(void) {
  static const struct {
    int op;
    int64_t* field;
    const char* name;
    int64_t last;
  } fields[] = {
      {KVFERRY_OP_GATHER_PA_KV_CACHE, &gather.args.cache_mode, "cache_mode", 1},
      {KVFERRY_OP_GATHER_PA_KV_CACHE, &gather.args.seq_lens_mode, "seq_lens_mode", 1},
      {KVFERRY_OP_GATHER_PA_KV_CACHE, &gather.args.index_policy, "index_policy", 2},
      {KVFERRY_OP_SCATTER_PA_KV_CACHE, &scatter.args.cache_mode, "cache_mode", 1},
      {KVFERRY_OP_SCATTER_PA_KV_CACHE, &scatter.args.scatter_mode, "scatter_mode", 2},
      {KVFERRY_OP_SCATTER_PA_KV_CACHE, &scatter.args.index_policy, "index_policy", 2},
      {KVFERRY_OP_GROUP_MEMCPY, &memcpys.args.skip_null, "skip_null", 1},
      {KVFERRY_OP_GROUP_MEMCPY, &memcpys.args.checked, "checked", 1},
      {KVFERRY_OP_GATHER_SELECTION_KV_CACHE, &selection.args.q_len_mode, "q_len_mode", 2},
      {KVFERRY_OP_GATHER_SELECTION_KV_CACHE, &selection.args.index_policy, "index_policy", 2},
      {KVFERRY_OP_COPY_BLOCKS, &copies.args.index_policy, "index_policy", 2},
      {KVFERRY_OP_SWAP_BLOCKS, &swaps.args.index_policy, "index_policy", 2},
      {KVFERRY_OP_TRANSFER_LAYERS, &layers.args.chunk_layout, "chunk_layout", 1},
      {KVFERRY_OP_TRANSFER_LAYERS, &layers.args.direction, "direction", 1},
      {KVFERRY_OP_TRANSFER_LAYERS, &layers.args.index_policy, "index_policy", 2},
      {KVFERRY_OP_GATHER_DEQUANT, &dequant.args.seq_lens_mode, "seq_lens_mode", 1},
      {KVFERRY_OP_GATHER_DEQUANT, &dequant.args.index_policy, "index_policy", 2},
  };
  kvferry_context* context = make_context(1, NULL);
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; ++i) {
    const example* e = &kExamples[fields[i].op - 1];
    // 2^32 and 256 would be 0 in a narrower type.
    const int64_t wrong[] = {-1, fields[i].last + 1, 256, (int64_t)1 << 32, INT64_MIN};
    for (size_t j = 0; j < sizeof wrong / sizeof wrong[0]; ++j) {
      char expected[100];
      snprintf(expected, sizeof expected, "%s: %s: %" PRId64 ", expected 0 to %" PRId64,
               kvferry_operator_name(fields[i].op), fields[i].name, wrong[j], fields[i].last);
      e->make();
      *fields[i].field = wrong[j];
      CHECK_REFUSED(e->once(e->args, context, NULL), KVFERRY_INVALID_ARGUMENT, expected);
      CHECK(!is_right(e));
    }
  }
  kvferry_context_destroy(context);
}

// DLPack's layout and numbers, from its specification.
_Static_assert(sizeof(kvferry_tensor) == 48 && offsetof(kvferry_tensor, data) == 0, "DLTensor");
_Static_assert(offsetof(kvferry_tensor, device) == 8 && offsetof(kvferry_tensor, ndim) == 16, "DLTensor");
_Static_assert(offsetof(kvferry_tensor, dtype) == 20 && offsetof(kvferry_tensor, shape) == 24, "DLTensor");
_Static_assert(offsetof(kvferry_tensor, strides) == 32, "DLTensor");
_Static_assert(offsetof(kvferry_tensor, byte_offset) == 40, "DLTensor");
_Static_assert(offsetof(kvferry_device, type) == 0 && offsetof(kvferry_device, id) == 4, "DLDevice");
_Static_assert(sizeof(kvferry_dtype) == 4 && offsetof(kvferry_dtype, bits) == 1, "DLDataType");
_Static_assert(offsetof(kvferry_dtype, lanes) == 2, "DLDataType");
_Static_assert(KVFERRY_DEVICE_CPU == 1 && KVFERRY_DEVICE_CUDA == 2, "DLDeviceType");
_Static_assert(KVFERRY_DEVICE_CUDA_HOST == 3 && KVFERRY_DEVICE_CUDA_MANAGED == 13, "DLDeviceType");
_Static_assert(KVFERRY_DTYPE_INT == 0 && KVFERRY_DTYPE_UINT == 1 && KVFERRY_DTYPE_FLOAT == 2, "codes");
_Static_assert(KVFERRY_DTYPE_BFLOAT == 4 && KVFERRY_DTYPE_FLOAT8_E4M3FN == 10, "codes");
_Static_assert(KVFERRY_DTYPE_FLOAT8_E5M2 == 12 && KVFERRY_DTYPE_HIFLOAT8 == 128, "codes");

// copy_blocks of one cache of two blocks of 4 elements with this dtype, block 0 onto block 1.
static kvferry_status copy_one(const kvferry_context* context, kvferry_tensor* cache) {
  static const int64_t mapping[2] = {0, 1}, shape[2] = {1, 2};
  const kvferry_tensor ids = ids64(mapping, 2, shape);
  const kvferry_copy_blocks_args args = {
      .struct_size = sizeof args, .caches = cache, .num_caches = 1, .mapping = &ids};
  return kvferry_copy_blocks(&args, context, NULL);
}

static void test_dtypes(void) {
  static const int accepted[][2] = {{2, 16}, {4, 16}, {2, 32}, {0, 8},   {1, 8},  {0, 16},
                                    {1, 16}, {0, 32}, {1, 32}, {128, 8}, {12, 8}, {10, 8}};
  static const int refused[][3] = {{5, 64, 1}, {2, 64, 1},  {2, 8, 1},  {4, 32, 1}, {0, 4, 1},
                                   {6, 8, 1},  {7, 8, 1},   {11, 8, 1}, {14, 8, 1}, {0, 8, 2},
                                   {0, 8, 0},  {10, 16, 1}, {17, 4, 1}, {3, 64, 1}, {255, 8, 1}};
  const int64_t shape[2] = {2, 4};
  kvferry_context* context = make_context(1, NULL);
  for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; ++i) {
    uint8_t memory[33] = {0}, expected[33] = {0};
    const size_t block = (size_t)accepted[i][1] / 8 * 4;
    fill(memory, block, 9);
    memcpy(expected, memory, block);
    memcpy(expected + block, memory, block);
    kvferry_tensor cache = tensor(memory, accepted[i][0], accepted[i][1], 2, shape);
    CHECK(copy_one(context, &cache) == KVFERRY_OK);
    CHECK(memcmp(memory, expected, sizeof memory) == 0);
  }
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; ++i) {
    uint8_t memory[64];
    kvferry_tensor cache = tensor(memory, refused[i][0], refused[i][1], 2, shape);
    cache.dtype.lanes = (uint16_t)refused[i][2];
    char expected[100];
    snprintf(expected, sizeof expected, "copy_blocks: caches: dtype has code %d, %d bits, %d lanes",
             refused[i][0], refused[i][1], refused[i][2]);
    CHECK_REFUSED(copy_one(context, &cache), KVFERRY_INVALID_ARGUMENT, expected);
  }
  // 64 bits are for addresses and indices.
  make_memcpys();
  memcpys.tensor.dtype.code = KVFERRY_DTYPE_UINT;
  CHECK(kvferry_group_memcpy(&memcpys.args, context) == KVFERRY_OK);
  CHECK(is_right(&kExamples[KVFERRY_OP_GROUP_MEMCPY - 1]));
  int64_t memory[8] = {0};
  kvferry_tensor cache = ids64(memory, 2, shape);
  CHECK_REFUSED(copy_one(context, &cache), KVFERRY_INVALID_ARGUMENT, "int64");
  kvferry_context_destroy(context);
}

static void test_tensors(void) {
  kvferry_context* context = make_context(1, NULL);
  // Blocks of 4 elements in columns: element i of block b is memory[1 + 2 * i + b].
  uint16_t memory[10];
  for (int i = 0; i < 10; ++i) memory[i] = (uint16_t)i;
  const int64_t shape[2] = {2, 4}, strides[2] = {1, 2};
  kvferry_tensor cache = tensor(memory, KVFERRY_DTYPE_FLOAT, 16, 2, shape);
  cache.strides = strides;
  cache.byte_offset = 2;
  CHECK(copy_one(context, &cache) == KVFERRY_OK);
  for (int i = 0; i < 10; ++i) CHECK(memory[i] == (i % 2 == 0 && i > 0 ? i - 1 : i));

  cache.byte_offset = 3;
  CHECK_REFUSED(copy_one(context, &cache), KVFERRY_INVALID_ARGUMENT, "byte_offset is 3");
  cache.byte_offset = UINT64_MAX - 1;
  CHECK_REFUSED(copy_one(context, &cache), KVFERRY_INVALID_ARGUMENT, "byte_offset is 18446744073709551614");
  cache.byte_offset = 2;
  static const int32_t ndims[] = {-1, 9, INT32_MAX, INT32_MIN};
  for (int i = 0; i < 4; ++i) {
    cache.ndim = ndims[i];
    CHECK_REFUSED(copy_one(context, &cache), KVFERRY_INVALID_ARGUMENT, "ndim is");
  }
  cache.ndim = 2;
  static const int32_t devices[] = {0, 4, 10, 12, 14, 257, 259, -1};
  for (size_t i = 0; i < sizeof devices / sizeof devices[0]; ++i) {
    cache.device.type = devices[i];
    CHECK_REFUSED(copy_one(context, &cache), KVFERRY_INVALID_ARGUMENT, "device type is");
  }
  // Memory that this CPU reaches too, whichever device it belongs to.
  cache.device.id = 1;
  static const int32_t host_devices[] = {KVFERRY_DEVICE_CUDA_HOST, KVFERRY_DEVICE_CUDA_MANAGED};
  for (int i = 0; i < 2; ++i) {
    cache.device.type = host_devices[i];
    for (int j = 0; j < 10; ++j) memory[j] = (uint16_t)j;
    CHECK(copy_one(context, &cache) == KVFERRY_OK);
    CHECK(memory[2] == 1 && memory[8] == 7 && memory[9] == 9);
  }
  cache.device.id = 0;
  cache.device.type = KVFERRY_DEVICE_CUDA;
  CHECK_REFUSED(copy_one(context, &cache), KVFERRY_INVALID_ARGUMENT, "device");
  cache.device.type = KVFERRY_DEVICE_CPU;
  cache.device.id = 1;
  CHECK_REFUSED(copy_one(context, &cache), KVFERRY_INVALID_ARGUMENT, "device");
  cache.device.id = 0;
  cache.shape = NULL;
  CHECK_REFUSED(copy_one(context, &cache), KVFERRY_NULL, "shape is null");
  cache.shape = shape;
  cache.data = NULL;
  CHECK_REFUSED(copy_one(context, &cache), KVFERRY_NULL, "data is null");
  CHECK_REFUSED(copy_one(context, NULL), KVFERRY_NULL, "caches");

  // Absent: required operands are refused, optional ones are not.
  make_gather();
  gather.args.seq_lens = NULL;
  CHECK_REFUSED(kvferry_gather_pa_kv_cache(&gather.args, context, NULL), KVFERRY_NULL, "seq_lens");
  make_scatter();
  scatter.args.value = scatter.args.value_cache = NULL;
  CHECK(kvferry_scatter_pa_kv_cache(&scatter.args, context, NULL) == KVFERRY_OK);
  CHECK(memcmp(scatter.out.key_cache, scatter.expected.key_cache, sizeof scatter.out.key_cache) == 0);
  CHECK(scatter.out.value_cache[0] == 0);
  // [] is one element, not "absent".
  const int32_t one = 1;
  const kvferry_tensor count = ids32(&one, 0, NULL);
  make_memcpys();
  memcpys.args.count = &count;
  CHECK(kvferry_group_memcpy(&memcpys.args, context) == KVFERRY_OK);
  CHECK(memcmp(memcpys.out, memcpys.expected, 5) == 0 && memcpys.out[5] == 0);
  // The storage that Nct needs.
  make_scatter();
  scatter.args.scatter_mode = KVFERRY_SCATTER_MODE_NCT;
  scatter.args.nct_strides[0] = 4;
  scatter.args.nct_strides[1] = 2;
  CHECK_REFUSED(kvferry_scatter_pa_kv_cache(&scatter.args, context, NULL), KVFERRY_INVALID_ARGUMENT,
                "storage_elements");
  scatter.args.nct_storage_elements[0] = sizeof scatter.key;
  scatter.args.nct_storage_elements[1] = sizeof scatter.value;
  CHECK(kvferry_scatter_pa_kv_cache(&scatter.args, context, NULL) == KVFERRY_OK);
  CHECK(is_right(&kExamples[KVFERRY_OP_SCATTER_PA_KV_CACHE - 1]));
  kvferry_context_destroy(context);
}

static void test_contexts(void) {
  kvferry_context* context = NULL;
  CHECK(kvferry_context_create(NULL, &context) == KVFERRY_OK);
  CHECK(kvferry_context_threads(context) >= 1);
  kvferry_context_destroy(context);

  kvferry_context_options options;
  KVFERRY_INIT(options);
  options.threads = 3;
  options.implementation = "generic";
  options.streaming = 1;
  options.device.type = KVFERRY_DEVICE_CPU;
  CHECK(kvferry_context_create(&options, &context) == KVFERRY_OK);
  CHECK(kvferry_context_threads(context) == 3);
  void* workspace;
  make_gather();
  kvferry_plan* plan = plan_example(&kExamples[0], context, &workspace);
  CHECK(strcmp(kvferry_plan_implementation(plan), "generic") == 0);
  CHECK(strstr(kvferry_plan_describe(plan), "generic (forced)") != NULL);
  CHECK(kvferry_plan_describe(plan) == kvferry_plan_describe(plan));
  kvferry_plan_destroy(plan);
  free(workspace);
  kvferry_context_destroy(context);

  options.implementation = "warp9";
  CHECK(kvferry_context_create(&options, &context) == KVFERRY_OK);
  CHECK_REFUSED(kvferry_gather_pa_kv_cache(&gather.args, context, NULL), KVFERRY_UNAVAILABLE, "warp9");
  kvferry_context_destroy(context);
  options.implementation = NULL;

  // Helpers on two processors of which one cannot be there; on none of two.
  const int64_t cpus[] = {0, 1 << 19};
  options.threads = 0;
  options.cpus = cpus;
  options.num_cpus = 2;
  CHECK_REFUSED(kvferry_context_create(&options, &context), KVFERRY_INVALID_ARGUMENT, "524288");
  options.num_cpus = -1;
  CHECK_REFUSED(kvferry_context_create(&options, &context), KVFERRY_INVALID_ARGUMENT, "num_cpus");
  options.num_cpus = 1;
  options.cpus = NULL;
  CHECK_REFUSED(kvferry_context_create(&options, &context), KVFERRY_NULL, "cpus");
  cpu_set_t own;
  CHECK(sched_getaffinity(0, sizeof own, &own) == 0);
  int64_t first = 0;
  while (!CPU_ISSET((size_t)first, &own)) ++first;
  options.cpus = &first;
  CHECK(kvferry_context_create(&options, &context) == KVFERRY_OK);
  CHECK(kvferry_context_threads(context) == 1);
  kvferry_context_destroy(context);
  options.cpus = NULL;
  options.num_cpus = 0;

  // No machine has this one. An older program has no stream.
  options.device.type = KVFERRY_DEVICE_CUDA;
  options.device.id = 1000;
  CHECK_REFUSED(kvferry_context_create(&options, &context), KVFERRY_UNAVAILABLE, "cuda:1000: ");
  CHECK(context == NULL);
  options.device.type = KVFERRY_DEVICE_CPU;
  options.device.id = 0;
  options.cuda_stream = &options;
  CHECK_REFUSED(kvferry_context_create(&options, &context), KVFERRY_INVALID_ARGUMENT, "cuda_stream");
  options.struct_size = offsetof(kvferry_context_options, cuda_stream);
  CHECK(kvferry_context_create(&options, &context) == KVFERRY_OK);
  kvferry_context_destroy(context);
  KVFERRY_INIT(options);
  options.device.type = 10;
  CHECK_REFUSED(kvferry_context_create(&options, &context), KVFERRY_INVALID_ARGUMENT, "device.type: 10");
  CHECK(context == NULL);
  options.device.type = 0;

  static const int64_t threads[] = {-1, 1025, (int64_t)1 << 32};
  for (int i = 0; i < 3; ++i) {
    options.threads = threads[i];
    CHECK_REFUSED(kvferry_context_create(&options, &context), KVFERRY_INVALID_ARGUMENT, "threads");
  }
  options.threads = 1;
  options.streaming = 2;
  CHECK_REFUSED(kvferry_context_create(&options, &context), KVFERRY_INVALID_ARGUMENT, "streaming: 2");
  options.streaming = 0;
  options.struct_size = 0;
  CHECK_REFUSED(kvferry_context_create(&options, &context), KVFERRY_INVALID_ARGUMENT, "options: struct_size");
}

static void test_backends(void) {
  CHECK(strcmp(kvferry_backend_name(0), "cpu") == 0);
  CHECK(kvferry_backend_available(0) == 1);
  CHECK(strstr(kvferry_backend_detail(0), "generic") != NULL);
  CHECK(strcmp(kvferry_backend_name(1), "cuda") == 0);
  const int cuda = kvferry_backend_available(1);
  CHECK(cuda == 0 || cuda == 1);
  CHECK((strstr(kvferry_backend_detail(1), "cuda:0 ") != NULL) == (cuda == 1));
  CHECK(strlen(kvferry_backend_detail(1)) > 0);
  static const int none[] = {-1, 2, INT32_MAX, INT32_MIN};
  for (int i = 0; i < 4; ++i) {
    CHECK(kvferry_backend_name(none[i]) == NULL);
    CHECK(kvferry_backend_available(none[i]) == -1);
    CHECK(kvferry_backend_detail(none[i]) == NULL);
  }
}

static void test_pinned_buffers(void) {
  const kvferry_device absent = {KVFERRY_DEVICE_CUDA, 1000}, first = {KVFERRY_DEVICE_CUDA, 0};
  kvferry_pinned_buffer* const wrong = (kvferry_pinned_buffer*)&absent;
  kvferry_pinned_buffer* buffer = wrong;
  CHECK_REFUSED(kvferry_pinned_buffer_create(4096, absent, &buffer), KVFERRY_UNAVAILABLE, "cuda:1000: ");
  CHECK(buffer == NULL);
  CHECK_REFUSED(kvferry_pinned_buffer_create(4096, first, NULL), KVFERRY_NULL, "buffer");
  buffer = wrong;
  CHECK_REFUSED(kvferry_pinned_buffer_create(-1, first, &buffer), KVFERRY_INVALID_ARGUMENT, "bytes is -1");
  CHECK(buffer == NULL);
  static const int32_t types[] = {-1, 0, 1, 3, 13, 258};
  for (int i = 0; i < 6; ++i) {
    const kvferry_device device = {types[i], 0};
    buffer = wrong;
    CHECK_REFUSED(kvferry_pinned_buffer_create(4096, device, &buffer), KVFERRY_INVALID_ARGUMENT, "device");
    CHECK(buffer == NULL);
  }
  CHECK(kvferry_pinned_buffer_create(0, first, &buffer) == KVFERRY_OK);
  CHECK(buffer != NULL);
  CHECK(kvferry_pinned_buffer_data(buffer) == NULL);
  CHECK(kvferry_pinned_buffer_device_data(buffer) == NULL);
  kvferry_pinned_buffer_destroy(buffer);
  CHECK(kvferry_pinned_buffer_data(NULL) == NULL);
  CHECK(kvferry_pinned_buffer_device_data(NULL) == NULL);
  CHECK(strstr(kvferry_last_error_message(), "pinned_buffer_device_data") != NULL);
  kvferry_pinned_buffer_destroy(NULL);
}

static void test_streams(void) {
  kvferry_stream* stream = NULL;
  CHECK(kvferry_stream_create(&stream) == KVFERRY_OK);
  kvferry_context* context = make_context(1, stream);
  make_gather();
  spoil_gather();
  gather.args.index_policy = KVFERRY_INDEX_POLICY_REJECT;
  make_copies();
  CHECK(kvferry_gather_pa_kv_cache(&gather.args, context, NULL) == KVFERRY_OK);
  CHECK(kvferry_copy_blocks(&copies.args, context, NULL) == KVFERRY_OK);
  CHECK_REFUSED(kvferry_stream_wait(stream), KVFERRY_INDEX, "gather_pa_kv_cache");
  CHECK(is_right(&kExamples[KVFERRY_OP_COPY_BLOCKS - 1]));
  CHECK(kvferry_stream_wait(stream) == KVFERRY_OK);

  // Plan, context and the descriptors of enqueued work may go.
  make_layers();
  CHECK(kvferry_transfer_layers(&layers.args, context, NULL) == KVFERRY_OK);
  memset(layers.tensors, 0xff, sizeof layers.tensors);
  memset(&layers.args, 0xff, sizeof layers.args);
  void* workspace;
  make_swaps();
  kvferry_plan* plan = plan_example(&kExamples[KVFERRY_OP_SWAP_BLOCKS - 1], context, &workspace);
  CHECK(kvferry_swap_blocks_run(plan, &swaps.buffers, context) == KVFERRY_OK);
  memset(&swaps.buffers, 0xff, sizeof swaps.buffers);
  kvferry_plan_destroy(plan);
  kvferry_context_destroy(context);
  kvferry_stream_destroy(stream);  // waits
  CHECK(is_right(&kExamples[KVFERRY_OP_TRANSFER_LAYERS - 1]));
  CHECK(is_right(&kExamples[KVFERRY_OP_SWAP_BLOCKS - 1]));
  free(workspace);
}

static void test_names(void) {
  static const char* const statuses[] = {"ok",          "invalid_argument", "null", "index", "unimplemented",
                                         "unavailable", "out_of_memory"};
  static const char* const operators[] = {"gather_pa_kv_cache",        "scatter_pa_kv_cache", "group_memcpy",
                                          "gather_selection_kv_cache", "copy_blocks",         "swap_blocks",
                                          "transfer_layers",           "gather_dequant"};
  CHECK(kvferry_version() == KVFERRY_VERSION);
  for (int i = 0; i < 7; ++i) CHECK(strcmp(kvferry_status_name((kvferry_status)i), statuses[i]) == 0);
  CHECK(strcmp(kvferry_status_name((kvferry_status)7), "unknown") == 0);
  for (int i = 0; i < 8; ++i) CHECK(strcmp(kvferry_operator_name(i + 1), operators[i]) == 0);
  CHECK(kvferry_operator_name(0) == NULL);
  CHECK(kvferry_operator_name(9) == NULL);
  CHECK(kvferry_operator_name(-1) == NULL);
}

// Two threads: a shared plan with buffers of their own, and errors of their own.
typedef struct {
  const kvferry_plan* plan;
  struct {
    uint16_t key[6 * 3];
    uint8_t value[6 * 5];
  } out;
  int wrong;
} caller;

static void* run_caller(void* argument) {
  caller* c = argument;
  c->wrong += strcmp(kvferry_last_error_message(), "") != 0;  // the other threads' errors are not its own
  kvferry_context* context = NULL;
  c->wrong += kvferry_context_create(NULL, &context) != KVFERRY_OK;
  kvferry_gather_pa_kv_cache_buffers buffers = gather.buffers;
  buffers.key = c->out.key;
  buffers.value = c->out.value;
  buffers.workspace = malloc((size_t)buffers.workspace_bytes);
  for (int i = 0; i < 200; ++i) {
    memset(&c->out, 0, sizeof c->out);
    c->wrong += kvferry_gather_pa_kv_cache_run(c->plan, &buffers, context) != KVFERRY_OK;
    c->wrong += memcmp(&c->out, &gather.expected, sizeof c->out) != 0;
    c->wrong += strstr(kvferry_plan_describe(c->plan), "gather_pa_kv_cache") == NULL;
    c->wrong += kvferry_copy_blocks_run(c->plan, NULL, context) != KVFERRY_NULL;
    c->wrong += strcmp(kvferry_last_error_message(), "copy_blocks: buffers: pointer is null") != 0;
  }
  free(buffers.workspace);
  kvferry_context_destroy(context);
  return NULL;
}

static void test_threads(void) {
  kvferry_context* context = make_context(1, NULL);
  make_gather();
  void* workspace;
  kvferry_plan* plan = plan_example(&kExamples[0], context, &workspace);
  CHECK_REFUSED(kvferry_stream_wait(NULL), KVFERRY_NULL, "stream_wait");
  caller callers[2];
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) {
    callers[i].plan = plan;
    callers[i].wrong = 0;
    CHECK(pthread_create(&threads[i], NULL, run_caller, &callers[i]) == 0);
  }
  for (int i = 0; i < 2; ++i) {
    pthread_join(threads[i], NULL);
    CHECK(callers[i].wrong == 0);
  }
  CHECK(strcmp(kvferry_last_error_message(), "stream_wait: stream: pointer is null") == 0);
  kvferry_plan_destroy(plan);
  free(workspace);
  kvferry_context_destroy(context);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they end the program
static void test_out_of_memory(void) {
  // 2^45 batches, all of them the same row of length 0: the workspace is beyond any machine.
  kvferry_context* context = make_context(1, NULL);
  const int64_t batches[2] = {(int64_t)1 << 45, 2}, strides[2] = {0, 1};
  make_gather();
  gather.lens[0] = 0;
  gather.tensors[2].shape = gather.tensors[3].shape = batches;
  gather.tensors[2].strides = gather.tensors[3].strides = strides;
  CHECK_REFUSED(kvferry_gather_pa_kv_cache(&gather.args, context, NULL), KVFERRY_OUT_OF_MEMORY,
                "out_of_memory");
  kvferry_context_destroy(context);
}
#endif

static const struct {
  const char* name;
  void (*run)(void);
} kTests[] = {
    {"EveryOperatorInEveryForm", test_every_operator_in_every_form},
    {"ScheduleAndCopy", test_schedule_and_copy},
    {"IndexPolicies", test_index_policies},
    {"NullAndForeignHandles", test_null_and_foreign_handles},
    {"SizesOfStructs", test_sizes_of_structs},
    {"Enumerations", test_enumerations},
    {"DTypes", test_dtypes},
    {"Tensors", test_tensors},
    {"Contexts", test_contexts},
    {"Backends", test_backends},
    {"PinnedBuffers", test_pinned_buffers},
    {"Streams", test_streams},
    {"Names", test_names},
    {"Threads", test_threads},
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    {"OutOfMemory", test_out_of_memory},
#endif
};

int main(int argc, char** argv) {
  FILE* report = argc > 1 ? fopen(argv[1], "w") : NULL;
  int failed = 0;
  for (size_t i = 0; i < sizeof kTests / sizeof kTests[0]; ++i) {
    failures = 0;
    kTests[i].run();
    if (failures > 0) printf("failed: Capi.%s\n", kTests[i].name);
    failed += failures > 0;
    if (report == NULL) continue;
    fprintf(report, "<testcase name=\"%s\" result=\"completed\" classname=\"Capi\">\n", kTests[i].name);
    if (failures > 0) fprintf(report, "<failure />\n");
    fprintf(report, "</testcase>\n");
  }
  if (report != NULL) fclose(report);
  printf("%d failed\n", failed);
  return failed > 0;
}
