// SPDX-License-Identifier: Apache-2.0
//
// copy_blocks and swap_blocks on a CUDA device.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "core/checked_math.hpp"
#include "ops/block_copy.hpp"
#include "ops/cuda_implementation.hpp"

namespace kvferry::internal {
namespace {

using Group = BlockCopyCuda::Group;

constexpr std::int64_t kMostCount = std::numeric_limits<std::int32_t>::max();
constexpr std::uint32_t kThreads = cuda::BlockCopy::kThreads;

// Empty if there is one.
std::string make_shape(const BlockCopyCache& cache, std::int64_t task_bytes, cuda::BlockShape& shape) {
  const Nest& nest = cache.nest;
  if (nest.loop_count > static_cast<int>(cuda::BlockShape::kLoops))
    return fmt::format("{} loops around a piece, expected at most {}", nest.loop_count,
                       cuda::BlockShape::kLoops);
  shape.src_step = cache.src_step;
  shape.dst_step = cache.dst_step;
  shape.piece = nest.piece;
  const CudaSplit split = cuda_split(nest.piece, task_bytes);
  shape.line_bytes = split.part_bytes;
  Checked lines(split.parts);
  shape.loop_count = static_cast<std::uint32_t>(nest.loop_count);
  for (std::size_t l = 0; l < shape.loop_count; ++l) {
    const Axis& loop = nest.loops[l];
    lines = lines * loop.count;
    shape.loops[l] = {static_cast<std::uint32_t>(loop.count), loop.src_step, loop.dst_step};
  }
  // Parts of all caches are counted in 32 bits too.
  const std::int64_t most = kMostCount / cuda::BlockCopy::kMostCaches;
  if (lines.overflow || lines.value > kMostCount)
    return fmt::format("a block has more than {} pieces", kMostCount);
  const std::int64_t of_part = std::clamp<std::int64_t>(task_bytes / shape.line_bytes, 1, lines.value);
  const std::int64_t parts = (lines.value - 1) / of_part + 1;
  if (parts > most) return fmt::format("a block has {} parts, expected at most {}", parts, most);
  shape.lines_of_piece = static_cast<std::uint32_t>(split.parts);
  shape.lines = static_cast<std::uint32_t>(lines.value);
  shape.lines_of_part = static_cast<std::uint32_t>((lines.value - 1) / parts + 1);
  shape.parts = static_cast<std::uint32_t>((lines.value - 1) / shape.lines_of_part + 1);
  shape.line_ranks = cuda_ranks(shape.line_bytes, kThreads);
  shape.ranks = cuda_ranks(std::int64_t{shape.lines_of_part} * shape.line_bytes, kThreads);
  return {};
}

// One launch, or one decision about DMA, can take both.
bool alike(const BlockCopyCache& a, const BlockCopyCache& b) {
  const auto same = [](const Axis& p, const Axis& q) {
    return p.count == q.count && p.src_step == q.src_step && p.dst_step == q.dst_step;
  };
  return a.src_step == b.src_step && a.dst_step == b.dst_step && a.bytes == b.bytes &&
         a.nest.piece == b.nest.piece && a.nest.loop_count == b.nest.loop_count &&
         std::equal(a.nest.loops.begin(), a.nest.loops.begin() + a.nest.loop_count, b.nest.loops.begin(),
                    same) &&
         a.src_pinned == b.src_pinned && a.dst_pinned == b.dst_pinned;
}

const BlockCopyCache& first_of(const BlockCopyPlan& plan, const Group& group) {
  return plan.caches[group.caches.front()];
}

// Whole blocks lie in one piece, and the link is between them.
bool dma_is_possible(const BlockCopyPlan& plan, const Group& group) {
  const BlockCopyCache& cache = first_of(plan, group);
  return plan.cuda.host_mapping && !plan.one_pool() && cache.nest.loop_count == 0 &&
         (cache.src_pinned || cache.dst_pinned);
}

// What of `pairs` is copied by itself, in each cache of a group.
std::int64_t copies_of(const BlockCopyCache& cache, std::int64_t pairs, std::int64_t runs) {
  return cache.joined() ? runs : pairs;
}

bool dma_pays(const BlockCopyCache& cache, std::int64_t caches, std::int64_t pairs, std::int64_t copies,
              const cuda::Tuning& tuning) {
  return copies > 0 && pairs * cache.bytes / copies >= tuning.dma_bytes &&
         !(Checked(copies) * caches).overflow && copies * caches <= tuning.dma_copies;
}

std::string describe_transfer(const BlockCopyPlan& plan, const Group& group, const cuda::Tuning& tuning) {
  const BlockCopyCache& cache = first_of(plan, group);
  if (!cache.src_pinned && !cache.dst_pinned) return {};
  const auto caches = static_cast<std::int64_t>(group.caches.size());
  std::string text = fmt::format("  transfer        {} cache{}: ", caches, caches == 1 ? "" : "s");
  if (plan.one_pool()) return text + "kernel, as both sides are one pool\n";
  if (!plan.cuda.host_mapping) return text + "kernel, as the host does not read the mapping\n";
  if (cache.nest.loop_count > 0) return text + "kernel, as a block is not one piece\n";
  if (dma_pays(cache, caches, plan.pairs, plan.pairs, tuning)) {
    return text + fmt::format("dma, at most {} copies of {} B or more (enough for dma: {} B)\n",
                              plan.pairs * caches, cache.bytes, tuning.dma_bytes);
  }
  if (!cache.joined() && cache.bytes < tuning.dma_bytes) {
    return text + fmt::format("kernel, as copies of {} B are too short for dma (enough: {} B)\n", cache.bytes,
                              tuning.dma_bytes);
  }
  return text + fmt::format("dma for at most {} copies of {} B on average{}, else kernel\n",
                            tuning.dma_copies, tuning.dma_bytes,
                            cache.joined() ? ", neighbours taken together" : "");
}

// Pointers of a call as the device has them.
class Caches {
 public:
  Caches(const BlockCopyPlan& plan, const BlockCopyBuffers& buffers, cuda::Queue& queue)
      : plan_(plan), buffers_(buffers), device_(queue, plan.op) {}

  // Those of `group` from `first` on, at most `most`. How many.
  template <class Params>
  std::uint32_t put(Params& params, const Group& group, std::size_t first, std::uint32_t most) {
    params.shape = group.shape;
    params.cache_count = static_cast<std::uint32_t>(std::min<std::size_t>(most, group.caches.size() - first));
    for (std::uint32_t c = 0; c < params.cache_count; ++c) {
      const BlockCopyCache& cache = plan_.caches[group.caches[first + c]];
      const void* src = buffers_.src[cache.index];
      void* dst = buffers_.dst[cache.index];
      if (cache.src_pinned) src = translated(src, plan_.one_pool() ? "caches" : "src", cache.index);
      if (cache.dst_pinned) dst = translated(dst, plan_.one_pool() ? "caches" : "dst", cache.index);
      params.caches[c] = {
          cuda::DevicePtr<const std::uint8_t>::at(static_cast<const std::uint8_t*>(src) +
                                                  cache.nest.src_base),
          cuda::DevicePtr<std::uint8_t>::at(static_cast<std::uint8_t*>(dst) + cache.nest.dst_base)};
    }
    return params.cache_count;
  }
  const Status& status() const { return device_.status(); }

 private:
  template <class T>
  T* translated(T* pointer, const char* list, std::size_t index) {
    std::array<char, 40> name{};
    *fmt::format_to_n(name.data(), name.size() - 1, "{}[{}]", list, index).out = '\0';
    return device_.of(pointer, true, name.data());
  }

  const BlockCopyPlan& plan_;
  const BlockCopyBuffers& buffers_;
  DevicePointers device_;
};

template <class K>
Status launch_all(const BlockCopyPlan& plan, const Group& group, Caches& caches, typename K::Params& params,
                  std::int64_t pairs, cuda::Queue& queue) {
  const BlockCopyCache& cache = first_of(plan, group);
  for (std::size_t first = 0; first < group.caches.size();) {
    first += caches.put(params, group, first, K::kMostCaches);
    if (!caches.status().ok()) return caches.status();
    const std::int64_t items = std::int64_t{params.cache_count} * group.shape.parts;
    const std::int64_t units = cuda_units<K>(pairs, items, group.shape.ranks);
    if (Status status = queue.launch<K>(plan.op, params, units, cache.src_pinned || cache.dst_pinned);
        !status.ok())
      return status;
  }
  return {};
}

// The device reads the mapping.
Status run_mapped(const BlockCopyPlan& plan, const BlockCopyBuffers& buffers, cuda::Queue& queue) {
  DevicePointers device(queue, plan.op);
  cuda::BlockMapping mapping{};
  mapping.entries =
      cuda_indices(plan.mapping, device.of(buffers.mapping, plan.cuda.pinned_mapping, "mapping"));
  if (plan.has_count)
    mapping.count = cuda_indices(plan.count, device.of(buffers.count, plan.cuda.pinned_count, "count"));
  if (!device.status().ok()) return device.status();
  mapping.most = plan.pairs;
  mapping.src_blocks = plan.src_blocks;
  mapping.dst_blocks = plan.dst_blocks;
  mapping.has_count = plan.has_count;
  mapping.one_pool = plan.one_pool();
  if (plan.policy == IndexPolicy::kReport && buffers.error_record != nullptr) {
    cuda::BlockReport::Params report{};
    report.mapping = mapping;
    report.destinations = cuda::FirstUse::at(
        cuda::DevicePtr<cuda::FirstUse::Place>::at(aligned<cuda::FirstUse::Place>(buffers.workspace)),
        plan.pairs);
    report.record = cuda::DevicePtr<cuda::Record>::at(reinterpret_cast<cuda::Record*>(buffers.error_record));
    report.op = static_cast<std::uint32_t>(plan.op);
    if (Status status = queue.launch<cuda::BlockReport>(plan.op, report, 1); !status.ok()) return status;
  }
  Caches caches(plan, buffers, queue);
  cuda::BlockCopy::Params params{};
  params.mapping = mapping;
  for (const Group& group : plan.cuda.groups) {
    if (Status status = launch_all<cuda::BlockCopy>(plan, group, caches, params, plan.pairs, queue);
        !status.ok())
      return status;
  }
  return {};
}

// The host reads the mapping.
class GivenCopy {
 public:
  GivenCopy(const BlockCopyPlan& plan, const BlockCopyBuffers& buffers, cuda::Queue& queue)
      : call_(plan, buffers), queue_(queue), caches_(plan, buffers, queue) {}

  Status run() {
    if (Status status = judge_block_copy(call_); !status.ok()) return status;
    std::int64_t pairs = 0, runs = 0;
    Status status = for_each_run([&](const BlockCopyPair&, std::int64_t blocks) -> Status {
      pairs += blocks;
      ++runs;
      return {};
    });
    for (std::size_t g = 0; g < call_.plan.cuda.groups.size() && status.ok(); ++g) {
      const Group& group = call_.plan.cuda.groups[g];
      const BlockCopyCache& cache = first_of(call_.plan, group);
      const auto caches = static_cast<std::int64_t>(group.caches.size());
      const bool dma = dma_is_possible(call_.plan, group) &&
                       dma_pays(cache, caches, pairs, copies_of(cache, pairs, runs), queue_.tuning());
      status = dma ? copy(group) : launch(group);
    }
    return status;
  }

 private:
  // Calls body(first pair, blocks) for each run of active pairs whose blocks are neighbours on both sides.
  template <class Body>
  Status for_each_run(Body body) const {
    for (std::int64_t p = 0; p < call_.pairs;) {
      const BlockCopyPair pair = call_.at(p);
      std::int64_t blocks = 1;
      if (call_.active(pair)) {
        blocks = call_.run_length(p, pair, call_.pairs - p);
        if (Status status = body(pair, blocks); !status.ok()) return status;
      }
      p += blocks;
    }
    return {};
  }

  Status launch(const Group& group) {
    cuda::BlockCopyGiven::Params params{};
    const auto flush = [&]() -> Status {
      if (params.pair_count == 0) return {};
      Status status =
          launch_all<cuda::BlockCopyGiven>(call_.plan, group, caches_, params, params.pair_count, queue_);
      params.pair_count = 0;
      return status;
    };
    for (std::int64_t p = 0; p < call_.pairs; ++p) {
      const BlockCopyPair pair = call_.at(p);
      if (!call_.active(pair)) continue;
      params.pairs[params.pair_count++] = {pair.src, pair.dst};
      if (params.pair_count < cuda::BlockCopyGiven::kMostPairs) continue;
      if (Status status = flush(); !status.ok()) return status;
    }
    return flush();
  }

  // By the DMA engines, which take the host's own addresses.
  Status copy(const Group& group) {
    std::array<cuda::CopyRun, 256> runs;
    std::size_t count = 0;
    const auto flush = [&]() -> Status {
      const std::size_t n = std::exchange(count, 0);
      return n == 0 ? Status() : queue_.copy_batch(call_.plan.op, std::span(runs).first(n));
    };
    for (const std::size_t c : group.caches) {
      const BlockCopyCache& cache = call_.plan.caches[c];
      const auto* src = static_cast<const std::byte*>(call_.buffers.src[cache.index]) + cache.nest.src_base;
      auto* dst = static_cast<std::byte*>(call_.buffers.dst[cache.index]) + cache.nest.dst_base;
      Status status = for_each_run([&](const BlockCopyPair& pair, std::int64_t blocks) -> Status {
        const std::int64_t at_once = cache.joined() ? blocks : 1;
        for (std::int64_t b = 0; b < blocks; b += at_once) {
          runs[count++] = {dst + (pair.dst + b) * cache.dst_step, src + (pair.src + b) * cache.src_step,
                           at_once * cache.bytes};
          if (count < runs.size()) continue;
          if (Status flushed = flush(); !flushed.ok()) return flushed;
        }
        return {};
      });
      if (!status.ok()) return status;
    }
    return flush();
  }

  const BlockCopyCall call_;
  cuda::Queue& queue_;
  Caches caches_;
};

}  // namespace

void make_block_copy_cuda(BlockCopyPlan& body, const BlockCopyArgs& args, const cuda::Queue& queue) {
  BlockCopyCuda& to = body.cuda;
  to.host_mapping = is_on_host(args.mapping);
  to.pinned_mapping = is_pinned(args.mapping);
  to.pinned_count = args.count && is_pinned(*args.count);
  body.host_workspace = to.host_mapping;
  if (!to.host_mapping && body.workspace_bytes > 0)
    body.workspace_bytes = body.pairs * cuda::FirstUse::kBytesPerEntry + kWorkspaceAlign;
  for (std::size_t i = 0; i < body.caches.size() && to.cannot.empty(); ++i) {
    BlockCopyCache& cache = body.caches[i];
    cache.src_pinned = is_pinned(args.src[cache.index]);
    cache.dst_pinned = is_pinned(args.dst[cache.index]);
    const auto group = std::find_if(to.groups.begin(), to.groups.end(),
                                    [&](const Group& g) { return alike(first_of(body, g), cache); });
    if (group != to.groups.end()) {
      group->caches.push_back(i);
      continue;
    }
    Group& added = to.groups.emplace_back();
    added.caches = {i};
    const std::string reason = make_shape(cache, queue.tuning().task_bytes, added.shape);
    if (!reason.empty())
      to.cannot = fmt::format("{}: {}", name_of(body.one_pool() ? "caches" : "dst", cache.index), reason);
  }
  for (const Group& group : to.groups) to.transfer += describe_transfer(body, group, queue.tuning());
}

Status run_block_copy_cuda(const BlockCopyPlan& plan, const BlockCopyBuffers& buffers, cuda::Queue& queue) {
  if (plan.nothing_to_do()) return {};
  return plan.cuda.host_mapping ? GivenCopy(plan, buffers, queue).run() : run_mapped(plan, buffers, queue);
}

}  // namespace kvferry::internal
