// SPDX-License-Identifier: Apache-2.0
//
// gather_pa_kv_cache and scatter_pa_kv_cache on a GPU.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "bench/cuda/problem.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"
#include "kvferry/ops/scatter_pa_kv_cache.hpp"

namespace kvferry::bench::gpu {
namespace {

enum class Layout { kNd, kHnd, kNz };

// What all calls of a problem share: how a paged cache lies.
struct Form {
  Layout layout = Layout::kNd;
  std::int64_t block = 16, heads = 8, row = 2048, item = 2;
  int sides = 2;
  bool host = false;  // the cache is pinned memory of the host

  std::int64_t unit() const { return 32; }
  std::int64_t head_bytes() const { return row / heads; }
  // A token lies in pieces of so many bytes.
  std::int64_t piece() const {
    return layout == Layout::kNd ? row : layout == Layout::kHnd ? head_bytes() : unit();
  }
  std::int64_t place(std::int64_t slot, std::int64_t piece_index) const {
    if (layout == Layout::kNd) return slot * row;
    const std::int64_t pieces = row / piece();
    return ((slot / block * pieces + piece_index) * block + slot % block) * piece();
  }
  DType dtype() const { return item == 2 ? DType::kFloat16 : DType::kUInt8; }

  // What is absent has heads without elements.
  TensorView cache(void* data, std::int64_t blocks, bool present) const {
    const std::int64_t d = present ? head_bytes() / item : 0;
    const DeviceType where = host ? DeviceType::kCudaHost : DeviceType::kCuda;
    if (layout == Layout::kNz) {
      const std::int64_t e = unit() / item;
      return on(where, contiguous(data, dtype(), {blocks, present ? heads * d / e : 0, block, e}));
    }
    if (layout == Layout::kHnd)
      return on(where,
                strided(data, dtype(), {blocks, block, heads, d}, {block * heads * d, d, block * d, 1}));
    return on(where, contiguous(data, dtype(), {blocks, block, heads, d}));
  }
  // The scatter has a mode for heads before tokens.
  TensorView scatter_cache(void* data, std::int64_t blocks) const {
    if (layout != Layout::kHnd) return cache(data, blocks, true);
    return on(DeviceType::kCuda, contiguous(data, dtype(), {blocks, heads, block, head_bytes() / item}));
  }
  TensorView rows(void* data, std::int64_t tokens, bool flat, bool present) const {
    const std::int64_t d = present ? head_bytes() / item : 0;
    return on(DeviceType::kCuda, flat ? contiguous(data, dtype(), {tokens, heads * d})
                                      : contiguous(data, dtype(), {tokens, heads, d}));
  }
};

Form form_of(const Spec& spec) {
  Form form;
  const std::string layout = spec.text("layout", "nd");
  if (layout != "nd" && layout != "hnd" && layout != "nz")
    throw SpecError("layout=" + layout + " is none of nd, hnd, nz");
  form.layout = layout == "nd" ? Layout::kNd : layout == "hnd" ? Layout::kHnd : Layout::kNz;
  form.block = spec.integer("bs", 16);
  form.heads = spec.integer("h", 8);
  form.row = spec.integer("row", 2048);
  form.item = spec.integer("item", 2);
  form.sides = spec.integer("v", 1) != 0 ? 2 : 1;
  form.host = spec.text("cache", "device") == "host";
  return form;
}

// The bytes of side `side` of every cache: K and V differ.
const std::byte* pool_of(int side) {
  return host_pool().data() + std::ptrdiff_t{side} * 64;
}

// One plan with its tables, its outputs and its caches.
class GatherCall {
 public:
  GatherCall(const Form& form, std::vector<std::int64_t> lens, std::uint64_t seed, const Gpu& gpu)
      : form_(form), lens_(std::move(lens)), stream_(gpu.stream), context_(gpu.context()) {
    std::int64_t used = 0, columns = 1;
    for (const std::int64_t n : lens_) {
      tokens_ += n;
      used += (n + form.block - 1) / form.block;
      columns = std::max(columns, (n + form.block - 1) / form.block);
    }
    const std::int64_t most = (kPoolBytes - 128) / (form.block * form.row);
    blocks_ = form.host ? most : std::max(used, (std::int64_t{128} << 20) / (form.block * form.row));
    if (used > most) throw SpecError("the cache is larger than the pool");
    Random random(seed);
    const std::vector<std::int64_t> order = random.permutation(blocks_);
    std::vector<std::int32_t> table(lens_.size() * to_size(columns), -1), lens32(lens_.begin(), lens_.end());
    std::int64_t next = 0;
    for (std::size_t b = 0; b < lens_.size(); ++b) {
      for (std::int64_t t = 0; t < lens_[b]; ++t) {
        std::int32_t& id = table[b * to_size(columns) + to_size(t / form.block)];
        if (id < 0) id = static_cast<std::int32_t>(order[to_size(next++)]);
        slots_.push_back(id * form.block + t % form.block);
      }
    }
    table_ = on_device(table);
    lens_on_device_ = on_device(lens32);
    const bool flat = form.layout == Layout::kNz;
    GatherPaKvCacheArgs args;
    for (int side = 0; side < 2; ++side) {
      const bool present = side < form.sides;
      const std::int64_t bytes = blocks_ * form.block * form.row;
      if (present && !form.host) {
        caches_[side] = on_device(bytes);
        gpu::require(cudaMemcpy(caches_[side].data(), pool_of(side), to_size(bytes), cudaMemcpyDefault),
                     "cudaMemcpy");
      }
      if (present) rows_[side] = on_device(tokens_ * form.row);
      void* cache = form.host ? const_cast<std::byte*>(pool_of(side)) : caches_[side].data();
      (side == 0 ? args.key_cache : args.value_cache) =
          form.cache(present ? cache : nullptr, blocks_, present);
      (side == 0 ? args.key : args.value) = form.rows(rows_[side].data(), tokens_, flat, present);
    }
    args.block_tables =
        on(DeviceType::kCuda, contiguous(table_.data(), DType::kInt32, {std::ssize(lens_), columns}));
    args.seq_lens =
        on(DeviceType::kCuda, contiguous(lens_on_device_.data(), DType::kInt32, {std::ssize(lens_)}));
    args.is_seq_lens_cumsum = false;
    args.cache_mode = form.layout == Layout::kNz ? CacheMode::kPaNz : CacheMode::kNorm;
    Result<Plan> made = plan(args, context_);
    gpu::require(made.status());
    plan_ = made.value();
    workspace_ = on_device(plan_.workspace_bytes());
    buffers_ = buffers(args);
    buffers_.workspace = {workspace_.data(), plan_.workspace_bytes()};
  }

  std::int64_t bytes() const { return tokens_ * form_.row * form_.sides; }
  void operator()() const { gpu::require(run(plan_, buffers_, context_)); }

  std::string verify() const {
    for (int side = 0; side < form_.sides; ++side)
      gpu::require(cudaMemset(rows_[side].data(), 0, to_size(tokens_ * form_.row)), "cudaMemset");
    gpu::require(cudaDeviceSynchronize(), "cudaMemset");  // the stream does not wait for it
    (*this)();
    gpu::require(cudaStreamSynchronize(stream_), "the gather");
    const std::int64_t piece = form_.piece();
    for (int side = 0; side < form_.sides; ++side) {
      const std::vector<std::byte> seen = download(rows_[side].data(), tokens_ * form_.row);
      for (std::int64_t t = 0; t < tokens_; ++t) {
        for (std::int64_t i = 0; i < form_.row / piece; ++i) {
          const std::byte* from = pool_of(side) + form_.place(slots_[to_size(t)], i);
          if (std::memcmp(seen.data() + t * form_.row + i * piece, from, to_size(piece)) != 0)
            return "wrong bytes in token " + std::to_string(t);
        }
      }
    }
    return {};
  }

 private:
  Form form_;
  std::vector<std::int64_t> lens_;
  cudaStream_t stream_;
  Context context_;
  std::int64_t tokens_ = 0, blocks_ = 0;
  std::vector<std::int64_t> slots_;
  Buffer caches_[2], rows_[2], table_, lens_on_device_, workspace_;
  Plan plan_;
  GatherPaKvCacheBuffers buffers_;
};

// Bytes from one place to another, as few as there can be.
class Contiguous {
 public:
  Contiguous(std::int64_t bytes, bool from_host, const Gpu& gpu)
      : stream_(gpu.stream), bytes_(bytes), from_host_(from_host), to_(on_device(bytes)) {
    if (!from_host) from_ = on_device(bytes);
  }
  void operator()() const {
    const std::byte* from = from_host_ ? host_pool().data() : from_.data();
    gpu::require(cudaMemcpyAsync(to_.data(), from, to_size(bytes_), cudaMemcpyDefault, stream_),
                 "cudaMemcpyAsync");
  }

 private:
  cudaStream_t stream_;
  std::int64_t bytes_;
  bool from_host_;
  Buffer from_, to_;
};

// `b` sequences of `len` tokens; skew=1: one of 4993 and seven of 1, beside "balanced", eight of 625.
// per_byte=ROW: also the same with rows of so many bytes.
class GatherProblem final : public Problem {
 public:
  GatherProblem(const Spec& spec, const Gpu& gpu) {
    const Form form = form_of(spec);
    std::vector<std::int64_t> lens(to_size(spec.integer("b", 8)), spec.integer("len", 1024));
    const bool skew = spec.integer("skew", 0) != 0;
    if (skew) {
      lens.assign(8, 1);
      lens[0] = 4993;
    }
    ours_ = std::make_unique<GatherCall>(form, lens, 3, gpu);
    bytes = ours_->bytes();
    if (form.host) missed_bytes = bytes;
    calls = static_cast<int>(spec.integer("calls", 1));
    cold = calls == 1;
    variants.push_back({"kvferry", [this] { (*ours_)(); }, bytes});
    if (skew) {
      other_ = std::make_unique<GatherCall>(form, std::vector<std::int64_t>(8, 625), 3, gpu);
      variants.push_back({"balanced", [this] { (*other_)(); }, other_->bytes()});
    }
    if (const std::int64_t row = spec.integer("per_byte", 0); row != 0) {
      Form other = form;
      other.row = row;
      other_ = std::make_unique<GatherCall>(other, lens, 4, gpu);
      variants.push_back({"row_" + std::to_string(row), [this] { (*other_)(); }, other_->bytes()});
    }
    contiguous_ = std::make_unique<Contiguous>(bytes, form.host, gpu);
    variants.push_back({form.host ? "memcpy_h2d" : "memcpy_d2d", [this] { (*contiguous_)(); }, bytes});
  }
  std::string verify() override {
    std::string wrong = ours_->verify();
    return wrong.empty() && other_ ? other_->verify() : wrong;
  }

 private:
  std::unique_ptr<GatherCall> ours_, other_;
  std::unique_ptr<Contiguous> contiguous_;
};

// `tokens` tokens into random slots.
class ScatterProblem final : public Problem {
 public:
  ScatterProblem(const Spec& spec, const Gpu& gpu)
      : form_(form_of(spec)),
        stream_(gpu.stream),
        context_(gpu.context()),
        tokens_(spec.integer("tokens", 8192)) {
    blocks_ = std::max((std::int64_t{128} << 20) / (form_.block * form_.row), 2 * tokens_ / form_.block + 1);
    if (blocks_ * form_.block * form_.row > kPoolBytes - 128)
      throw SpecError("the cache is larger than the pool");
    bytes = tokens_ * form_.row * form_.sides;
    calls = static_cast<int>(spec.integer("calls", 1));
    cold = calls == 1;
    std::vector<std::int64_t> order = Random(5).permutation(blocks_ * form_.block);
    slots_.assign(order.begin(), order.begin() + tokens_);
    slots_on_device_ = on_device(slots_);
    ScatterPaKvCacheArgs args;
    for (int side = 0; side < form_.sides; ++side) {
      const std::int64_t size = blocks_ * form_.block * form_.row;
      caches_[side] = on_device(size);
      rows_[side] = on_device(tokens_ * form_.row);
      gpu::require(cudaMemcpy(caches_[side].data(), pool_of(side), to_size(size), cudaMemcpyDefault),
                   "cudaMemcpy");
      gpu::require(
          cudaMemcpy(rows_[side].data(), new_rows(side), to_size(tokens_ * form_.row), cudaMemcpyDefault),
          "cudaMemcpy");
    }
    args.key = form_.rows(rows_[0].data(), tokens_, false, true);
    args.key_cache = form_.scatter_cache(caches_[0].data(), blocks_);
    if (form_.sides == 2) {
      args.value = form_.rows(rows_[1].data(), tokens_, false, true);
      args.value_cache = form_.scatter_cache(caches_[1].data(), blocks_);
    }
    args.slot_mapping = on(DeviceType::kCuda, contiguous(slots_on_device_.data(), DType::kInt64, {tokens_}));
    args.cache_mode = form_.layout == Layout::kNz ? CacheMode::kPaNz : CacheMode::kNorm;
    args.scatter_mode = form_.layout == Layout::kHnd ? ScatterMode::kNhsd : ScatterMode::kNone;
    Result<Plan> made = plan(args, context_);
    gpu::require(made.status());
    plan_ = made.value();
    workspace_ = on_device(plan_.workspace_bytes());
    buffers_ = buffers(args);
    buffers_.workspace = {workspace_.data(), plan_.workspace_bytes()};
    variants.push_back({"kvferry", [this] { gpu::require(run(plan_, buffers_, context_)); }, bytes});
    contiguous_ = std::make_unique<Contiguous>(bytes, false, gpu);
    variants.push_back({"memcpy_d2d", [this] { (*contiguous_)(); }, bytes});
  }

  std::string verify() override {
    variants[0].call();
    gpu::require(cudaStreamSynchronize(stream_), "the scatter");
    const std::int64_t piece = form_.piece(), size = blocks_ * form_.block * form_.row;
    for (int side = 0; side < form_.sides; ++side) {
      std::vector<std::byte> expected(pool_of(side), pool_of(side) + size);
      for (std::int64_t t = 0; t < tokens_; ++t) {
        for (std::int64_t i = 0; i < form_.row / piece; ++i)
          std::memcpy(expected.data() + form_.place(slots_[to_size(t)], i),
                      new_rows(side) + t * form_.row + i * piece, to_size(piece));
      }
      if (download(caches_[side].data(), size) != expected) return "wrong bytes in a cache";
    }
    return {};
  }

 private:
  // Not what the cache holds already.
  const std::byte* new_rows(int side) const {
    return host_pool().data() + kPoolBytes - tokens_ * form_.row - std::ptrdiff_t{8} * (side + 1);
  }

  Form form_;
  cudaStream_t stream_;
  Context context_;
  std::int64_t tokens_, blocks_ = 0;
  std::vector<std::int64_t> slots_;
  Buffer caches_[2], rows_[2], slots_on_device_, workspace_;
  std::unique_ptr<Contiguous> contiguous_;
  Plan plan_;
  ScatterPaKvCacheBuffers buffers_;
};

}  // namespace

std::unique_ptr<Problem> make_paged_problem(const Spec& spec, const Gpu& gpu) {
  if (spec.kind() == "gather") return std::make_unique<GatherProblem>(spec, gpu);
  return std::make_unique<ScatterProblem>(spec, gpu);
}

}  // namespace kvferry::bench::gpu
