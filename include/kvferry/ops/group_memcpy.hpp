// SPDX-License-Identifier: Apache-2.0
//
// group_memcpy: many copies from a table of addresses in one call.
//
// Inputs.
//   addr_table   [2H] or [H, 2], int64 or uint64: source 0, destination 0, source 1, destination 1, ...:
//                64-bit addresses of the executing device
//   copy_bytes   W, bytes of every pair (equal form), or
//   sizes        [H] int64, bytes of each pair; copy_bytes must then be 0
//   count        optional, [] or [1], int32 or int64: the first C = clamp(count, 0, H) pairs run
//   host_count   optional, a plain number in [0, H]: the first host_count pairs run. Not together with count.
//
// Semantics:
//
//   for p in 0 .. C-1:  n = sizes ? sizes[p] : W
//     if n == 0: not touched, its addresses are not looked at
//     if skip_null and (src[p] == 0 or dst[p] == 0): continue
//     memcpy(dst[p], src[p], n)
//
//   There is no order between pairs. Any alignment of addresses and sizes. Not one byte beyond n is read or
//   written. One source may feed many pairs. src[p] == dst[p] is a no-op.
//   H = 0 or W = 0: success, the table is not read.
//
// Bad entries. These are raw pointers: without `checked` a null (unless skip_null) or wild address is
// undefined behaviour, as in memcpy. Destinations must be pairwise disjoint and may not overlap another
// pair's source; within a pair a partial overlap is undefined.
//   A negative size is refused (kIndex) before the first byte.
//   checked: also refuses, before the first byte, null addresses (unless skip_null), addresses that wrap, and
//   every overlap above; the message names the pairs. It costs a sort of the destinations.
//
// On a CUDA device the kernel reads table, sizes and count, in memory of the device or pinned. No error
// can come back from there: with a negative size, or sizes that add up to 2^63 bytes or more, nothing at
// all is written. `checked` is kUnimplemented. A table in ordinary host memory (Device{kCpu}), with sizes
// and count there too, is for small calls: run() reads all three before it returns and refuses bad sizes
// as a CPU does; the pairs travel with the launch, at most 240 of them, 160 with sizes.
//
// Aliasing: as above; the table, sizes and count may not overlap a destination.
//
// Memory. Workspace: 8 bytes a pair with sizes, 8 more with checked, and up to 72 besides; else none, nor for
// a table that run() reads for a device. A run allocates nothing else.
//
// Stream and lifetime: context.hpp; table, sizes, count, sources and destinations stay valid until the stream
// has passed. Errors: kNull, kInvalidArgument (shapes, dtypes, W < 0, host_count outside [0, H]), kIndex.
//
// Source: requirement "group_memcpy" of CANN ops-transformer. sizes, count, skip_null and checked are ours.
#pragma once

#include <cstdint>
#include <optional>

#include "kvferry/context.hpp"
#include "kvferry/plan.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry {

struct GroupMemcpyArgs {
  TensorView addr_table;
  std::int64_t copy_bytes = 0;
  std::optional<TensorView> sizes;
  std::optional<TensorView> count;
  std::optional<std::int64_t> host_count;
  bool skip_null = false;
  bool checked = false;
};

struct GroupMemcpyBuffers {
  const void* addr_table = nullptr;
  const void* sizes = nullptr;
  const void* count = nullptr;
  Workspace workspace;  // >= plan.workspace_bytes()
};
KVFERRY_EXPORT GroupMemcpyBuffers buffers(const GroupMemcpyArgs& args) noexcept;

KVFERRY_EXPORT Result<Plan> plan(const GroupMemcpyArgs& args, const Context& context) noexcept;
KVFERRY_EXPORT Status run(const Plan& plan, const GroupMemcpyBuffers& buffers,
                          const Context& context) noexcept;
KVFERRY_EXPORT Status group_memcpy(const GroupMemcpyArgs& args, const Context& context) noexcept;

}  // namespace kvferry
