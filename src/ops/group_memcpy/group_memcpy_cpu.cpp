// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "backends/cpu/move.hpp"
#include "backends/cpu/parallel_for.hpp"
#include "backends/cpu/small_copy.hpp"
#include "backends/cpu/tuning.hpp"
#include "core/checked_math.hpp"
#include "ops/cpu_implementations.hpp"
#include "ops/group_memcpy/group_memcpy_plan.hpp"

namespace kvferry::internal {
namespace {

using PlanT = GroupMemcpyPlan;
using Buffers = GroupMemcpyBuffers;

using Call = GroupMemcpyCall;

template <class... T>
Status refuse(fmt::format_string<T...> format, T&&... args) {
  return {StatusCode::kIndex, "group_memcpy: " + fmt::format(format, std::forward<T>(args)...)};
}

// Checked mode. `order` has room for every pair.
Status check_addresses(const Call& call, std::int64_t* order) {
  std::int64_t count = 0;
  for (std::int64_t p = 0; p < call.pairs; ++p) {
    const auto n = static_cast<std::uint64_t>(call.size(p));
    if (n == 0 || call.skipped(p)) continue;
    for (const auto& [name, address] :
         {std::pair{"source", call.src(p)}, std::pair{"destination", call.dst(p)}}) {
      if (address == 0)
        return refuse("addr_table: pair {} has a null {}, expected an address (skip_null is off)", p, name);
      if (address + n < address)
        return refuse("addr_table: pair {}: {} {:#x} + {} bytes wraps", p, name, address, n);
    }
    const std::uint64_t gap = std::max(call.src(p), call.dst(p)) - std::min(call.src(p), call.dst(p));
    if (gap != 0 && gap < n) {
      return refuse("addr_table: pair {}: source {:#x} and destination {:#x} of {} bytes overlap in part", p,
                    call.src(p), call.dst(p), n);
    }
    order[count++] = p;
  }
  const auto end = [&](std::int64_t p) { return call.dst(p) + static_cast<std::uint64_t>(call.size(p)); };
  std::sort(order, order + count, [&](std::int64_t a, std::int64_t b) {
    return call.dst(a) != call.dst(b) ? call.dst(a) < call.dst(b) : a < b;
  });
  for (std::int64_t i = 1; i < count; ++i) {
    if (end(order[i - 1]) > call.dst(order[i])) {
      return refuse("addr_table: the destinations of pairs {} and {} overlap",
                    std::min(order[i - 1], order[i]), std::max(order[i - 1], order[i]));
    }
  }
  // Destinations are disjoint now, so those that meet a source are neighbours in the order.
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t p = order[i];
    const std::uint64_t begin = call.src(p), stop = begin + static_cast<std::uint64_t>(call.size(p));
    const std::int64_t* at =
        std::lower_bound(order, order + count, stop,
                         [&](std::int64_t q, std::uint64_t address) { return call.dst(q) < address; });
    while (at != order && end(*(at - 1)) > begin) {
      --at;
      if (*at != p)
        return refuse("addr_table: the destination of pair {} overlaps the source of pair {}", *at, p);
    }
  }
  return {};
}

void copy_part(const Call& call, std::int64_t pair, std::int64_t at, std::int64_t bytes,
               cpu::PieceQueue& queue) {
  const std::uint64_t src = call.src(pair), dst = call.dst(pair);
  if (bytes == 0 || src == dst || call.skipped(pair)) return;
  // Addresses are numbers in the table: this is where they become pointers.
  const auto* from = reinterpret_cast<const std::byte*>(src) + at;
  auto* to = reinterpret_cast<std::byte*>(dst) + at;
  if (bytes < cpu::kTuning.least_piece_bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  } else {
    queue.push(from, to, bytes);
  }
}

// Whole pairs [begin, end) of equal small size. With `fetches` the lines of both sides are asked for ahead of
// time, into L2: the L1 has fewer misses in flight.
void copy_small_pairs(const Call& call, std::int64_t begin, std::int64_t end, bool fetches) {
  constexpr std::int64_t kLine = 64;
  const PlanT& plan = call.plan;
  const auto* table = static_cast<const std::byte*>(call.buffers.addr_table);
  const std::int64_t step = plan.sources.step0;
  const std::byte* const sources = table + plan.sources.base;
  const std::byte* const destinations = table + plan.destinations.base;
  const auto pointer = [step](const std::byte* at, std::int64_t pair) {
    std::byte* p;
    std::memcpy(&p, at + pair * step, sizeof p);
    return p;
  };
  // Inlined, or GCC 12 takes the call of a function that only prefetches for one without effect and drops it.
  const auto fetch = [&](std::int64_t pair) __attribute__((always_inline)) {
    const std::byte *const src = pointer(sources, pair), *const dst = pointer(destinations, pair);
    for (std::int64_t at = 0; at < plan.copy_bytes; at += kLine) {
      __builtin_prefetch(src + at, 0, 2);
      __builtin_prefetch(dst + at, 0, 2);
    }
  };
  std::int64_t fetched = fetches ? std::min(begin + cpu::kTuning.pairs_ahead, end) : end;
  for (std::int64_t p = begin; fetches && p < fetched; ++p) fetch(p);
  cpu::with_small_copy(plan.copy_bytes, [&](auto copy) {
    for (std::int64_t p = begin; p < end; ++p) {
      if (fetched < end) fetch(fetched++);
      const std::byte* const src = pointer(sources, p);
      std::byte* const dst = pointer(destinations, p);
      if (src == dst || (plan.skip_null && (src == nullptr || dst == nullptr))) continue;
      copy(dst, src);
    }
  });
}

void copy_equal(const Call& call, ContextState& context, const cpu::CopyKernels& kernels) {
  const std::int64_t size = call.plan.copy_bytes;
  const bool inside = call.plan.splits_pairs();
  const std::int64_t units = inside ? call.pairs * size : call.pairs;
  const cpu::Split split = cpu::split(units, inside ? 1 : size, context.threads);
  const bool nontemporal = cpu::use_nontemporal(split.bytes, context.options.streaming);
  const bool small = size < (nontemporal ? cpu::kTuning.small_pair_bytes : cpu::kTuning.small_row_bytes);
  const Checked touched = Checked(call.pairs) * std::max<std::int64_t>(size, 64);  // whole lines
  const bool fetches =
      size >= cpu::kTuning.least_fetch_bytes || touched.overflow || touched.value >= cpu::kTuning.cold_bytes;
  cpu::parallel_for(context, split.claims, [&](std::int64_t claim) {
    const std::int64_t begin = claim * split.units_per_claim;
    const std::int64_t end = std::min(begin + split.units_per_claim, units);
    if (small) return copy_small_pairs(call, begin, end, fetches);
    cpu::PieceQueue queue(kernels, nontemporal);
    if (!inside) {
      for (std::int64_t p = begin; p < end; ++p) copy_part(call, p, 0, size, queue);
      return;
    }
    for (std::int64_t byte = begin; byte < end;) {
      const std::int64_t at = byte % size, bytes = std::min(size - at, end - byte);
      copy_part(call, byte / size, at, bytes, queue);
      byte += bytes;
    }
  });
}

void copy_sized(const Call& call, const std::int64_t* ends, ContextState& context,
                const cpu::CopyKernels& kernels) {
  const std::int64_t total = ends[call.pairs];
  const cpu::Split split = cpu::split(total, 1, context.threads);
  const bool nontemporal = cpu::use_nontemporal(split.bytes, context.options.streaming);
  cpu::parallel_for(context, split.claims, [&](std::int64_t claim) {
    const std::int64_t begin = claim * split.units_per_claim,
                       end = std::min(begin + split.units_per_claim, total);
    cpu::PieceQueue queue(kernels, nontemporal);
    // The last pair that starts at or before `begin`; pairs of 0 bytes are passed over.
    std::int64_t pair = std::upper_bound(ends, ends + call.pairs, begin) - ends - 1;
    for (std::int64_t byte = begin; byte < end; ++pair) {
      const std::int64_t bytes = std::min(ends[pair + 1], end) - byte;
      copy_part(call, pair, byte - ends[pair], bytes, queue);
      byte += bytes;
    }
  });
}

Status run(const PlanT& plan, const Buffers& buffers, ContextState& context, const cpu::CpuKernels& kernels) {
  if (plan.nothing_to_do()) return {};
  const Call call(plan, buffers);
  auto* ends = aligned<std::int64_t>(buffers.workspace);
  if (plan.has_sizes) {
    if (Status status = sum_sizes(call, ends); !status.ok()) return status;
  }
  if (plan.checked) {
    if (Status status = check_addresses(call, plan.has_sizes ? ends + plan.pairs + 1 : ends); !status.ok())
      return status;
  }
  plan.has_sizes ? copy_sized(call, ends, context, kernels.copy) : copy_equal(call, context, kernels.copy);
  return {};
}

}  // namespace

Status sum_sizes(const GroupMemcpyCall& call, std::int64_t* ends) {
  Checked total(0);
  for (std::int64_t p = 0; p < call.pairs; ++p) {
    const std::int64_t size = call.size(p);
    if (size < 0) return refuse("sizes: pair {} is {}, expected >= 0", p, size);
    ends[p] = total.value;
    if (size > 0 && !call.skipped(p)) total = total + size;
    if (total.overflow) return refuse("sizes: pairs 0 to {} add up to more than 2^63 bytes", p);
  }
  ends[call.pairs] = total.value;
  return {};
}

std::span<const GroupMemcpyPlan::ImplType> group_memcpy_cpu() {
  return cpu_implementations<PlanT, Buffers, run>();
}

}  // namespace kvferry::internal
