"""The operators of KVFerry, in place, on tensors of any framework."""

from collections.abc import Sequence
from typing import Any, Literal

import kvferry._types


version: str = ...

class Stream:
    """
    A FIFO of work on the CPU: one background thread.

    Calls with a context that has this stream return at once. Tensors are read and written when the work runs; they
    are kept alive until wait() returned. A refusal at run time does not stop the work behind it.

    After os.fork() a stream stays with the parent.
    """

    def __init__(self) -> None: ...

    def wait(self) -> None:
        """
        Waits for what was enqueued before.

        Raises the first refusal since the last wait, and says how many followed.
        """

class Context:
    """
    Where and how work runs: helper threads, started at the first large call.

    threads: how many may work, the caller's included; 0: KVFERRY_NUM_THREADS, else as many as cpus, else as there
        are processors.
    cpus: processors that the helper threads may run on; empty: those of the calling thread.
    stream: on the CPU a Stream: work is enqueued there instead of done in the call. On a CUDA device the stream that
        work is enqueued on: the address of a cudaStream_t, or an object with __cuda_stream__, cuda_stream (torch) or
        ptr (CuPy); None is CUDA's default stream.
    implementation: "avx512", "avx2", "neon", "generic": the one that must be used; empty: the best that can run.
    streaming: the result is read next by another device, not by this CPU.
    device: "cpu", "cuda" or "cuda:<index>". On a CUDA device calls return when their work is enqueued: tensors must
        stay until it is done.
    staging_bytes: of a CUDA device: memory there that swap_blocks may stage copies between host and device in; 0: 16 MiB,
        negative: none.

    Calls that run at the same time through one context do not share its helper threads.
    """

    def __init__(self, *, threads: int = 0, cpus: Sequence[int] = (), stream: Stream | kvferry._types.CudaStream | int | None = None, implementation: str = "", streaming: bool = False, device: str = "cpu", staging_bytes: int = 0) -> None: ...

    @property
    def threads(self) -> int:
        """How many threads may work, the caller's included."""

    @property
    def stream(self) -> Stream | None:
        """Where work is enqueued on the CPU."""

    @property
    def cuda_stream(self) -> int | None:
        """Address of the stream that work is enqueued on; None on the CPU."""

    @property
    def device(self) -> str:
        """Where work is done, such as "cuda:1"."""

class DeviceMemory:
    """Of the functional forms, for results that JAX takes; not for users."""

    @staticmethod
    def zeros(op: str, name: str, context: Context, shape: Sequence[int], dtype: str) -> DeviceMemory: ...

    @staticmethod
    def copy(op: str, name: str, context: Context, tensor: kvferry._types.Tensor) -> DeviceMemory: ...

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

class ErrorRecord:
    """
    What index_policy="report" saw: pass it as error_record.

    Calls accumulate into it: bad adds up, the other members describe the entry with the lowest (batch, column) so
    far. Each operator says what they are. Not to be shared by calls that run at the same time.

    On a CUDA device the record is a tensor of zeros there, uint8 [40] or int64 [5]; from_bytes() reads a copy of it.
    """

    def __init__(self) -> None: ...

    @staticmethod
    def from_bytes(bytes: Any) -> ErrorRecord:
        """
        The record in 40 bytes of the host: bytes, or a NumPy array such as tensor.cpu().numpy().
        """

    @property
    def bad(self) -> int:
        """
        How many entries were bad; of an operator with K and V (entry, K | V) pairs.
        """

    @property
    def batch(self) -> int: ...

    @property
    def column(self) -> int: ...

    @property
    def id(self) -> int: ...

    @property
    def which(self) -> int:
        """BAD_... bits."""

    @property
    def op(self) -> str:
        """Name of the operator; empty without a bad entry."""

    def clear(self) -> None:
        """Forgets what was recorded."""

    def __repr__(self) -> str: ...

BAD_KEY: int = ...

BAD_VALUE: int = ...

BAD_COLUMN: int = ...

BAD_DUPLICATE: int = ...

BAD_SOURCE: int = ...

BAD_DESTINATION: int = ...

class BackendInfo:
    """What this build can run on, or why it cannot."""

    @property
    def name(self) -> str:
        """Such as "cuda"."""

    @property
    def available(self) -> bool: ...

    @property
    def detail(self) -> str:
        """
        What it has ("cuda:0 NVIDIA H200 (sm_90, 132 SMs)"), or why it is not there. For people.
        """

    def __repr__(self) -> str: ...

def backends() -> list[BackendInfo]:
    """
    Every backend that KVFerry knows, "cpu" first.

    It initialises the CUDA driver: a child that is forked afterwards cannot use CUDA.
    """

class GatherPaKvCachePlan:
    """
    A checked call of gather_pa_kv_cache, without tensors. Made by plan_gather_pa_kv_cache.

    Any number of threads may run it at once.
    """

    @property
    def op(self) -> str:
        """Name of the operator."""

    @property
    def implementation(self) -> str:
        """Name of the implementation that runs, such as "avx2"."""

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory of one run; it is managed here."""

    def describe(self) -> str:
        """
        Text for people: implementation, rows, split, workspace. Not for parsing.
        """

    def run(self, key_cache: kvferry._types.Tensor, value_cache: kvferry._types.Tensor, block_tables: kvferry._types.Tensor, seq_lens: kvferry._types.Tensor, key: kvferry._types.Tensor, value: kvferry._types.Tensor, *, seq_offset: kvferry._types.Tensor | None = None, error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
        """
        Does the call. The tensors must have the planned dtypes, shapes and strides, the memory may differ.
        """

def gather_pa_kv_cache(key_cache: kvferry._types.Tensor, value_cache: kvferry._types.Tensor, block_tables: kvferry._types.Tensor, seq_lens: kvferry._types.Tensor, key: kvferry._types.Tensor, value: kvferry._types.Tensor, *, seq_offset: kvferry._types.Tensor | None = None, cache_mode: Literal["Norm", "PA_NZ"] = "Norm", is_seq_lens_cumsum: bool = False, index_policy: Literal["default", "report", "reject"] = "default", error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
    """
    The tokens of paged K and V caches to contiguous key and value, in place.

    key_cache:    [blocks, block_size, heads, head_size] ("Norm"), [blocks, heads*head_size/e, block_size, e] ("PA_NZ",
                  e = 32 bytes of elements); value_cache alike, with heads, head size, blocks of its own
    block_tables: [batches, columns], int32 or int64
    seq_lens:     [batches] lengths, or [batches + 1] running sums with is_seq_lens_cumsum; dtype of block_tables.
                  The default False is that of the published PyTorch binding; in C++ and CANN it is True
    key, value:   written, [rows, heads, head_size] ("Norm"), [rows, heads*head_size] ("PA_NZ")
    seq_offset:   [batches]; tokens to begin at, of which whole blocks count

    Dtypes: float16, bfloat16, float32, (u)int8/16/32, float8; an output has its cache's. Bytes move unchanged. Any
    strides. Rows that no sequence reaches keep their contents.

    A bad entry, a visited column outside the table or a block id outside its cache, gives zero rows. "report" also
    counts it in error_record; "reject" raises IndexError before anything is written.

    Outputs may not overlap each other or an input.
    """

def plan_gather_pa_kv_cache(key_cache: kvferry._types.Tensor, value_cache: kvferry._types.Tensor, block_tables: kvferry._types.Tensor, seq_lens: kvferry._types.Tensor, key: kvferry._types.Tensor, value: kvferry._types.Tensor, *, seq_offset: kvferry._types.Tensor | None = None, cache_mode: Literal["Norm", "PA_NZ"] = "Norm", is_seq_lens_cumsum: bool = False, index_policy: Literal["default", "report", "reject"] = "default", context: Context | None = None) -> GatherPaKvCachePlan:
    """
    Checks a call of gather_pa_kv_cache once; run() then does it for tensors of these shapes.

    The tensors tell shapes and dtypes; the plan keeps no reference to them.
    """

class ScatterPaKvCachePlan:
    """
    A checked call of scatter_pa_kv_cache, without tensors. Made by plan_scatter_pa_kv_cache.

    Any number of threads may run it at once.
    """

    @property
    def op(self) -> str:
        """Name of the operator."""

    @property
    def implementation(self) -> str:
        """Name of the implementation that runs, such as "avx2"."""

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory of one run; it is managed here."""

    def describe(self) -> str:
        """
        Text for people: implementation, rows, split, workspace. Not for parsing.
        """

    def run(self, key: kvferry._types.Tensor, value: kvferry._types.Tensor | None, key_cache: kvferry._types.Tensor, value_cache: kvferry._types.Tensor | None, slot_mapping: kvferry._types.Tensor, *, error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
        """
        Does the call. The tensors must have the planned dtypes, shapes and strides, the memory may differ.
        """

def scatter_pa_kv_cache(key: kvferry._types.Tensor, value: kvferry._types.Tensor | None, key_cache: kvferry._types.Tensor, value_cache: kvferry._types.Tensor | None, slot_mapping: kvferry._types.Tensor, *, cache_mode: Literal["Norm", "PA_NZ"] = "Norm", scatter_mode: Literal["None", "Nhsd", "Nct"] = "None", nct_strides: Sequence[int] = (0, 0), nct_offsets: Sequence[int] = (0, 0), index_policy: Literal["default", "report", "reject"] = "default", error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
    """
    New K and V tokens into the slots of paged caches, in place.

    key, value:   [tokens or more, heads, head_size]; value and value_cache may both be None
    key_cache:    written, by cache_mode and scatter_mode: "Norm" [blocks, block_size, heads, head_size]; "Norm" with
                  "Nhsd" [blocks, heads, block_size, head_size]; "PA_NZ" [blocks, heads*head_size/e, block_size, e] or
                  [blocks, heads, head_size/e, block_size, e], e = 32 bytes of elements; value_cache alike
    slot_mapping: [tokens], int32 or int64: block * block_size + position; negative slots are skipped, as padding
    nct_strides:  with "Nct" only, for key and value: token t begins nct_offsets + t * nct_strides elements behind the
                  tensor's first element, whatever its strides are, and ends within what the tensor spans

    Dtypes: as for gather_pa_kv_cache; a cache has its tokens'. Any strides.

    A slot beyond its cache is skipped, and of a slot that an earlier token has the bytes are unspecified. "report"
    also counts both in error_record (batch = token, id = slot, BAD_DUPLICATE); "reject" raises IndexError before
    anything is written.

    Inputs and caches may not overlap.
    """

def plan_scatter_pa_kv_cache(key: kvferry._types.Tensor, value: kvferry._types.Tensor | None, key_cache: kvferry._types.Tensor, value_cache: kvferry._types.Tensor | None, slot_mapping: kvferry._types.Tensor, *, cache_mode: Literal["Norm", "PA_NZ"] = "Norm", scatter_mode: Literal["None", "Nhsd", "Nct"] = "None", nct_strides: Sequence[int] = (0, 0), nct_offsets: Sequence[int] = (0, 0), index_policy: Literal["default", "report", "reject"] = "default", context: Context | None = None) -> ScatterPaKvCachePlan:
    """
    Checks a call of scatter_pa_kv_cache once; run() then does it for tensors of these shapes.

    The tensors tell shapes and dtypes; the plan keeps no reference to them.
    """

class GatherSelectionKvCachePlan:
    """
    A checked call of gather_selection_kv_cache, without tensors. Made by plan_gather_selection_kv_cache.

    Any number of threads may run it at once.
    """

    @property
    def op(self) -> str:
        """Name of the operator."""

    @property
    def implementation(self) -> str:
        """Name of the implementation that runs, such as "avx2"."""

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory of one run; it is managed here."""

    def describe(self) -> str:
        """
        Text for people: implementation, rows, split, workspace. Not for parsing.
        """

    def run(self, selection_k_rope: kvferry._types.Tensor | None, selection_kv_cache: kvferry._types.Tensor, selection_kv_block_table: kvferry._types.Tensor, selection_kv_block_status: kvferry._types.Tensor, selection_topk_indices: kvferry._types.Tensor, full_k_rope: kvferry._types.Tensor | None, full_kv_cache: kvferry._types.Tensor, full_kv_block_table: kvferry._types.Tensor, full_kv_actual_seq: kvferry._types.Tensor, full_q_actual_seq: kvferry._types.Tensor | None, selection_kv_actual_seq: kvferry._types.Tensor, *, status_row: kvferry._types.Tensor | None = None, counters: kvferry._types.Tensor | None = None, fetch_counts: kvferry._types.Tensor | None = None, error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
        """
        Does the call. The tensors must have the planned dtypes, shapes and strides, the memory may differ.
        """

    def schedule(self, selection_kv_block_table: kvferry._types.Tensor, selection_kv_block_status: kvferry._types.Tensor, selection_topk_indices: kvferry._types.Tensor, full_kv_block_table: kvferry._types.Tensor, full_kv_actual_seq: kvferry._types.Tensor, full_q_actual_seq: kvferry._types.Tensor | None, selection_kv_actual_seq: kvferry._types.Tensor, *, status_row: kvferry._types.Tensor | None = None, counters: kvferry._types.Tensor | None = None, fetch_counts: kvferry._types.Tensor | None = None, error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
        """
        The first half of run(): decides, and writes status, lengths and counters.

        The list of copies stays in the plan, for copy(), until the next schedule(): one schedule at a time.
        """

    def copy(self, selection_k_rope: kvferry._types.Tensor | None, selection_kv_cache: kvferry._types.Tensor, full_k_rope: kvferry._types.Tensor | None, full_kv_cache: kvferry._types.Tensor, *, context: Context | None = None) -> None:
        """
        The second half of run(): what schedule() decided, on one layer's caches.

        Any number of times, for layers that share tables and top-k.
        """

def gather_selection_kv_cache(selection_k_rope: kvferry._types.Tensor | None, selection_kv_cache: kvferry._types.Tensor, selection_kv_block_table: kvferry._types.Tensor, selection_kv_block_status: kvferry._types.Tensor, selection_topk_indices: kvferry._types.Tensor, full_k_rope: kvferry._types.Tensor | None, full_kv_cache: kvferry._types.Tensor, full_kv_block_table: kvferry._types.Tensor, full_kv_actual_seq: kvferry._types.Tensor, full_q_actual_seq: kvferry._types.Tensor | None, selection_kv_actual_seq: kvferry._types.Tensor, *, selection_topk_block_size: int = 64, q_len_mode: Literal["counts", "prefix_sum", "all_rows"] = "counts", status_row: kvferry._types.Tensor | None = None, counters: kvferry._types.Tensor | None = None, fetch_counts: kvferry._types.Tensor | None = None, index_policy: Literal["default", "report", "reject"] = "default", error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
    """
    The top-k blocks of a long paged cache into a small selection cache, in place, re-using what is there.

    After the call each query row's selection cache holds the selected blocks of its sequence, compactly. Only blocks
    that the call before did not leave there are read from the full cache. batch b and query row s are row
    r = b * S + s; K ids a row; index tensors are int32.

    selection_k_rope:          written, [pages, page_tokens, rope_size]; None together with full_k_rope
    selection_kv_cache:        written, [pages, page_tokens, kv_size]
    selection_kv_block_table:  [rows or more, columns]: the pages of each row's selection cache
    selection_kv_block_status: written, [B, S, 1, K+1] or [B*S, 1, K+1]: the id in each slot (-1: none), then the row's
                               tokens; set the last to 0 to forget a row
    selection_topk_indices:    [B, S, 1, K] or [B*S, 1, K]: block numbers of the sequence; a negative one ends the row
    full_k_rope, full_kv_cache: [pages, page_tokens, size], any memory, a mapped file too; dtype of the selection's
    full_kv_block_table:       [B, columns]
    full_kv_actual_seq:        [B]: tokens of each sequence, those of this step included
    full_q_actual_seq:         [B]: query tokens of this step ("counts"), their running sums ("prefix_sum"), or with
                               "all_rows" None: S of each
    selection_kv_actual_seq:   written, [rows of selection_kv_block_table]: valid tokens of each row
    selection_topk_block_size: tokens of a block
    status_row:                [B*S]: the row of status and selection table that a query row uses; -1 skips it
    counters:                  written, [B*S, 3]: hits, misses, moved
    fetch_counts:              written, [B]: distinct misses

    A bad entry of the full table gives a slot of zeros, one of the selection table leaves the slot unwritten; neither
    slot is re-used. A bad status_row skips its row. "report" also counts them in error_record (batch = row, column =
    slot, id = the selected id); "reject" raises IndexError before anything is written.

    Outputs may not overlap each other or an input.
    """

def plan_gather_selection_kv_cache(selection_k_rope: kvferry._types.Tensor | None, selection_kv_cache: kvferry._types.Tensor, selection_kv_block_table: kvferry._types.Tensor, selection_kv_block_status: kvferry._types.Tensor, selection_topk_indices: kvferry._types.Tensor, full_k_rope: kvferry._types.Tensor | None, full_kv_cache: kvferry._types.Tensor, full_kv_block_table: kvferry._types.Tensor, full_kv_actual_seq: kvferry._types.Tensor, full_q_actual_seq: kvferry._types.Tensor | None, selection_kv_actual_seq: kvferry._types.Tensor, *, selection_topk_block_size: int = 64, q_len_mode: Literal["counts", "prefix_sum", "all_rows"] = "counts", status_row: kvferry._types.Tensor | None = None, counters: kvferry._types.Tensor | None = None, fetch_counts: kvferry._types.Tensor | None = None, index_policy: Literal["default", "report", "reject"] = "default", context: Context | None = None) -> GatherSelectionKvCachePlan:
    """
    Checks a call of gather_selection_kv_cache once; run() then does it for tensors of these shapes.

    The tensors tell shapes and dtypes; the plan keeps no reference to them.
    """

class GroupMemcpyPlan:
    """
    A checked call of group_memcpy, without tensors. Made by plan_group_memcpy.

    Any number of threads may run it at once.
    """

    @property
    def op(self) -> str:
        """Name of the operator."""

    @property
    def implementation(self) -> str:
        """Name of the implementation that runs, such as "avx2"."""

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory of one run; it is managed here."""

    def describe(self) -> str:
        """
        Text for people: implementation, rows, split, workspace. Not for parsing.
        """

    def run(self, addr_table: kvferry._types.Tensor, *, sizes: kvferry._types.Tensor | None = None, count: kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
        """
        Does the call. The tensors must have the planned dtypes, shapes and strides, the memory may differ.
        """

def group_memcpy(addr_table: kvferry._types.Tensor, copy_bytes: int = 0, *, sizes: kvferry._types.Tensor | None = None, count: kvferry._types.Tensor | None = None, host_count: int | None = None, skip_null: bool = False, checked: bool = False, context: Context | None = None) -> None:
    """
    Many copies from a table of addresses.

    addr_table: [2*pairs] or [pairs, 2], int64 or uint64: source 0, destination 0, source 1, destination 1, ...
    copy_bytes: bytes of every pair; or
    sizes:      [pairs], int64: bytes of each; copy_bytes is then 0
    count:      [] or [1], int32 or int64: so many of the pairs run; or host_count, a plain number
    skip_null:  pairs with a null address are left out
    checked:    null, wrapping and overlapping addresses raise IndexError before anything is written

    The addresses are raw: without checked a wrong one is undefined behaviour, and nothing here keeps the memory
    alive. Destinations may not overlap each other nor a source.
    """

def plan_group_memcpy(addr_table: kvferry._types.Tensor, copy_bytes: int = 0, *, sizes: kvferry._types.Tensor | None = None, count: kvferry._types.Tensor | None = None, host_count: int | None = None, skip_null: bool = False, checked: bool = False, context: Context | None = None) -> GroupMemcpyPlan:
    """
    Checks a call of group_memcpy once; run() then does it for tensors of these shapes.

    The tensors tell shapes and dtypes; the plan keeps no reference to them.
    """

class CopyBlocksPlan:
    """
    A checked call of copy_blocks, without tensors. Made by plan_copy_blocks.

    Any number of threads may run it at once.
    """

    @property
    def op(self) -> str:
        """Name of the operator."""

    @property
    def implementation(self) -> str:
        """Name of the implementation that runs, such as "avx2"."""

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory of one run; it is managed here."""

    def describe(self) -> str:
        """
        Text for people: implementation, rows, split, workspace. Not for parsing.
        """

    def run(self, caches: Sequence[kvferry._types.Tensor], mapping: kvferry._types.Tensor, *, count: kvferry._types.Tensor | None = None, error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
        """
        Does the call. The tensors must have the planned dtypes, shapes and strides, the memory may differ.
        """

def copy_blocks(caches: Sequence[kvferry._types.Tensor], mapping: kvferry._types.Tensor, *, count: kvferry._types.Tensor | None = None, index_policy: Literal["default", "report", "reject"] = "default", error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
    """
    Blocks of paged caches onto other blocks of the same caches, in place.

    caches:  written, tensors [blocks, ...] that share their first length; any dtype and strides, each its own
    mapping: [pairs, 2], int32 or int64: source block, destination block; a pair with a negative id is skipped
    count:   [] or [1], int32 or int64: so many of the pairs run

    There is no order between pairs. A pair with an id beyond the blocks is skipped; of a destination that an earlier
    pair has, or that is a source, the bytes are unspecified. "report" also counts both in error_record (batch = pair,
    BAD_SOURCE, BAD_DESTINATION, BAD_DUPLICATE); "reject" raises IndexError before anything is written.

    Caches may not overlap each other nor the inputs.
    """

def plan_copy_blocks(caches: Sequence[kvferry._types.Tensor], mapping: kvferry._types.Tensor, *, count: kvferry._types.Tensor | None = None, index_policy: Literal["default", "report", "reject"] = "default", context: Context | None = None) -> CopyBlocksPlan:
    """
    Checks a call of copy_blocks once; run() then does it for tensors of these shapes.

    The tensors tell shapes and dtypes; the plan keeps no reference to them.
    """

class SwapBlocksPlan:
    """
    A checked call of swap_blocks, without tensors. Made by plan_swap_blocks.

    Any number of threads may run it at once.
    """

    @property
    def op(self) -> str:
        """Name of the operator."""

    @property
    def implementation(self) -> str:
        """Name of the implementation that runs, such as "avx2"."""

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory of one run; it is managed here."""

    def describe(self) -> str:
        """
        Text for people: implementation, rows, split, workspace. Not for parsing.
        """

    def run(self, src: Sequence[kvferry._types.Tensor], dst: Sequence[kvferry._types.Tensor], mapping: kvferry._types.Tensor, *, count: kvferry._types.Tensor | None = None, error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
        """
        Does the call. The tensors must have the planned dtypes, shapes and strides, the memory may differ.
        """

def swap_blocks(src: Sequence[kvferry._types.Tensor], dst: Sequence[kvferry._types.Tensor], mapping: kvferry._types.Tensor, *, count: kvferry._types.Tensor | None = None, index_policy: Literal["default", "report", "reject"] = "default", error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
    """
    Blocks from one pool of caches to another, in place. Nothing is exchanged.

    src:     tensors [source_blocks, ...] that share their first length; any dtype and strides, each its own
    dst:     written, as many tensors [destination_blocks, ...], each with the dtype and the other lengths of its source
    mapping: [pairs, 2], int32 or int64: block of src, block of dst; a pair with a negative id is skipped
    count:   [] or [1], int32 or int64: so many of the pairs run

    There is no order between pairs. A pair with an id beyond its blocks is skipped; of a destination that an earlier
    pair has the bytes are unspecified. "report" also counts both in error_record (batch = pair, BAD_SOURCE,
    BAD_DESTINATION, BAD_DUPLICATE); "reject" raises IndexError before anything is written.

    Tensors of dst may not overlap each other nor an input.
    """

def plan_swap_blocks(src: Sequence[kvferry._types.Tensor], dst: Sequence[kvferry._types.Tensor], mapping: kvferry._types.Tensor, *, count: kvferry._types.Tensor | None = None, index_policy: Literal["default", "report", "reject"] = "default", context: Context | None = None) -> SwapBlocksPlan:
    """
    Checks a call of swap_blocks once; run() then does it for tensors of these shapes.

    The tensors tell shapes and dtypes; the plan keeps no reference to them.
    """

class TransferLayersPlan:
    """
    A checked call of transfer_layers, without tensors. Made by plan_transfer_layers.

    Any number of threads may run it at once.
    """

    @property
    def op(self) -> str:
        """Name of the operator."""

    @property
    def implementation(self) -> str:
        """Name of the implementation that runs, such as "avx2"."""

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory of one run; it is managed here."""

    def describe(self) -> str:
        """
        Text for people: implementation, rows, split, workspace. Not for parsing.
        """

    def run(self, key_caches: Sequence[kvferry._types.Tensor], value_caches: Sequence[kvferry._types.Tensor] | None, chunk: kvferry._types.Tensor, block_ids: kvferry._types.Tensor, *, error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
        """
        Does the call. The tensors must have the planned dtypes, shapes and strides, the memory may differ.
        """

def transfer_layers(key_caches: Sequence[kvferry._types.Tensor], value_caches: Sequence[kvferry._types.Tensor] | None, chunk: kvferry._types.Tensor, block_ids: kvferry._types.Tensor, *, chunk_layout: Literal["layer_first", "page_first"] = "layer_first", direction: Literal["pools_to_chunk", "chunk_to_pools"] = "pools_to_chunk", index_policy: Literal["default", "report", "reject"] = "default", error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
    """
    Blocks of many layers between per-layer pools and one chunk, in place.

    key_caches:   one pool [blocks, block_size, heads, head_size] a layer
    value_caches: the same, or None: P = 2 or 1 of them
    chunk:        "layer_first" [layers, ids, P, block_size, heads, head_size],
                  "page_first" [ids, layers, P, block_size, heads, head_size]
    block_ids:    [ids], int32 or int64
    direction:    which side is written

    Dtypes: as for gather_pa_kv_cache, one for all. Any strides, each tensor its own.

    "pools_to_chunk": an id outside the pools is bad and gives zeros. "chunk_to_pools": a negative id is skipped, one
    beyond the pools is bad and skipped, and of a repeated one the bytes are unspecified. "report" also counts bad ids
    in error_record (batch = place in block_ids; BAD_SOURCE, or BAD_DESTINATION, BAD_DUPLICATE); "reject" raises
    IndexError before anything is written.

    What is written may not overlap anything else.
    """

def plan_transfer_layers(key_caches: Sequence[kvferry._types.Tensor], value_caches: Sequence[kvferry._types.Tensor] | None, chunk: kvferry._types.Tensor, block_ids: kvferry._types.Tensor, *, chunk_layout: Literal["layer_first", "page_first"] = "layer_first", direction: Literal["pools_to_chunk", "chunk_to_pools"] = "pools_to_chunk", index_policy: Literal["default", "report", "reject"] = "default", context: Context | None = None) -> TransferLayersPlan:
    """
    Checks a call of transfer_layers once; run() then does it for tensors of these shapes.

    The tensors tell shapes and dtypes; the plan keeps no reference to them.
    """

class GatherDequantPlan:
    """
    A checked call of gather_dequant, without tensors. Made by plan_gather_dequant.

    Any number of threads may run it at once.
    """

    @property
    def op(self) -> str:
        """Name of the operator."""

    @property
    def implementation(self) -> str:
        """Name of the implementation that runs, such as "avx2"."""

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory of one run; it is managed here."""

    def describe(self) -> str:
        """
        Text for people: implementation, rows, split, workspace. Not for parsing.
        """

    def run(self, cache: kvferry._types.Tensor, block_tables: kvferry._types.Tensor, seq_lens: kvferry._types.Tensor, out: kvferry._types.Tensor, *, seq_offset: kvferry._types.Tensor | None = None, error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
        """
        Does the call. The tensors must have the planned dtypes, shapes and strides, the memory may differ.
        """

def gather_dequant(cache: kvferry._types.Tensor, block_tables: kvferry._types.Tensor, seq_lens: kvferry._types.Tensor, out: kvferry._types.Tensor, *, seq_offset: kvferry._types.Tensor | None = None, is_seq_lens_cumsum: bool = False, index_policy: Literal["default", "report", "reject"] = "default", error_record: ErrorRecord | kvferry._types.Tensor | None = None, context: Context | None = None) -> None:
    """
    Quantised tokens of a paged cache to contiguous bfloat16, in place.

    cache:        [blocks, block_size, 656], uint8 or int8: 512 float8_e4m3fn, 4 float32 scales of 128 values each, 64
                  bfloat16 of rope
    out:          written, bfloat16 [rows, 576]: value * scale, rounded to float32 and then to bfloat16, and rope bit
                  for bit; every NaN product is 0x7fc0
    block_tables, seq_lens, seq_offset, is_seq_lens_cumsum, index_policy, error_record: as for gather_pa_kv_cache

    Bad entries give zero rows. out may not overlap an input.
    """

def plan_gather_dequant(cache: kvferry._types.Tensor, block_tables: kvferry._types.Tensor, seq_lens: kvferry._types.Tensor, out: kvferry._types.Tensor, *, seq_offset: kvferry._types.Tensor | None = None, is_seq_lens_cumsum: bool = False, index_policy: Literal["default", "report", "reject"] = "default", context: Context | None = None) -> GatherDequantPlan:
    """
    Checks a call of gather_dequant once; run() then does it for tensors of these shapes.

    The tensors tell shapes and dtypes; the plan keeps no reference to them.
    """
