// SPDX-License-Identifier: Apache-2.0
#include "ops/block_copy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "backends/cpu/move.hpp"
#include "backends/cpu/parallel_for.hpp"
#include "backends/cpu/tuning.hpp"
#include "core/checked_math.hpp"
#include "core/error_record.hpp"
#include "ops/index_entries.hpp"

namespace kvferry::internal {
namespace {

// Work is split at lines: pieces that begin inside one cost more than claims that differ by one.
constexpr std::int64_t kLine = 64;

bool block_has_bytes(const TensorView& view) {
  for (int axis = 1; axis < view.rank; ++axis) {
    if (view.dim(axis) == 0) return false;
  }
  return true;
}

BlockCopyCache make_cache(std::size_t index, const TensorView& src, const TensorView& dst) {
  std::array<Axis, kMaxRank> axes{};
  std::size_t n = 0;
  BlockCopyCache cache;
  cache.index = index;
  cache.src_step = step_bytes(src, 0);
  cache.dst_step = step_bytes(dst, 0);
  cache.bytes = size_of(dst.dtype);
  for (int axis = 1; axis < dst.rank; ++axis) {
    axes[n++] = {dst.dim(axis), src.stride(axis), dst.stride(axis)};
    cache.bytes *= dst.dim(axis);
  }
  cache.nest = make_nest(std::span(axes).first(n), size_of(dst.dtype), offset_bytes(src), offset_bytes(dst));
  return cache;
}

// Of a block that is no multiple of anything, too: lines of all pairs, the last one short.
std::int64_t lines_of(const BlockCopyPlan& plan, std::int64_t pairs) {
  return ceil_div(pairs * plan.first_byte.back(), kLine);
}

using Pair = BlockCopyPair;
using Call = BlockCopyCall;

// The destinations of all active pairs, to be asked who has a block.
class Destinations {
 public:
  explicit Destinations(const Call& call) : begin_(aligned<IndexUse>(call.buffers.workspace)), end_(begin_) {
    for (std::int64_t p = 0; p < call.pairs; ++p) {
      if (const Pair pair = call.at(p); call.active(pair)) *end_++ = {pair.dst, p};
    }
    sort_uses({begin_, end_});
  }

  // The first pair that writes the block, -1 if none does.
  std::int64_t first(std::int64_t block) const {
    const IndexUse* at = std::lower_bound(
        begin_, end_, block, [](const IndexUse& use, std::int64_t wanted) { return use.index < wanted; });
    return at != end_ && at->index == block ? at->entry : -1;
  }

 private:
  IndexUse* begin_;
  IndexUse* end_;
};

// What an active pair collides with: pairs, -1 for none.
struct Taken {
  std::int64_t source_by;
  std::int64_t destination_by;
};

Taken taken(const Call& call, const Destinations& destinations, std::int64_t p, const Pair& pair) {
  const std::int64_t first = destinations.first(pair.dst);
  return {call.plan.one_pool() ? destinations.first(pair.src) : -1, first < p ? first : -1};
}

void report(const Call& call) {
  const Destinations destinations(call);
  ErrorRecord record;
  for (std::int64_t p = 0; p < call.pairs; ++p) {
    const Pair pair = call.at(p);
    if (Call::padding(pair)) continue;
    std::uint32_t bits = call.out_of_range(pair);
    if (call.active(pair)) {
      const Taken by = taken(call, destinations, p, pair);
      bits = (by.source_by >= 0 ? kBadSource : 0) | (by.destination_by >= 0 ? kBadDestination : 0);
      if (bits != 0) bits |= kBadDuplicate;
    }
    if (bits == 0 || record.bad++ > 0) continue;
    record.batch = p;
    record.id = (bits & kBadSource) != 0 ? pair.src : pair.dst;
    record.which = bits;
    record.op = static_cast<std::uint32_t>(call.plan.op);
  }
  add_to(*call.buffers.error_record, record);
}

template <class... T>
Status refuse(const Call& call, fmt::format_string<T...> format, T&&... args) {
  return {StatusCode::kIndex, fmt::format("{}: mapping: ", to_string(call.plan.op)) +
                                  fmt::format(format, std::forward<T>(args)...)};
}

// IndexPolicy::kReject.
Status reject(const Call& call) {
  for (std::int64_t p = 0; p < call.pairs; ++p) {
    const Pair pair = call.at(p);
    const std::uint32_t bad = Call::padding(pair) ? 0 : call.out_of_range(pair);
    if ((bad & kBadSource) != 0)
      return refuse(call, "pair {}: source is block {}, expected < {}", p, pair.src, call.plan.src_blocks);
    if (bad != 0)
      return refuse(call, "pair {}: destination is block {}, expected < {}", p, pair.dst,
                    call.plan.dst_blocks);
  }
  const Destinations destinations(call);
  for (std::int64_t p = 0; p < call.pairs; ++p) {
    const Pair pair = call.at(p);
    if (!call.active(pair)) continue;
    const Taken by = taken(call, destinations, p, pair);
    if (by.source_by >= 0) {
      return refuse(call, "pair {}: source is block {}, expected one that is no destination (of pair {})", p,
                    pair.src, by.source_by);
    }
    if (by.destination_by >= 0) {
      return refuse(call,
                    "pair {}: destination is block {}, expected one that no other pair has (pair {} has)", p,
                    pair.dst, by.destination_by);
    }
  }
  return {};
}

// Copies bytes of blocks; one lives on the stack of each claim.
class Copier {
 public:
  Copier(const Call& call, const cpu::CopyKernels& kernels, bool nontemporal)
      : call_(call), kernels_(kernels), queue_(kernels, nontemporal) {}

  // Bytes [begin, end) of the work: cache after cache, of each pair after pair.
  void copy(std::int64_t begin, std::int64_t end) {
    const auto& firsts = call_.plan.first_byte;
    auto next = std::upper_bound(firsts.begin(), firsts.end(), begin / call_.pairs);
    for (; begin < end; ++next) {
      const BlockCopyCache& cache = call_.plan.caches[static_cast<std::size_t>(next - firsts.begin() - 1)];
      const std::int64_t first = *(next - 1) * call_.pairs, stop = std::min(*next * call_.pairs, end);
      copy_pairs(cache, begin - first, stop - first);
      begin = stop;
    }
  }

 private:
  // Bytes [begin, end) of one cache's pairs.
  void copy_pairs(const BlockCopyCache& cache, std::int64_t begin, std::int64_t end) {
    const auto* src = static_cast<const std::byte*>(call_.buffers.src[cache.index]) + cache.nest.src_base;
    auto* dst = static_cast<std::byte*>(call_.buffers.dst[cache.index]) + cache.nest.dst_base;
    std::int64_t p = begin / cache.bytes, at = begin % cache.bytes;
    const std::int64_t last = ceil_div(end, cache.bytes);
    while (begin < end) {
      const Pair pair = call_.at(p);
      const bool moves = call_.active(pair);
      const std::int64_t blocks = moves && cache.joined() ? call_.run_length(p, pair, last - p) : 1;
      const std::int64_t bytes = std::min(blocks * cache.bytes - at, end - begin);
      if (moves) {
        copy_part(cache.nest, src + pair.src * cache.src_step, dst + pair.dst * cache.dst_step, at, bytes);
      }
      begin += bytes;
      p += blocks;
      at = 0;
    }
  }

  // Bytes [at, at + bytes) of a block, counted in the order of the nest.
  void copy_part(const Nest& nest, const std::byte* src, std::byte* dst, std::int64_t at,
                 std::int64_t bytes) {
    if (nest.loop_count == 0) return copy_piece(src + at, dst + at, bytes);
    const Axis& inner = nest.loops[static_cast<std::size_t>(nest.loop_count - 1)];
    while (bytes > 0) {
      std::int64_t row = at / nest.piece, left = inner.count - row % inner.count;
      const std::int64_t inside = at % nest.piece;
      const std::byte* from = src;
      std::byte* to = dst;
      for (int i = nest.loop_count - 1; i >= 0; --i) {
        const Axis& axis = nest.loops[static_cast<std::size_t>(i)];
        from += row % axis.count * axis.src_step;
        to += row % axis.count * axis.dst_step;
        row /= axis.count;
      }
      std::int64_t done = std::min(nest.piece - inside, bytes);
      if (done < nest.piece) {
        copy_piece(from + inside, to + inside, done);
      } else {
        left = std::min(left, bytes / nest.piece);
        copy_rows(inner, from, to, left, nest.piece);
        done = left * nest.piece;
      }
      at += done;
      bytes -= done;
    }
  }

  void copy_piece(const std::byte* src, std::byte* dst, std::int64_t bytes) {
    if (bytes < cpu::kTuning.least_piece_bytes) {
      std::memcpy(dst, src, static_cast<std::size_t>(bytes));
    } else {
      queue_.push(src, dst, bytes);
    }
  }

  void copy_rows(const Axis& axis, const std::byte* src, std::byte* dst, std::int64_t rows,
                 std::int64_t bytes) {
    if (bytes < cpu::kTuning.small_row_bytes)
      return kernels_.rows(dst, axis.dst_step, src, axis.src_step, rows, bytes);
    for (std::int64_t i = 0; i < rows; ++i)
      queue_.push(src + i * axis.src_step, dst + i * axis.dst_step, bytes);
  }

  const Call& call_;
  const cpu::CopyKernels& kernels_;
  cpu::PieceQueue queue_;
};

}  // namespace

BlockCopyCall::BlockCopyCall(const BlockCopyPlan& p, const BlockCopyBuffers& b)
    : plan(p), buffers(b), pairs(p.pairs) {
  if (p.has_count) pairs = std::clamp<std::int64_t>(p.count.at(b.count, 0), 0, p.pairs);
}

std::int64_t BlockCopyCall::run_length(std::int64_t p, const BlockCopyPair& pair, std::int64_t most) const {
  most = std::min({most, plan.src_blocks - pair.src, plan.dst_blocks - pair.dst});
  // A run that reads what it writes is against the rules; its other blocks must be right all the same.
  if (plan.one_pool()) most = std::min(most, std::abs(pair.dst - pair.src));
  std::int64_t n = 1;
  for (; n < most; ++n) {
    const BlockCopyPair next = at(p + n);
    if (next.src != pair.src + n || next.dst != pair.dst + n) break;
  }
  return n;
}

Status judge_block_copy(const BlockCopyCall& call) {
  if (call.plan.policy == IndexPolicy::kReject) return reject(call);
  if (call.plan.policy == IndexPolicy::kReport && call.buffers.error_record != nullptr) report(call);
  return {};
}

std::string name_of(const char* list, std::size_t index) {
  return fmt::format("{}[{}]", list, index);
}

void check_blocks(Checker& check, const char* list, std::span<const TensorView> views, bool written) {
  const std::string first_blocks = name_of(list, 0) + " dimension 0";
  for (std::size_t i = 0; i < views.size() && check.ok(); ++i) {
    const std::string text = name_of(list, i);
    const char* name = text.c_str();
    written ? check.output(name, views[i]) : check.tensor(name, views[i]);
    check.that(views[i].rank >= 1, "{}: rank is {}, expected 1 to {}", name, views[i].rank, kMaxRank);
    check.kv_dtype(name, views[i]);
    if (i > 0) check.dim(name, views[i], 0, views[0].dim(0), first_blocks);
  }
}

void check_pairs(Checker& check, const BlockCopyArgs& a) {
  check.indices("mapping", a.mapping);
  check.rank("mapping", a.mapping, 2);
  check.dim("mapping", a.mapping, 1, 2, "a source and a destination");
  check.index_dtype("mapping", a.mapping);
  if (a.count) check.count("count", *a.count, "mapping", a.mapping);
  check.index_policy(a.index_policy, a.mapping);
  if (!check.ok()) return;
  Checked bytes(kLine);
  for (const TensorView& view : a.dst)
    bytes = bytes + Checked(is_empty(view) ? 0 : element_count(view) / view.dim(0)) * size_of(view.dtype);
  const Checked all = bytes * a.mapping.dim(0);
  const Checked sorted =
      Checked(a.mapping.dim(0)) * std::max<std::int64_t>(sizeof(IndexUse), cuda::FirstUse::kBytesPerEntry) +
      kWorkspaceAlign;
  check.that(!all.overflow && !sorted.overflow,
             "mapping: {} pairs of blocks of {} bytes are too many for 64 bits", a.mapping.dim(0),
             bytes.value - kLine);
}

void make_block_copy(BlockCopyPlan& body, const BlockCopyArgs& a, const Context& context) {
  body.pairs = a.mapping.dim(0);
  body.mapping = IndexView(a.mapping);
  body.has_count = a.count.has_value();
  if (a.count) body.count = IndexView(*a.count);
  body.policy = a.index_policy;
  body.first_byte = {0};
  for (std::size_t i = 0; i < a.dst.size(); ++i) {
    body.src_blocks = a.src[i].dim(0);
    body.dst_blocks = a.dst[i].dim(0);
    body.has_bytes = body.has_bytes || block_has_bytes(a.dst[i]);
    if (is_empty(a.src[i]) || is_empty(a.dst[i])) continue;
    body.caches.push_back(make_cache(i, a.src[i], a.dst[i]));
    body.first_byte.push_back(body.first_byte.back() + body.caches.back().bytes);
  }
  if (body.policy != IndexPolicy::kDefault && !body.nothing_to_do())
    body.workspace_bytes = body.pairs * std::int64_t{sizeof(IndexUse)} + kWorkspaceAlign;
  if (context.state().queue != nullptr)
    make_block_copy_cuda(body, a, static_cast<cuda::Queue&>(*context.state().queue));
}

Status BlockCopyPlan::check(const char* src_name, const void* const* src, const char* dst_name,
                            const void* const* dst, const void* mapping_data, const void* count_data,
                            const Workspace& workspace) const {
  Status status = check_workspace(*this, workspace);
  const bool moves = pairs > 0 && !caches.empty();
  for (const auto& [name, pointers] : {std::pair{src_name, src}, std::pair{dst_name, dst}}) {
    need(status, *this, name, pointers, moves);
    for (std::size_t i = 0; moves && status.ok() && i < caches.size(); ++i) {
      if (pointers[caches[i].index] == nullptr)
        need(status, *this, name_of(name, caches[i].index).c_str(), nullptr, true);
    }
  }
  need(status, *this, "mapping", mapping_data, !nothing_to_do());
  need(status, *this, "count", count_data, !nothing_to_do() && has_count);
  return status;
}

std::string BlockCopyPlan::describe_problem() const {
  std::string text = fmt::format("  problem         {} pairs{}, from {} blocks {} {}\n", pairs,
                                 has_count ? ", count read at run time" : "", src_blocks,
                                 one_pool() ? "onto the same" : "into", dst_blocks);
  for (std::size_t i = 0; i < caches.size();) {
    const auto block = [&](std::size_t at) {
      const BlockCopyCache& cache = caches[at];
      return fmt::format("{} B{}{}", cache.bytes,
                         cache.nest.loop_count > 0 ? ": " + internal::describe(cache.nest) : ", dense",
                         cache.joined() ? ", runs are one piece" : "");
    };
    std::size_t end = i + 1;
    while (end < caches.size() && block(end) == block(i)) ++end;
    text += fmt::format(
        "  {:<15} a block is {}\n",
        end - i == 1 ? fmt::format("cache {}", caches[i].index) : fmt::format("{} caches", end - i),
        block(i));
    i = end;
  }
  text += cuda.transfer;
  return text + cpu::describe_units(lines_of(*this, pairs), kLine, threads, "lines of 64 B");
}

Status run_block_copy(const BlockCopyPlan& plan, const BlockCopyBuffers& buffers, ContextState& context,
                      const cpu::CopyKernels& kernels) {
  if (plan.nothing_to_do()) return {};
  const Call call(plan, buffers);
  if (Status status = judge_block_copy(call); !status.ok()) return status;
  const std::int64_t total = call.pairs * plan.first_byte.back();
  const cpu::Split split = cpu::split(lines_of(plan, call.pairs), kLine, context.threads);
  const bool nontemporal = cpu::use_nontemporal(split.bytes, context.options.streaming);
  cpu::parallel_for(context, split.claims, [&](std::int64_t claim) {
    const std::int64_t begin = claim * split.units_per_claim * kLine;
    Copier(call, kernels, nontemporal).copy(begin, std::min(begin + split.units_per_claim * kLine, total));
  });
  return {};
}

}  // namespace kvferry::internal
