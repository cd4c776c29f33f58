// SPDX-License-Identifier: Apache-2.0
//
// KVFerry's C API: the operators of include/kvferry/ops for C11, C++17 and everything that calls C.
//
// Handles. kvferry_context (where and how work runs), kvferry_stream (a FIFO of work), kvferry_plan (a
// checked call without pointers) and kvferry_pinned_buffer (memory for CUDA devices) are opaque. What a
// create or plan function stores belongs to the caller, who gives it to the destroy function of its type,
// once; destroying null does nothing. On failure they store null. A stream outlives the contexts that name
// it. Plans outlive contexts.
//
// Memory. Tensors, lists, workspaces and error records belong to the caller. Descriptors (kvferry_tensor, its
// shape and strides), args, options and lists of descriptors are read before the function returns; buffers
// structs too, but not the arrays of pointers in them. Without a stream all work is done when a function
// returns. With one, everything that buffers structs and tensors point to, and the plan's workspace, must
// live until kvferry_stream_wait() returns; plan and context may go before. Of a context of a CUDA device the
// work is done in the order of its cuda_stream, and the same must live until then.
//
// Threads. Every function may be called from any thread. A plan may be run by several threads at once, each
// with a workspace and an error record of its own. Calls that run at the same time through one context do not
// share its helper threads: give each thread that matters a context. Nobody may use a handle that is being
// destroyed. After fork() contexts and plans work in the child; streams, contexts of CUDA devices and pinned
// memory stay with the parent.
//
// Errors. Functions return a kvferry_status; those that return a value say what stands for an error. The text
// of the calling thread's last error comes from kvferry_last_error_message() and names the operator, the
// field, what was seen and what was expected. Null handles and null structs are errors (KVFERRY_NULL). On any
// error nothing is written to tensors. Functions do not print, abort or throw. Those that end in _run,
// _schedule and _copy allocate nothing but an error's text, helper threads with the first large call of a
// context, and room for more enqueued work than a stream ever held.
//
// Structs that may grow. Each begins with `size_t struct_size`, its size where the caller was compiled:
//
//     kvferry_copy_blocks_args args;
//     KVFERRY_INIT(args);          // or, in C11, = { .struct_size = sizeof args, .caches = ..., ... }
//
// Zero is every field's default. A smaller struct (an older program) gets zeroes for what it lacks; a larger
// one (a newer program) is refused unless all that this library does not know is zero. Members are 8 bytes
// wide, so that there is no padding. Enumerations and flags (0 or 1) travel as int64_t; values out of range
// are refused.
//
// Tensors. A kvferry_tensor has the layout of DLPack's DLTensor and its numbers: a `const DLTensor*` may be
// passed. Any strides, no alignment is required; at most 8 dimensions. Memory that is only read may be const
// behind a cast. Operands that are marked optional are absent when their pointer is null.
//
// One call has three forms, of which the first two belong together:
//
//     kvferry_<operator>_plan(args, context, &plan)       checks everything but the values of index tensors
//     kvferry_<operator>_run(plan, buffers, context)      any number of times; the same plan for all layers
//     kvferry_<operator>(args, context, error_record)     both, with a workspace that the context keeps
//
// The buffers struct has the tensors' `data` by the names of the args, `workspace` of at least
// kvferry_plan_workspace_bytes() bytes (any alignment) and, for IndexPolicy report, an optional error_record.
// A byte_offset is part of the plan, not of the pointers.
//
// What an operator does to the last byte, for bad indices and for empty operands stands in the C++ header of
// its name, include/kvferry/ops/<operator>.hpp; docs/ops/<operator>.md introduces it, docs/c_api.md this API.
#ifndef KVFERRY_KVFERRY_H
#define KVFERRY_KVFERRY_H

// NOLINTBEGIN(*): C's names, headers and typedefs are not those of the C++ sources.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define KVFERRY_API __attribute__((visibility("default")))
#else
#define KVFERRY_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// ---- Version and errors

#define KVFERRY_VERSION_MAJOR 0
#define KVFERRY_VERSION_MINOR 1
#define KVFERRY_VERSION_PATCH 0
#define KVFERRY_VERSION (KVFERRY_VERSION_MAJOR * 10000 + KVFERRY_VERSION_MINOR * 100 + KVFERRY_VERSION_PATCH)

// KVFERRY_VERSION of the library that is loaded.
KVFERRY_API int kvferry_version(void);

typedef enum kvferry_status {
  KVFERRY_OK = 0,
  KVFERRY_INVALID_ARGUMENT = 1,  // a shape, dtype, stride, size, struct_size or attribute breaks a rule
  KVFERRY_NULL = 2,              // a required pointer or handle is null
  KVFERRY_INDEX = 3,          // a bad index or address under a policy that refuses them: nothing was written
  KVFERRY_UNIMPLEMENTED = 4,  // valid, but this library does not do it
  KVFERRY_UNAVAILABLE = 5,    // this build or machine cannot do it
  KVFERRY_OUT_OF_MEMORY = 6
} kvferry_status;

// "invalid_argument", ...; "unknown" for a number that is none.
KVFERRY_API const char* kvferry_status_name(kvferry_status status);

// Text of the last call of this thread that failed, "" if none did. Calls that succeed leave it alone. Valid
// until the next call of this thread that fails.
KVFERRY_API const char* kvferry_last_error_message(void);

// Zeroes a struct that begins with struct_size and sets that.
#define KVFERRY_INIT(object) (memset(&(object), 0, sizeof(object)), (object).struct_size = sizeof(object))

// ---- Tensors

typedef enum kvferry_device_type {
  KVFERRY_DEVICE_CPU = 1,
  KVFERRY_DEVICE_CUDA = 2,
  KVFERRY_DEVICE_CUDA_HOST = 3,     // host memory that is pinned and mapped into CUDA devices
  KVFERRY_DEVICE_CUDA_MANAGED = 13  // memory that CUDA moves between host and devices
} kvferry_device_type;

typedef struct kvferry_device {
  int32_t type;
  int32_t id;
} kvferry_device;

typedef enum kvferry_dtype_code {
  KVFERRY_DTYPE_INT = 0,             // 8, 16, 32, 64 bits
  KVFERRY_DTYPE_UINT = 1,            // 8, 16, 32, 64 bits
  KVFERRY_DTYPE_FLOAT = 2,           // 16, 32 bits
  KVFERRY_DTYPE_BFLOAT = 4,          // 16 bits
  KVFERRY_DTYPE_FLOAT8_E4M3FN = 10,  // 8 bits
  KVFERRY_DTYPE_FLOAT8_E5M2 = 12,    // 8 bits
  KVFERRY_DTYPE_HIFLOAT8 = 0x80      // 8 bits. Not DLPack's, which has no code for it
} kvferry_dtype_code;

typedef struct kvferry_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;  // 1
} kvferry_dtype;

// Element (i0, i1, ...) lies at data + byte_offset + (i0 * strides[0] + i1 * strides[1] + ...) * bits / 8.
typedef struct kvferry_tensor {
  void* data;
  kvferry_device device;
  int32_t ndim;
  kvferry_dtype dtype;
  const int64_t* shape;    // ndim lengths; null is fine for ndim 0
  const int64_t* strides;  // ndim steps in elements; null: dense, row-major
  uint64_t byte_offset;    // a multiple of the element's size
} kvferry_tensor;

// ---- Streams and contexts

typedef struct kvferry_stream kvferry_stream;

// One background thread that runs what is enqueued, in order.
KVFERRY_API kvferry_status kvferry_stream_create(kvferry_stream** stream);

// Waits for all that was enqueued before the call. A refusal at run time wrote nothing and did not stop the
// work behind it; it is returned here, once: of several the first, and its message says how many followed.
KVFERRY_API kvferry_status kvferry_stream_wait(kvferry_stream* stream);

// Waits; a refusal that nobody fetched is lost.
KVFERRY_API void kvferry_stream_destroy(kvferry_stream* stream);

typedef struct kvferry_context kvferry_context;

typedef struct kvferry_context_options {
  size_t struct_size;
  int64_t threads;             // the caller's included. 0: KVFERRY_NUM_THREADS, else the processors there are
  kvferry_stream* stream;      // null: work runs in the calling thread, with its helpers
  const char* implementation;  // all plans must use it: "avx2", "generic". Null: KVFERRY_FORCE_IMPL, else the
                               // first that can run
  int64_t streaming;           // flag: another device reads the results next, not this CPU
  kvferry_device device;       // {0, 0} is the CPU
  const int64_t* cpus;         // num_cpus processors that the helper threads may run on; none: those of the
  int64_t num_cpus;            // thread whose call starts them
  void* cuda_stream;           // of a CUDA device: the cudaStream_t that operators are launched on; null is
                               // CUDA's legacy default stream
  int64_t cuda_staging_bytes;  // of a CUDA device: memory there that swap_blocks may stage copies in; 0: 16
                               // MiB, negative: none
} kvferry_context_options;

// `options` may be null: the defaults. Full semantics: include/kvferry/context.hpp. The environment is read
// here: a wrong KVFERRY_NUM_THREADS is an error here, a wrong KVFERRY_FORCE_IMPL one of the first plan. A
// device that is not there is an error here (KVFERRY_UNAVAILABLE).
KVFERRY_API kvferry_status kvferry_context_create(const kvferry_context_options* options,
                                                  kvferry_context** context);
KVFERRY_API void kvferry_context_destroy(kvferry_context* context);

// How many threads it may use. -1: context is null.
KVFERRY_API int kvferry_context_threads(const kvferry_context* context);

// What this build can run on, on this machine. Backends are numbered from 0; a number that is none gives null
// and -1, so that a loop lists them all. To ask initialises the CUDA driver (include/kvferry/backend.hpp).
KVFERRY_API const char* kvferry_backend_name(int backend);  // "cpu", "cuda"
KVFERRY_API int kvferry_backend_available(int backend);     // 1 or 0

// What it has, "avx2, generic", "cuda:0 NVIDIA H200 (sm_90, 132 SMs)", or why it is not available. For
// people, not for parsing. Valid until the thread's next call of this function. Null too if there is no
// memory.
KVFERRY_API const char* kvferry_backend_detail(int backend);

// ---- Pinned memory

typedef struct kvferry_pinned_buffer kvferry_pinned_buffer;

// Host memory that is pinned and mapped into CUDA devices, for tensors of KVFERRY_DEVICE_CUDA_HOST. Not
// zeroed. Full semantics: PinnedBuffer in include/kvferry/memory.hpp. `device` is a CUDA device.
KVFERRY_API kvferry_status kvferry_pinned_buffer_create(int64_t bytes, kvferry_device device,
                                                        kvferry_pinned_buffer** buffer);

// The memory. Null: buffer is null or has no bytes.
KVFERRY_API void* kvferry_pinned_buffer_data(const kvferry_pinned_buffer* buffer);

// Its address for kernels of yours; operators ask for it themselves. Null: buffer is null or has no bytes.
KVFERRY_API void* kvferry_pinned_buffer_device_data(const kvferry_pinned_buffer* buffer);

// What is done with the memory must be over.
KVFERRY_API void kvferry_pinned_buffer_destroy(kvferry_pinned_buffer* buffer);

// ---- Plans

typedef enum kvferry_operator {
  KVFERRY_OP_GATHER_PA_KV_CACHE = 1,
  KVFERRY_OP_SCATTER_PA_KV_CACHE = 2,
  KVFERRY_OP_GROUP_MEMCPY = 3,
  KVFERRY_OP_GATHER_SELECTION_KV_CACHE = 4,
  KVFERRY_OP_COPY_BLOCKS = 5,
  KVFERRY_OP_SWAP_BLOCKS = 6,
  KVFERRY_OP_TRANSFER_LAYERS = 7,
  KVFERRY_OP_GATHER_DEQUANT = 8
} kvferry_operator;

// "gather_pa_kv_cache"; null for a number that is none, so that a loop from 1 lists them all.
KVFERRY_API const char* kvferry_operator_name(int op);

typedef struct kvferry_plan kvferry_plan;

KVFERRY_API void kvferry_plan_destroy(kvferry_plan* plan);

// A kvferry_operator. 0: plan is null.
KVFERRY_API int kvferry_plan_operator(const kvferry_plan* plan);

// What run needs. -1: plan is null.
KVFERRY_API int64_t kvferry_plan_workspace_bytes(const kvferry_plan* plan);

// "avx2"; the text belongs to the library. Null: plan is null.
KVFERRY_API const char* kvferry_plan_implementation(const kvferry_plan* plan);

// Text for people, not for parsing: implementation and why others refused, what one row is, units of work.
// It lives as long as the plan. Null: plan is null, or there is no memory.
KVFERRY_API const char* kvferry_plan_describe(const kvferry_plan* plan);

// ---- What operators share

// Layout of a paged cache.
typedef enum kvferry_cache_mode {
  KVFERRY_CACHE_MODE_NORM = 0,  // [NB, bs, H, D]
  KVFERRY_CACHE_MODE_PA_NZ = 1  // FRACTAL_NZ: [NB, H*D/e, bs, e] with e = 32 / bytes of an element
} kvferry_cache_mode;

// What seq_lens holds. The default is CANN's for these operators.
typedef enum kvferry_seq_lens_mode {
  KVFERRY_SEQ_LENS_CUMSUM = 0,  // [B+1] running sums, beginning with 0 (is_seq_lens_cumsum of the C++ API)
  KVFERRY_SEQ_LENS_COUNTS = 1   // [B] lengths
} kvferry_seq_lens_mode;

// What happens for bad entries of index tensors; each operator's C++ header says which are bad.
typedef enum kvferry_index_policy {
  KVFERRY_INDEX_POLICY_DEFAULT = 0,  // defined bytes, no record
  KVFERRY_INDEX_POLICY_REPORT = 1,   // the same bytes, and an error record is filled
  KVFERRY_INDEX_POLICY_REJECT = 2    // KVFERRY_INDEX before the first byte is written
} kvferry_index_policy;

// The caller zeroes it; calls accumulate into it. `bad` adds up, the other members describe the entry with
// the lowest (batch, column) so far. Full semantics: ErrorRecord in include/kvferry/plan.hpp.
typedef struct kvferry_error_record {
  uint64_t bad;
  int64_t batch;
  int64_t column;
  int64_t id;
  uint32_t which;  // KVFERRY_BAD_...
  uint32_t op;     // a kvferry_operator
} kvferry_error_record;

enum {
  KVFERRY_BAD_KEY = 1,
  KVFERRY_BAD_VALUE = 2,
  KVFERRY_BAD_COLUMN = 4,
  KVFERRY_BAD_DUPLICATE = 8,
  KVFERRY_BAD_SOURCE = 16,
  KVFERRY_BAD_DESTINATION = 32
};

// ---- gather_pa_kv_cache: the tokens of paged K and V caches to contiguous K and V.
//
// key_cache, value_cache are read through block_tables [B, W] and seq_lens (int32 or int64, one dtype); key
// and value [N, H, D] (PA_NZ: [N, H*D]) are written. Caches and outputs have any K/V dtype. A pair without
// elements (D = 0) is skipped: K-only caches. Full semantics: include/kvferry/ops/gather_pa_kv_cache.hpp.

typedef struct kvferry_gather_pa_kv_cache_args {
  size_t struct_size;
  const kvferry_tensor* key_cache;
  const kvferry_tensor* value_cache;
  const kvferry_tensor* block_tables;
  const kvferry_tensor* seq_lens;
  const kvferry_tensor* key;
  const kvferry_tensor* value;
  const kvferry_tensor* seq_offset;  // optional
  int64_t cache_mode;                // kvferry_cache_mode
  int64_t seq_lens_mode;             // kvferry_seq_lens_mode
  int64_t index_policy;              // kvferry_index_policy
} kvferry_gather_pa_kv_cache_args;

typedef struct kvferry_gather_pa_kv_cache_buffers {
  size_t struct_size;
  const void* key_cache;
  const void* value_cache;
  const void* block_tables;
  const void* seq_lens;
  const void* seq_offset;
  void* key;
  void* value;
  void* workspace;
  int64_t workspace_bytes;
  kvferry_error_record* error_record;
} kvferry_gather_pa_kv_cache_buffers;

KVFERRY_API kvferry_status kvferry_gather_pa_kv_cache_plan(const kvferry_gather_pa_kv_cache_args* args,
                                                           const kvferry_context* context,
                                                           kvferry_plan** plan);
KVFERRY_API kvferry_status kvferry_gather_pa_kv_cache_run(const kvferry_plan* plan,
                                                          const kvferry_gather_pa_kv_cache_buffers* buffers,
                                                          const kvferry_context* context);
KVFERRY_API kvferry_status kvferry_gather_pa_kv_cache(const kvferry_gather_pa_kv_cache_args* args,
                                                      const kvferry_context* context,
                                                      kvferry_error_record* error_record);

// ---- scatter_pa_kv_cache: new K and V tokens into the slots of paged caches ("reshape and cache").
//
// key, value [T, H, D] go to slots slot_mapping [T] (block * bs + position, negative: skipped) of key_cache,
// value_cache, which are written. Full semantics: include/kvferry/ops/scatter_pa_kv_cache.hpp.

typedef enum kvferry_scatter_mode {
  KVFERRY_SCATTER_MODE_NONE = 0,
  KVFERRY_SCATTER_MODE_NHSD = 1,  // caches [NB, H, bs, D]
  KVFERRY_SCATTER_MODE_NCT = 2  // tokens at nct_offsets + t * nct_strides elements of key's and value's data
} kvferry_scatter_mode;

typedef struct kvferry_scatter_pa_kv_cache_args {
  size_t struct_size;
  const kvferry_tensor* key;
  const kvferry_tensor* key_cache;
  const kvferry_tensor* slot_mapping;
  const kvferry_tensor* value;        // optional together with value_cache
  const kvferry_tensor* value_cache;  // optional
  int64_t cache_mode;                 // kvferry_cache_mode
  int64_t scatter_mode;               // kvferry_scatter_mode
  int64_t nct_strides[2];             // of key and value; NCT only
  int64_t nct_offsets[2];
  int64_t nct_storage_elements[2];  // of the memory at key's and value's data; NCT needs it
  int64_t index_policy;             // kvferry_index_policy
} kvferry_scatter_pa_kv_cache_args;

typedef struct kvferry_scatter_pa_kv_cache_buffers {
  size_t struct_size;
  const void* key;
  void* key_cache;
  const void* slot_mapping;
  const void* value;
  void* value_cache;
  void* workspace;
  int64_t workspace_bytes;
  kvferry_error_record* error_record;
} kvferry_scatter_pa_kv_cache_buffers;

KVFERRY_API kvferry_status kvferry_scatter_pa_kv_cache_plan(const kvferry_scatter_pa_kv_cache_args* args,
                                                            const kvferry_context* context,
                                                            kvferry_plan** plan);
KVFERRY_API kvferry_status kvferry_scatter_pa_kv_cache_run(const kvferry_plan* plan,
                                                           const kvferry_scatter_pa_kv_cache_buffers* buffers,
                                                           const kvferry_context* context);
KVFERRY_API kvferry_status kvferry_scatter_pa_kv_cache(const kvferry_scatter_pa_kv_cache_args* args,
                                                       const kvferry_context* context,
                                                       kvferry_error_record* error_record);

// ---- group_memcpy: many copies from a table of addresses.
//
// addr_table [H, 2] or [2H], int64 or uint64: source 0, destination 0, source 1, ... Each pair copies
// copy_bytes, or its own of sizes [H]. Wild addresses are undefined behaviour, as in memcpy. Full semantics:
// include/kvferry/ops/group_memcpy.hpp.

typedef struct kvferry_group_memcpy_args {
  size_t struct_size;
  const kvferry_tensor* addr_table;
  int64_t copy_bytes;           // 0 together with sizes
  const kvferry_tensor* sizes;  // optional
  const kvferry_tensor* count;  // optional, [] or [1]: pairs that run, read at run time
  const int64_t* host_count;    // optional: pairs that run, read by plan
  int64_t skip_null;            // flag: pairs with a null address are skipped
  int64_t checked;              // flag: null, wrapping and overlapping addresses are refused
} kvferry_group_memcpy_args;

typedef struct kvferry_group_memcpy_buffers {
  size_t struct_size;
  const void* addr_table;
  const void* sizes;
  const void* count;
  void* workspace;
  int64_t workspace_bytes;
} kvferry_group_memcpy_buffers;

KVFERRY_API kvferry_status kvferry_group_memcpy_plan(const kvferry_group_memcpy_args* args,
                                                     const kvferry_context* context, kvferry_plan** plan);
KVFERRY_API kvferry_status kvferry_group_memcpy_run(const kvferry_plan* plan,
                                                    const kvferry_group_memcpy_buffers* buffers,
                                                    const kvferry_context* context);
// Records nothing: there are no index policies.
KVFERRY_API kvferry_status kvferry_group_memcpy(const kvferry_group_memcpy_args* args,
                                                const kvferry_context* context);

// ---- gather_selection_kv_cache: the top-k blocks of a long paged cache into a small selection cache,
// re-using what the step before left there.
//
// The selection caches, block_status and actual_seq are written, so are counters and fetch_counts where
// given. Shapes, the state between steps and the slots' order:
// include/kvferry/ops/gather_selection_kv_cache.hpp; docs/ops/gather_selection_kv_cache.md is a tutorial.

typedef enum kvferry_q_len_mode {
  KVFERRY_Q_LEN_COUNTS = 0,
  KVFERRY_Q_LEN_PREFIX_SUM = 1,
  KVFERRY_Q_LEN_ALL_ROWS = 2  // full_q_actual_seq may be absent
} kvferry_q_len_mode;

typedef struct kvferry_gather_selection_kv_cache_args {
  size_t struct_size;
  const kvferry_tensor* selection_k_rope;  // optional together with full_k_rope
  const kvferry_tensor* selection_kv_cache;
  const kvferry_tensor* selection_kv_block_table;
  const kvferry_tensor* selection_kv_block_status;
  const kvferry_tensor* selection_topk_indices;
  const kvferry_tensor* full_k_rope;  // optional
  const kvferry_tensor* full_kv_cache;
  const kvferry_tensor* full_kv_block_table;
  const kvferry_tensor* full_kv_actual_seq;
  const kvferry_tensor* full_q_actual_seq;  // optional, see q_len_mode
  const kvferry_tensor* selection_kv_actual_seq;
  const kvferry_tensor* status_row;    // optional
  const kvferry_tensor* counters;      // optional
  const kvferry_tensor* fetch_counts;  // optional
  int64_t selection_topk_block_size;   // tokens; 0: 64, CANN's default
  int64_t q_len_mode;                  // kvferry_q_len_mode
  int64_t index_policy;                // kvferry_index_policy
} kvferry_gather_selection_kv_cache_args;

typedef struct kvferry_gather_selection_kv_cache_buffers {
  size_t struct_size;
  void* selection_k_rope;
  void* selection_kv_cache;
  const void* selection_kv_block_table;
  void* selection_kv_block_status;
  const void* selection_topk_indices;
  const void* full_k_rope;
  const void* full_kv_cache;
  const void* full_kv_block_table;
  const void* full_kv_actual_seq;
  const void* full_q_actual_seq;
  void* selection_kv_actual_seq;
  const void* status_row;
  void* counters;
  void* fetch_counts;
  void* workspace;
  int64_t workspace_bytes;
  kvferry_error_record* error_record;
} kvferry_gather_selection_kv_cache_buffers;

KVFERRY_API kvferry_status kvferry_gather_selection_kv_cache_plan(
    const kvferry_gather_selection_kv_cache_args* args, const kvferry_context* context, kvferry_plan** plan);
// schedule and copy in one call.
KVFERRY_API kvferry_status kvferry_gather_selection_kv_cache_run(
    const kvferry_plan* plan, const kvferry_gather_selection_kv_cache_buffers* buffers,
    const kvferry_context* context);
// Decides, and leaves the list of copies in the workspace. Does not look at the four caches.
KVFERRY_API kvferry_status kvferry_gather_selection_kv_cache_schedule(
    const kvferry_plan* plan, const kvferry_gather_selection_kv_cache_buffers* buffers,
    const kvferry_context* context);
// Carries the list out, once for each layer that shares it. Looks at the four caches and the workspace only.
KVFERRY_API kvferry_status kvferry_gather_selection_kv_cache_copy(
    const kvferry_plan* plan, const kvferry_gather_selection_kv_cache_buffers* buffers,
    const kvferry_context* context);
KVFERRY_API kvferry_status
kvferry_gather_selection_kv_cache(const kvferry_gather_selection_kv_cache_args* args,
                                  const kvferry_context* context, kvferry_error_record* error_record);

// ---- copy_blocks: blocks of paged caches onto other blocks of the same caches, all layers in one call.
//
// caches: a list of num_caches descriptors [NB, ...], which are written; mapping [n, 2]: source, destination
// (negative: skipped). Full semantics: include/kvferry/ops/copy_blocks.hpp.

typedef struct kvferry_copy_blocks_args {
  size_t struct_size;
  const kvferry_tensor* caches;
  size_t num_caches;
  const kvferry_tensor* mapping;
  const kvferry_tensor* count;  // optional, [] or [1]: pairs that run, read at run time
  int64_t index_policy;         // kvferry_index_policy
} kvferry_copy_blocks_args;

typedef struct kvferry_copy_blocks_buffers {
  size_t struct_size;
  void* const* caches;  // num_caches pointers, read when the work runs
  const void* mapping;
  const void* count;
  void* workspace;
  int64_t workspace_bytes;
  kvferry_error_record* error_record;
} kvferry_copy_blocks_buffers;

KVFERRY_API kvferry_status kvferry_copy_blocks_plan(const kvferry_copy_blocks_args* args,
                                                    const kvferry_context* context, kvferry_plan** plan);
KVFERRY_API kvferry_status kvferry_copy_blocks_run(const kvferry_plan* plan,
                                                   const kvferry_copy_blocks_buffers* buffers,
                                                   const kvferry_context* context);
KVFERRY_API kvferry_status kvferry_copy_blocks(const kvferry_copy_blocks_args* args,
                                               const kvferry_context* context,
                                               kvferry_error_record* error_record);

// ---- swap_blocks: blocks from one pool of caches to another, all layers in one call.
//
// src and dst: two lists of num_caches descriptors [NB, ...], dst[i] like src[i] but for NB; dst is written.
// mapping [n, 2]: block of src, block of dst. Full semantics: include/kvferry/ops/swap_blocks.hpp.

typedef struct kvferry_swap_blocks_args {
  size_t struct_size;
  const kvferry_tensor* src;
  const kvferry_tensor* dst;
  size_t num_caches;
  const kvferry_tensor* mapping;
  const kvferry_tensor* count;  // optional, [] or [1]: pairs that run, read at run time
  int64_t index_policy;         // kvferry_index_policy
} kvferry_swap_blocks_args;

typedef struct kvferry_swap_blocks_buffers {
  size_t struct_size;
  const void* const* src;  // num_caches pointers, read when the work runs
  void* const* dst;
  const void* mapping;
  const void* count;
  void* workspace;
  int64_t workspace_bytes;
  kvferry_error_record* error_record;
} kvferry_swap_blocks_buffers;

KVFERRY_API kvferry_status kvferry_swap_blocks_plan(const kvferry_swap_blocks_args* args,
                                                    const kvferry_context* context, kvferry_plan** plan);
KVFERRY_API kvferry_status kvferry_swap_blocks_run(const kvferry_plan* plan,
                                                   const kvferry_swap_blocks_buffers* buffers,
                                                   const kvferry_context* context);
KVFERRY_API kvferry_status kvferry_swap_blocks(const kvferry_swap_blocks_args* args,
                                               const kvferry_context* context,
                                               kvferry_error_record* error_record);

// ---- transfer_layers: blocks of many layers between per-layer pools and one contiguous chunk.
//
// key_caches and value_caches: lists of num_layers descriptors [NB, bs, H, D]; chunk [L, n, P, bs, H, D] or
// [n, L, P, bs, H, D]; block_ids [n]. The direction says which side is written. Full semantics:
// include/kvferry/ops/transfer_layers.hpp.

typedef enum kvferry_chunk_layout {
  KVFERRY_CHUNK_LAYER_FIRST = 0,
  KVFERRY_CHUNK_PAGE_FIRST = 1
} kvferry_chunk_layout;

typedef enum kvferry_transfer_direction {
  KVFERRY_POOLS_TO_CHUNK = 0,
  KVFERRY_CHUNK_TO_POOLS = 1
} kvferry_transfer_direction;

typedef struct kvferry_transfer_layers_args {
  size_t struct_size;
  const kvferry_tensor* key_caches;
  const kvferry_tensor* value_caches;  // optional: null if K alone moves
  size_t num_layers;
  const kvferry_tensor* chunk;
  const kvferry_tensor* block_ids;
  int64_t chunk_layout;  // kvferry_chunk_layout
  int64_t direction;     // kvferry_transfer_direction
  int64_t index_policy;  // kvferry_index_policy
} kvferry_transfer_layers_args;

typedef struct kvferry_transfer_layers_buffers {
  size_t struct_size;
  void* const* key_caches;  // num_layers pointers, read when the work runs
  void* const* value_caches;
  void* chunk;
  const void* block_ids;
  void* workspace;
  int64_t workspace_bytes;
  kvferry_error_record* error_record;
} kvferry_transfer_layers_buffers;

KVFERRY_API kvferry_status kvferry_transfer_layers_plan(const kvferry_transfer_layers_args* args,
                                                        const kvferry_context* context, kvferry_plan** plan);
KVFERRY_API kvferry_status kvferry_transfer_layers_run(const kvferry_plan* plan,
                                                       const kvferry_transfer_layers_buffers* buffers,
                                                       const kvferry_context* context);
KVFERRY_API kvferry_status kvferry_transfer_layers(const kvferry_transfer_layers_args* args,
                                                   const kvferry_context* context,
                                                   kvferry_error_record* error_record);

// ---- gather_dequant: paged fp8 rows of DeepSeek-V3.2 to bfloat16 rows.
//
// cache [NB, bs, 656] uint8 or int8 is read through block_tables and seq_lens as in gather_pa_kv_cache; out
// [N, 576] bfloat16 is written. Full semantics: include/kvferry/ops/gather_dequant.hpp.

typedef struct kvferry_gather_dequant_args {
  size_t struct_size;
  const kvferry_tensor* cache;
  const kvferry_tensor* block_tables;
  const kvferry_tensor* seq_lens;
  const kvferry_tensor* out;
  const kvferry_tensor* seq_offset;  // optional
  int64_t seq_lens_mode;             // kvferry_seq_lens_mode
  int64_t index_policy;              // kvferry_index_policy
} kvferry_gather_dequant_args;

typedef struct kvferry_gather_dequant_buffers {
  size_t struct_size;
  const void* cache;
  const void* block_tables;
  const void* seq_lens;
  const void* seq_offset;
  void* out;
  void* workspace;
  int64_t workspace_bytes;
  kvferry_error_record* error_record;
} kvferry_gather_dequant_buffers;

KVFERRY_API kvferry_status kvferry_gather_dequant_plan(const kvferry_gather_dequant_args* args,
                                                       const kvferry_context* context, kvferry_plan** plan);
KVFERRY_API kvferry_status kvferry_gather_dequant_run(const kvferry_plan* plan,
                                                      const kvferry_gather_dequant_buffers* buffers,
                                                      const kvferry_context* context);
KVFERRY_API kvferry_status kvferry_gather_dequant(const kvferry_gather_dequant_args* args,
                                                  const kvferry_context* context,
                                                  kvferry_error_record* error_record);

#ifdef __cplusplus
}  // extern "C"
#endif
// NOLINTEND(*)

#endif  // KVFERRY_KVFERRY_H
