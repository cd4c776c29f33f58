// SPDX-License-Identifier: Apache-2.0
//
// gather_selection_kv_cache on a GPU, the full cache in memory of the host.
#include <algorithm>
#include <cstring>

#include "bench/cuda/problem.hpp"
#include "kvferry/ops/gather_selection_kv_cache.hpp"

namespace kvferry::bench::gpu {
namespace {

constexpr std::int64_t kPage = 128;

// One row of `k` ids out of `kv` tokens of kd + rd bytes. Calls take turns between two sets of ids that share
// `overlap` percent, so that each call misses the rest.
class SelectionProblem final : public Problem {
 public:
  SelectionProblem(const Spec& spec, const Gpu& gpu)
      : stream_(gpu.stream),
        context_(gpu.context()),
        k_(spec.integer("k", 2048)),
        length_(spec.integer("kv", 64 << 10)),
        kd_(spec.integer("kd", 1024)),
        rd_(spec.integer("rd", 128)) {
    const std::int64_t columns = length_ / kPage, row_pages = (k_ + kPage - 1) / kPage;
    const std::int64_t misses = k_ - k_ * spec.integer("overlap", 0) / 100;
    bytes = k_ * (kd_ + rd_);
    missed_bytes = misses * (kd_ + rd_);
    calls = static_cast<int>(spec.integer("calls", 4));
    cold = false;
    rope_at_ = length_ * kd_;
    if (rope_at_ + length_ * rd_ > kPoolBytes) throw SpecError("more tokens than the pool has");

    Random random(17);
    const std::vector<std::int64_t> pages = random.permutation(columns),
                                    ids = random.permutation(length_ - 1);
    if (k_ + misses > length_ - 1) throw SpecError("too few tokens for two sets of ids");
    full_table_.assign(pages.begin(), pages.end());
    for (std::int64_t set = 0; set < 2; ++set) {
      sets_[set].assign(ids.begin() + set * misses, ids.begin() + set * misses + k_);
      for (std::int64_t i = k_; i > 1; --i)
        std::swap(sets_[set][to_size(i - 1)], sets_[set][to_size(random.below(i))]);
      topk_[set] = on_device(sets_[set]);
    }
    std::vector<std::int32_t> table(to_size(row_pages));
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(table.size() - 1 - i);
    table_ = on_device(table);
    tables_on_device_ = on_device(full_table_);
    status_ = on_device(std::vector<std::int32_t>(to_size(k_ + 1), -1));
    lengths_ = on_device(std::vector<std::int32_t>{static_cast<std::int32_t>(length_)});
    actual_ = on_device(std::vector<std::int32_t>{0});
    kv_ = on_device(row_pages * kPage * kd_);
    rope_ = on_device(row_pages * kPage * rd_);

    const auto gpu_view = [](const Buffer& buffer, DType dtype, std::initializer_list<std::int64_t> shape) {
      return on(DeviceType::kCuda, contiguous(buffer.data(), dtype, shape));
    };
    GatherSelectionKvCacheArgs args;
    args.selection_kv_cache = gpu_view(kv_, DType::kUInt8, {row_pages, kPage, kd_});
    args.full_kv_cache =
        on(DeviceType::kCudaHost, contiguous(host_pool().data(), DType::kUInt8, {columns, kPage, kd_}));
    if (rd_ > 0) {
      args.selection_k_rope = gpu_view(rope_, DType::kUInt8, {row_pages, kPage, rd_});
      args.full_k_rope = on(DeviceType::kCudaHost,
                            contiguous(host_pool().data() + rope_at_, DType::kUInt8, {columns, kPage, rd_}));
    }
    args.selection_kv_block_table = gpu_view(table_, DType::kInt32, {1, row_pages});
    args.selection_kv_block_status = gpu_view(status_, DType::kInt32, {1, 1, 1, k_ + 1});
    args.selection_topk_indices = gpu_view(topk_[0], DType::kInt32, {1, 1, 1, k_});
    args.full_kv_block_table = gpu_view(tables_on_device_, DType::kInt32, {1, columns});
    args.full_kv_actual_seq = gpu_view(lengths_, DType::kInt32, {1});
    args.selection_kv_actual_seq = gpu_view(actual_, DType::kInt32, {1});
    args.q_len_mode = QLenMode::kAllRows;
    args.selection_topk_block_size = 1;
    Result<Plan> made = kvferry::plan(args, context_);
    gpu::require(made.status());
    plan_ = made.value();
    workspace_ = on_device(plan_.workspace_bytes());
    buffers_ = buffers(args);
    buffers_.workspace = {workspace_.data(), plan_.workspace_bytes()};
    variants.push_back({"kvferry", [this] { gpu::require(run(plan_, next(), context_)); }, bytes});
    variants.push_back({"schedule", [this] { gpu::require(schedule(plan_, next(), context_)); }, 0});
  }

  // Two steps from a cold row; then what is cached against the full cache, whatever the order of slots.
  std::string verify() override {
    gpu::require(cudaMemset(status_.data(), 0xff, to_size((k_ + 1) * 4)), "cudaMemset");
    gpu::require(cudaDeviceSynchronize(), "cudaMemset");
    variants[0].call();
    variants[0].call();
    gpu::require(cudaStreamSynchronize(stream_), "the selection");
    std::vector<std::int32_t> wanted = sets_[(step_ + 1) % 2], seen(to_size(k_ + 1));
    const std::vector<std::byte> status = download(status_.data(), (k_ + 1) * 4);
    std::memcpy(seen.data(), status.data(), status.size());
    if (seen.back() != k_) return "the row has " + std::to_string(seen.back()) + " tokens";
    seen.pop_back();
    const std::vector<std::byte> kv = download(kv_.data(), kv_.bytes()),
                                 rope = download(rope_.data(), rope_.bytes());
    const std::int64_t row_pages = (k_ + kPage - 1) / kPage;
    for (std::int64_t p = 0; p < k_; ++p) {
      const std::int64_t id = seen[to_size(p)];
      if (id < 0 || id >= length_) return "slot " + std::to_string(p) + " has no id";
      const std::int64_t from = full_table_[to_size(id / kPage)] * kPage + id % kPage;
      const std::int64_t to = (row_pages - 1 - p / kPage) * kPage + p % kPage;
      if (std::memcmp(kv.data() + to * kd_, host_pool().data() + from * kd_, to_size(kd_)) != 0 ||
          std::memcmp(rope.data() + to * rd_, host_pool().data() + rope_at_ + from * rd_, to_size(rd_)) != 0)
        return "wrong bytes in slot " + std::to_string(p);
    }
    std::sort(seen.begin(), seen.end());
    std::sort(wanted.begin(), wanted.end());
    return seen == wanted ? "" : "other ids than were selected";
  }

 private:
  const GatherSelectionKvCacheBuffers& next() {
    buffers_.selection_topk_indices = topk_[step_++ % 2].data();
    return buffers_;
  }

  cudaStream_t stream_;
  Context context_;
  std::int64_t k_, length_, kd_, rd_, rope_at_ = 0;
  std::size_t step_ = 0;
  std::vector<std::int32_t> sets_[2], full_table_;
  Buffer topk_[2], table_, tables_on_device_, status_, lengths_, actual_, kv_, rope_, workspace_;
  Plan plan_;
  GatherSelectionKvCacheBuffers buffers_;
};

}  // namespace

std::unique_ptr<Problem> make_selection_problem(const Spec& spec, const Gpu& gpu) {
  return std::make_unique<SelectionProblem>(spec, gpu);
}

}  // namespace kvferry::bench::gpu
