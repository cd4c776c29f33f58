// SPDX-License-Identifier: Apache-2.0
//
// group_memcpy and swap_blocks on a GPU.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "bench/cuda/peers.hpp"
#include "bench/cuda/problem.hpp"
#include "kvferry/ops/group_memcpy.hpp"
#include "kvferry/ops/swap_blocks.hpp"

namespace kvferry::bench::gpu {
namespace {

// `n` copies of `w` bytes from random places to random places of device memory.
class CopiesProblem final : public Problem {
 public:
  CopiesProblem(const Spec& spec, const Gpu& gpu)
      : stream_(gpu.stream),
        context_(gpu.context()),
        n_(spec.integer("n", 1000)),
        w_(spec.integer("w", 1024)) {
    bytes = n_ * w_;
    if (bytes > kPoolBytes) throw SpecError("more bytes than the pool has");
    from_ = on_device(bytes);
    to_ = on_device(bytes);
    gpu::require(cudaMemcpy(from_.data(), host_pool().data(), to_size(bytes), cudaMemcpyDefault),
                 "cudaMemcpy");
    Random random(7);
    sources_ = random.permutation(n_);
    destinations_ = random.permutation(n_);
    std::vector<std::uint64_t> table, sources, destinations;
    for (std::int64_t i = 0; i < n_; ++i) {
      sources.push_back(reinterpret_cast<std::uint64_t>(from_.data() + sources_[to_size(i)] * w_));
      destinations.push_back(reinterpret_cast<std::uint64_t>(to_.data() + destinations_[to_size(i)] * w_));
      table.insert(table.end(), {sources.back(), destinations.back()});
    }
    table_ = on_device(table);
    source_table_ = on_device(sources);
    destination_table_ = on_device(destinations);
    sizes_ = on_device(std::vector<std::int64_t>(to_size(n_), w_));

    GroupMemcpyArgs args;
    args.addr_table = on(DeviceType::kCuda, contiguous(table_.data(), DType::kUInt64, {n_, 2}));
    args.copy_bytes = w_;
    Result<Plan> made = plan(args, context_);
    gpu::require(made.status());
    plan_ = made.value();
    workspace_ = on_device(plan_.workspace_bytes());
    buffers_ = buffers(args);
    buffers_.workspace = {workspace_.data(), plan_.workspace_bytes()};
    variants.push_back({"kvferry", [this] { gpu::require(run(plan_, buffers_, context_)); }, bytes});

    gpu::require(cub(nullptr), "cub::DeviceMemcpy::Batched");
    temporary_ = on_device(static_cast<std::int64_t>(temporary_bytes_));
    variants.push_back({"cub_batched",
                        [this] { gpu::require(cub(temporary_.data()), "cub::DeviceMemcpy::Batched"); },
                        bytes});
    variants.push_back(
        {"memcpy_d2d",
         [this] {
           gpu::require(cudaMemcpyAsync(to_.data(), from_.data(), to_size(bytes), cudaMemcpyDefault, stream_),
                        "cudaMemcpyAsync");
         },
         bytes});
  }

  std::string verify() override {
    for (std::size_t v = 0; v < 2; ++v) {  // CUB's result too: it must have done the same
      gpu::require(cudaMemset(to_.data(), 0, to_size(bytes)), "cudaMemset");
      gpu::require(cudaDeviceSynchronize(), "cudaMemset");
      variants[v].call();
      gpu::require(cudaStreamSynchronize(stream_), variants[v].name.c_str());
      const std::vector<std::byte> seen = download(to_.data(), bytes);
      for (std::int64_t i = 0; i < n_; ++i) {
        if (std::memcmp(seen.data() + destinations_[to_size(i)] * w_,
                        host_pool().data() + sources_[to_size(i)] * w_, to_size(w_)) != 0)
          return variants[v].name + ": wrong bytes of copy " + std::to_string(i);
      }
    }
    return {};
  }

 private:
  cudaError_t cub(void* temporary) {
    return cub_batched_memcpy(temporary, temporary_bytes_,
                              reinterpret_cast<const void* const*>(source_table_.data()),
                              reinterpret_cast<void* const*>(destination_table_.data()),
                              reinterpret_cast<const std::int64_t*>(sizes_.data()), n_, stream_);
  }

  cudaStream_t stream_;
  Context context_;
  std::int64_t n_, w_;
  std::vector<std::int64_t> sources_, destinations_;
  Buffer from_, to_, table_, source_table_, destination_table_, sizes_, temporary_, workspace_;
  std::size_t temporary_bytes_ = 0;
  Plan plan_;
  GroupMemcpyBuffers buffers_;
};

// `n` blocks of `w` bytes between the host's pool and the device's, dir=in to the device, dir=out to the
// host; on the host anywhere, or with host=seq one behind the other.
class SwapProblem final : public Problem {
 public:
  SwapProblem(const Spec& spec, const Gpu& gpu)
      : stream_(gpu.stream),
        context_(gpu.context()),
        n_(spec.integer("n", 16)),
        w_(spec.integer("w", 64 << 10)),
        in_(spec.text("dir", "in") == "in") {
    bytes = missed_bytes = n_ * w_;
    const std::int64_t blocks = std::max<std::int64_t>(2 * n_, (std::int64_t{64} << 20) / w_);
    if (blocks * w_ > kPoolBytes) throw SpecError("more bytes than the pool has");
    pool_bytes_ = blocks * w_;
    // Of the host: what `in` reads; what `out` writes is memory of its own.
    device_ = on_device(pool_bytes_);
    if (!in_) {
      host_ = Buffer(Buffer::Kind::kPinned, pool_bytes_);
      gpu::require(cudaMemcpy(device_.data(), host_pool().data(), to_size(pool_bytes_), cudaMemcpyDefault),
                   "cudaMemcpy");
    }
    std::byte* const host = in_ ? host_pool().data() : host_.data();
    from_ = in_ ? host : device_.data();
    to_ = in_ ? device_.data() : host;
    Random random(13);
    std::vector<std::int64_t> from = random.permutation(blocks), to = random.permutation(blocks);
    const bool seq = spec.text("host", "random") == "seq";
    if (seq) std::iota((in_ ? from : to).begin(), (in_ ? from : to).end(), 0);
    for (std::size_t i = 0; i < to_size(n_); ++i) {
      mapping_.insert(mapping_.end(), {from[i], to[i]});
      sources_.push_back(from_ + from[i] * w_);
      destinations_.push_back(to_ + to[i] * w_);
      sizes_.push_back(to_size(w_));
    }
    mapping_on_device_ = on_device(mapping_);

    const auto view = [&](std::byte* data, bool is_host) {
      return on(is_host ? DeviceType::kCudaHost : DeviceType::kCuda,
                contiguous(data, DType::kUInt8, {blocks, w_}));
    };
    const TensorView src[] = {view(from_, in_)}, dst[] = {view(to_, !in_)};
    SwapBlocksArgs args;
    args.src = src;
    args.dst = dst;
    // The host has it, as engines do: run() may choose between a kernel and the DMA engines.
    args.mapping = contiguous(mapping_.data(), DType::kInt64, {n_, 2});
    calls_[0] = make_call(args);
    // The device has it: a kernel.
    args.mapping = on(DeviceType::kCuda, contiguous(mapping_on_device_.data(), DType::kInt64, {n_, 2}));
    calls_[1] = make_call(args);
    variants.push_back({"kvferry", [this] { call(0); }, bytes});
    variants.push_back({"kvferry_device_mapping", [this] { call(1); }, bytes});
    variants.push_back({"memcpy_batch", [this] { batch(); }, bytes});
    variants.push_back({"memcpy_each",
                        [this] {
                          for (std::size_t i = 0; i < sizes_.size(); ++i)
                            gpu::require(cudaMemcpyAsync(destinations_[i], sources_[i], sizes_[i],
                                                         cudaMemcpyDefault, stream_),
                                         "cudaMemcpyAsync");
                        },
                        bytes});
    if (seq) add_staged(from, to);
  }

  std::string verify() override {
    for (const Variant& variant : variants) {
      if (in_) {
        gpu::require(cudaMemset(to_, 0, to_size(pool_bytes_)), "cudaMemset");
        gpu::require(cudaDeviceSynchronize(), "cudaMemset");
      } else {
        std::memset(to_, 0, to_size(pool_bytes_));
      }
      variant.call();
      gpu::require(cudaStreamSynchronize(stream_), variant.name.c_str());
      const std::vector<std::byte> seen = download(to_, pool_bytes_);
      std::vector<std::byte> expected(to_size(pool_bytes_));
      for (std::size_t i = 0; i < sizes_.size(); ++i)
        std::memcpy(expected.data() + (destinations_[i] - to_), host_pool().data() + (sources_[i] - from_),
                    sizes_[i]);
      if (seen != expected) return variant.name + ": wrong bytes";
    }
    return {};
  }

 private:
  struct Call {
    Plan plan;
    Buffer workspace;
    const void* src = nullptr;
    void* dst = nullptr;
    const void* mapping = nullptr;
  };
  // One copy of all and a kernel within the device: staging at its best.
  void add_staged(const std::vector<std::int64_t>& from, const std::vector<std::int64_t>& to) {
    staged_ = on_device(bytes);
    std::vector<std::int64_t> mapping;
    for (std::int64_t i = 0; i < n_; ++i)
      mapping.insert(mapping.end(), {in_ ? i : from[to_size(i)], in_ ? to[to_size(i)] : i});
    staged_mapping_ = on_device(mapping);
    const auto view = [&](std::byte* data, std::int64_t all) {
      return on(DeviceType::kCuda, contiguous(data, DType::kUInt8, {all / w_, w_}));
    };
    const TensorView buffer[] = {view(staged_.data(), bytes)}, pool[] = {view(device_.data(), pool_bytes_)};
    SwapBlocksArgs args;
    args.src = in_ ? buffer : pool;
    args.dst = in_ ? pool : buffer;
    args.mapping = on(DeviceType::kCuda, contiguous(staged_mapping_.data(), DType::kInt64, {n_, 2}));
    calls_[2] = make_call(args);
    const auto copy = [this](std::byte* dst, const std::byte* src) {
      gpu::require(cudaMemcpyAsync(dst, src, to_size(bytes), cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
    };
    variants.push_back({"memcpy_and_kernel",
                        [this, copy] {
                          if (in_) copy(staged_.data(), from_);
                          call(2);
                          if (!in_) copy(to_, staged_.data());
                        },
                        bytes});
  }
  Call make_call(const SwapBlocksArgs& args) {
    Call call;
    Result<Plan> made = plan(args, context_);
    gpu::require(made.status());
    call.plan = made.value();
    call.workspace = on_device(call.plan.workspace_bytes());
    call.mapping = buffers(args, &call.src, &call.dst).mapping;
    return call;
  }
  void call(std::size_t which) const {
    const Call& c = calls_[which];
    SwapBlocksBuffers b;
    b.src = &c.src;
    b.dst = &c.dst;
    b.mapping = c.mapping;
    b.workspace = {c.workspace.data(), c.plan.workspace_bytes()};
    gpu::require(run(c.plan, b, context_));
  }
  void batch() {
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    static_assert(sizeof(std::byte*) == sizeof(void*));
    gpu::require(cudaMemcpyBatchAsync(reinterpret_cast<void* const*>(destinations_.data()),
                                      reinterpret_cast<const void* const*>(sources_.data()), sizes_.data(),
                                      sizes_.size(), &attributes, &first, 1, stream_),
                 "cudaMemcpyBatchAsync");
  }

  cudaStream_t stream_;
  Context context_;
  std::int64_t n_, w_;
  bool in_;
  std::int64_t pool_bytes_ = 0;
  Buffer device_, host_, mapping_on_device_, staged_, staged_mapping_;
  std::vector<std::int64_t> mapping_;
  std::byte *from_ = nullptr, *to_ = nullptr;
  std::vector<std::byte*> sources_, destinations_;
  std::vector<std::size_t> sizes_;
  Call calls_[3];
};

}  // namespace

std::unique_ptr<Problem> make_copies_problem(const Spec& spec, const Gpu& gpu) {
  return std::make_unique<CopiesProblem>(spec, gpu);
}
std::unique_ptr<Problem> make_swap_problem(const Spec& spec, const Gpu& gpu) {
  return std::make_unique<SwapProblem>(spec, gpu);
}

}  // namespace kvferry::bench::gpu
