// SPDX-License-Identifier: Apache-2.0
//
// copy_blocks and swap_blocks on a CUDA device.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "backends/cuda/transfer.hpp"
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

// One launch, or one choice of a way between host and device, can take both.
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

// Active pairs of a call, and their runs: pairs whose blocks follow each other.
struct Runs {
  std::int64_t pairs = 0;
  std::int64_t both = 0, src = 0, dst = 0;  // on both sides, on one
};

// What fills the staging buffer at a time.
struct Chunk {
  std::int64_t pairs, caches;  // at most
};
// Long runs on the host's side first, then caches beside each other. Pairs stand in the parameters of a
// kernel. No pairs: a block is larger than the buffer.
Chunk chunk_of(std::int64_t block_bytes, std::int64_t pairs, std::int64_t caches,
               std::int64_t staging_bytes) {
  using K = cuda::BlockCopyGiven;
  const std::int64_t fit = staging_bytes / block_bytes;
  if (fit == 0) return {};
  const std::int64_t of_cache = std::min({pairs, fit, std::int64_t{K::kMostPairs}});
  return {of_cache, std::min({caches, fit / of_cache, std::int64_t{K::kMostCaches}})};
}

// Why it is the kernel's whatever the call brings, null if there is a choice.
const char* why_kernel(const BlockCopyPlan& plan, const BlockCopyCache& cache) {
  if (plan.one_pool()) return "both sides are one pool";
  if (!plan.cuda.host_mapping) return "the host does not read the mapping";
  if (cache.nest.loop_count > 0) return "a block is not one piece";
  return nullptr;
}

// Between a host's pool and the device's, where short copies can become fewer.
bool staging_is_of_use(const BlockCopyPlan& plan, const BlockCopyCache& cache, const cuda::LinkTuning& link) {
  return why_kernel(plan, cache) == nullptr && cache.src_pinned != cache.dst_pinned &&
         (cache.src_pinned ? cache.src_step : cache.dst_step) == cache.bytes &&
         cache.bytes < link.copy_ns * link.dma_rate;
}

// REQUIRES a choice.
cuda::Transfer transfer_of(const BlockCopyPlan& plan, const Group& group, const Runs& runs,
                           std::int64_t staging_bytes, const cuda::LinkTuning& link) {
  using K = cuda::BlockCopyGiven;
  const BlockCopyCache& cache = first_of(plan, group);
  const auto caches = static_cast<std::int64_t>(group.caches.size());
  cuda::Transfer transfer;
  transfer.bytes = runs.pairs * caches * cache.bytes;
  transfer.launches = ceil_div(runs.pairs, K::kMostPairs) * ceil_div(caches, K::kMostCaches);
  transfer.copies = caches * (cache.joined() ? runs.both : runs.pairs);
  if (!staging_is_of_use(plan, cache, link)) return transfer;
  const Chunk chunk = chunk_of(cache.bytes, runs.pairs, caches, staging_bytes);
  if (chunk.pairs == 0) return transfer;
  const std::int64_t fillings = ceil_div(runs.pairs, chunk.pairs);
  transfer.chunks = fillings * ceil_div(caches, chunk.caches);
  transfer.staged_copies = caches * ((cache.src_pinned ? runs.src : runs.dst) + fillings - 1);
  return transfer;
}

std::string describe_transfer(const BlockCopyPlan& plan, const Group& group, std::int64_t staging_bytes,
                              const cuda::LinkTuning& link) {
  const BlockCopyCache& cache = first_of(plan, group);
  if (!cache.src_pinned && !cache.dst_pinned) return {};
  std::string text =
      fmt::format("  transfer        {} cache{}: ", group.caches.size(), group.caches.size() == 1 ? "" : "s");
  if (const char* const why = why_kernel(plan, cache); why != nullptr)
    return text + fmt::format("kernel, as {}\n", why);
  if (plan.pairs == 0) return text + "nothing\n";
  const std::int64_t n = plan.pairs;
  const cuda::Transfer best = transfer_of(plan, group, {n, 1, 1, 1}, staging_bytes, link),
                       worst = transfer_of(plan, group, {n, n, n, n}, staging_bytes, link);
  text += fmt::format("the cheapest for each call's runs; estimates of {} pairs in one run .. in none:", n);
  for (const cuda::Way way : cuda::kWays) {
    const auto cost = [&](const cuda::Transfer& of) {
      const std::int64_t ns = cuda::estimate(way, of, link);
      return ns == cuda::kNever ? "never" : fmt::format("{:.1f}", static_cast<double>(ns) / 1000);
    };
    text += fmt::format(" {} {} .. {} us{}", to_string(way), cost(best), cost(worst),
                        way == cuda::Way::kKernel ? "\n" : ",");
  }
  return text;
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
      params.caches[c] = {
          cuda::DevicePtr<const std::uint8_t>::at(static_cast<const std::uint8_t*>(src_of(cache)) +
                                                  cache.nest.src_base),
          cuda::DevicePtr<std::uint8_t>::at(static_cast<std::uint8_t*>(dst_of(cache)) + cache.nest.dst_base)};
    }
    return params.cache_count;
  }
  // For copies that take the host's addresses: of memory that is not pinned, CUDA would copy it first, and
  // wait.
  const Status& check_pinned(const Group& group) {
    for (const std::size_t c : group.caches) {
      src_of(plan_.caches[c]);
      dst_of(plan_.caches[c]);
    }
    return status();
  }
  const Status& status() const { return device_.status(); }

 private:
  const void* src_of(const BlockCopyCache& cache) {
    const void* const src = buffers_.src[cache.index];
    return cache.src_pinned ? translated(src, plan_.one_pool() ? "caches" : "src", cache.index) : src;
  }
  void* dst_of(const BlockCopyCache& cache) {
    void* const dst = buffers_.dst[cache.index];
    return cache.dst_pinned ? translated(dst, plan_.one_pool() ? "caches" : "dst", cache.index) : dst;
  }
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

// Copies for the DMA engines, handed over by the batch.
class DmaCopies {
 public:
  DmaCopies(cuda::Queue& queue, Operator op) : queue_(queue), op_(op) {}

  void add(std::byte* dst, const std::byte* src, std::int64_t bytes) {
    runs_[count_++] = {dst, src, bytes};
    if (count_ == runs_.size()) flush();
  }
  // The first failure; after one nothing more is handed over.
  const Status& flush() {
    const std::size_t count = std::exchange(count_, 0);
    if (count > 0 && status_.ok()) status_ = queue_.copy_batch(op_, std::span(runs_).first(count));
    return status_;
  }

 private:
  cuda::Queue& queue_;
  Operator op_;
  Status status_;
  std::array<cuda::CopyRun, 256> runs_;
  std::size_t count_ = 0;
};

// The host reads the mapping.
class GivenCopy {
 public:
  GivenCopy(const BlockCopyPlan& plan, const BlockCopyBuffers& buffers, cuda::Queue& queue)
      : call_(plan, buffers), queue_(queue), link_(queue.tuning().link), caches_(plan, buffers, queue) {}

  Status run() {
    Status status = judge_block_copy(call_);
    if (!status.ok()) return status;
    const Runs runs = count_runs();
    if (runs.pairs == 0) return {};
    for (const Group& group : call_.plan.cuda.groups) {
      status = move(group, runs);
      if (!status.ok()) break;
    }
    return status;
  }

 private:
  Status move(const Group& group, const Runs& runs) {
    const BlockCopyCache& cache = first_of(call_.plan, group);
    if ((!cache.src_pinned && !cache.dst_pinned) || why_kernel(call_.plan, cache) != nullptr)
      return launch(group);
    cuda::Queue::Staging staging;
    if (staging_is_of_use(call_.plan, cache, link_)) staging = queue_.staging();
    const cuda::Way way = cuda::best_way(transfer_of(call_.plan, group, runs, staging.bytes, link_), link_);
    if (way == cuda::Way::kKernel) return launch(group);
    if (Status status = caches_.check_pinned(group); !status.ok()) return status;
    return way == cuda::Way::kDma ? copy(group) : stage(group, runs.pairs, staging);
  }

  template <class Body>
  void for_each_active(Body body) const {
    for (std::int64_t p = 0; p < call_.pairs; ++p) {
      if (const BlockCopyPair pair = call_.at(p); call_.active(pair)) body(pair);
    }
  }

  Runs count_runs() const {
    Runs runs;
    BlockCopyPair last{-2, -2};  // which no block follows
    for_each_active([&](const BlockCopyPair& pair) {
      const bool src = pair.src != last.src + 1, dst = pair.dst != last.dst + 1;
      ++runs.pairs;
      runs.src += src ? 1 : 0;
      runs.dst += dst ? 1 : 0;
      runs.both += src || dst ? 1 : 0;
      last = pair;
    });
    return runs;
  }

  // Calls body(pairs) with the active ones, at most `most` at a time.
  template <class Body>
  Status for_each_batch(std::int64_t most, Body body) const {
    std::array<BlockCopyPair, cuda::BlockCopyGiven::kMostPairs> pairs;
    std::size_t count = 0;
    Status status;
    const auto flush = [&] {
      const std::size_t n = std::exchange(count, 0);
      if (n > 0 && status.ok()) status = body(std::span<const BlockCopyPair>(pairs).first(n));
    };
    for_each_active([&](const BlockCopyPair& pair) {
      pairs[count++] = pair;
      if (static_cast<std::int64_t>(count) == most) flush();
    });
    flush();
    return status;
  }

  Status launch(const Group& group) {
    cuda::BlockCopyGiven::Params params{};
    return for_each_batch(cuda::BlockCopyGiven::kMostPairs, [&](std::span<const BlockCopyPair> pairs) {
      params.pair_count = static_cast<std::uint32_t>(pairs.size());
      for (std::size_t p = 0; p < pairs.size(); ++p) params.pairs[p] = {pairs[p].src, pairs[p].dst};
      return launch_all<cuda::BlockCopyGiven>(call_.plan, group, caches_, params, params.pair_count, queue_);
    });
  }

  // The host's own addresses: DMA engines take those. Only of caches in one piece.
  const std::byte* src_of(std::size_t c) const {
    const BlockCopyCache& cache = call_.plan.caches[c];
    return static_cast<const std::byte*>(call_.buffers.src[cache.index]) + cache.nest.src_base;
  }
  std::byte* dst_of(std::size_t c) const {
    const BlockCopyCache& cache = call_.plan.caches[c];
    return static_cast<std::byte*>(call_.buffers.dst[cache.index]) + cache.nest.dst_base;
  }

  Status copy(const Group& group) {
    DmaCopies copies(queue_, call_.plan.op);
    for (const std::size_t c : group.caches) {
      const BlockCopyCache& cache = call_.plan.caches[c];
      BlockCopyPair first{};
      std::int64_t blocks = 0;
      const auto add = [&] {
        if (blocks > 0)
          copies.add(dst_of(c) + first.dst * cache.dst_step, src_of(c) + first.src * cache.src_step,
                     blocks * cache.bytes);
      };
      for_each_active([&](const BlockCopyPair& pair) {
        if (cache.joined() && pair.src == first.src + blocks && pair.dst == first.dst + blocks &&
            blocks > 0) {
          ++blocks;
          return;
        }
        add();
        first = pair;
        blocks = 1;
      });
      add();
    }
    return copies.flush();
  }

  // Between the host's blocks and the buffer by DMA engines, and from there to the device's blocks, or first
  // from them, by a kernel.
  Status stage(const Group& group, std::int64_t active, const cuda::Queue::Staging& staging) {
    const BlockCopyCache& cache = first_of(call_.plan, group);
    const std::size_t all = group.caches.size();
    const Chunk chunk = chunk_of(cache.bytes, active, static_cast<std::int64_t>(all), staging.bytes);
    const bool in = cache.src_pinned;
    cuda::BlockCopyGiven::Params params{};
    params.shape = group.shape;  // the buffer's blocks are as far apart as the host's: back to back
    Status status;
    for (std::size_t first = 0; first < all && status.ok(); first += params.cache_count) {
      params.cache_count =
          static_cast<std::uint32_t>(std::min(all - first, static_cast<std::size_t>(chunk.caches)));
      status = for_each_batch(chunk.pairs, [&](std::span<const BlockCopyPair> pairs) -> Status {
        const auto stride = static_cast<std::int64_t>(pairs.size()) * cache.bytes;
        params.pair_count = static_cast<std::uint32_t>(pairs.size());
        for (std::uint32_t p = 0; p < params.pair_count; ++p)
          params.pairs[p] = in ? cuda::BlockPair{p, pairs[p].dst} : cuda::BlockPair{pairs[p].src, p};
        for (std::uint32_t c = 0; c < params.cache_count; ++c) {
          std::byte* const staged = staging.data + c * stride;
          const std::size_t of = group.caches[first + c];
          const auto* const src = in ? staged : src_of(of);
          auto* const dst = in ? dst_of(of) : staged;
          params.caches[c] = {
              cuda::DevicePtr<const std::uint8_t>::at(reinterpret_cast<const std::uint8_t*>(src)),
              cuda::DevicePtr<std::uint8_t>::at(reinterpret_cast<std::uint8_t*>(dst))};
        }
        const auto host_side = [&] { return copy_staged(group, first, params.cache_count, pairs, staging); };
        const auto device_side = [&] { return launch_staged(group, params); };
        Status done = in ? host_side() : device_side();
        if (done.ok()) done = in ? device_side() : host_side();
        return done;
      });
    }
    return status;
  }

  Status launch_staged(const Group& group, const cuda::BlockCopyGiven::Params& params) {
    using K = cuda::BlockCopyGiven;
    return queue_.launch<K>(
        call_.plan.op, params,
        cuda_units<K>(params.pair_count, std::int64_t{params.cache_count} * group.shape.parts,
                      group.shape.ranks));
  }

  // Of `count` caches from `first` on, each with its blocks side by side in the buffer.
  Status copy_staged(const Group& group, std::size_t first, std::uint32_t count,
                     std::span<const BlockCopyPair> pairs, const cuda::Queue::Staging& staging) {
    const BlockCopyCache& cache = first_of(call_.plan, group);
    const bool in = cache.src_pinned;
    DmaCopies copies(queue_, call_.plan.op);
    std::byte* staged = staging.data;
    for (std::uint32_t c = 0; c < count; ++c) {
      for (std::size_t p = 0, blocks = 0; p < pairs.size();
           p += blocks, staged += to_signed(blocks) * cache.bytes) {
        const auto host = [&](std::size_t i) { return in ? pairs[i].src : pairs[i].dst; };
        for (blocks = 1; p + blocks < pairs.size() && host(p + blocks) == host(p) + to_signed(blocks);)
          ++blocks;
        const std::size_t of = group.caches[first + c];
        const std::int64_t at = host(p) * cache.bytes;
        in ? copies.add(staged, src_of(of) + at, to_signed(blocks) * cache.bytes)
           : copies.add(dst_of(of) + at, staged, to_signed(blocks) * cache.bytes);
      }
    }
    return copies.flush();
  }

  static std::int64_t to_signed(std::size_t n) { return static_cast<std::int64_t>(n); }

  const BlockCopyCall call_;
  cuda::Queue& queue_;
  const cuda::LinkTuning& link_;
  Caches caches_;
};

}  // namespace

void make_block_copy_cuda(BlockCopyPlan& body, const BlockCopyArgs& args, cuda::Queue& queue) {
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
  const cuda::LinkTuning& link = queue.tuning().link;
  std::int64_t staging_bytes = 0;
  if (std::any_of(to.groups.begin(), to.groups.end(),
                  [&](const Group& group) { return staging_is_of_use(body, first_of(body, group), link); })) {
    const Result<std::int64_t> reserved = queue.reserve_staging();
    if (reserved.ok())
      staging_bytes = reserved.value();
    else
      to.transfer += fmt::format("  transfer        no staging: {}\n", reserved.status().message());
  }
  for (const Group& group : to.groups) to.transfer += describe_transfer(body, group, staging_bytes, link);
}

Status run_block_copy_cuda(const BlockCopyPlan& plan, const BlockCopyBuffers& buffers, cuda::Queue& queue) {
  if (plan.nothing_to_do()) return {};
  return plan.cuda.host_mapping ? GivenCopy(plan, buffers, queue).run() : run_mapped(plan, buffers, queue);
}

}  // namespace kvferry::internal
