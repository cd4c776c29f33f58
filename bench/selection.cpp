// SPDX-License-Identifier: Apache-2.0
//
// gather_selection_kv_cache: rows fetched cold, a decode step with re-use, planning alone.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "bench/problem.hpp"
#include "kvferry/ops/gather_selection_kv_cache.hpp"

namespace kvferry::bench {
namespace {

constexpr std::int64_t kPage = 128;

// The selection that people write first: each new id against all old ones, eight at a time.
__attribute__((target("avx2"))) std::int32_t find_avx2(const std::int32_t* ids, std::int64_t n,
                                                       std::int32_t id) {
  const __m256i wanted = _mm256_set1_epi32(id);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i equal =
        _mm256_cmpeq_epi32(wanted, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids + i)));
    const int mask = _mm256_movemask_ps(_mm256_castsi256_ps(equal));
    if (mask != 0) return static_cast<std::int32_t>(i + __builtin_ctz(static_cast<unsigned>(mask)));
  }
  for (; i < n; ++i) {
    if (ids[i] == id) return static_cast<std::int32_t>(i);
  }
  return -1;
}

__attribute__((optimize("no-tree-vectorize"))) std::int32_t find_scalar(const std::int32_t* ids,
                                                                        std::int64_t n, std::int32_t id) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (ids[i] == id) return static_cast<std::int32_t>(i);
  }
  return -1;
}

class SelectionProblem : public Problem {
 public:
  explicit SelectionProblem(const Spec& spec)
      : threads_(static_cast<int>(spec.integer("threads", 1))),
        batch_(spec.integer("b", 1)),
        k_(spec.integer("k", 2048)),
        kd_(spec.integer("kd", 1024)),
        rd_(spec.integer("rd", 128)),
        overlap_(spec.integer("overlap", 0)),
        states_(spec.integer("states", 1)),
        length_(spec.integer("kv", 64 << 10)),
        planning_(spec.kind() == "selection_plan"),
        kv_pool_(pool_tokens(spec) * kd_),
        rope_pool_(std::max<std::int64_t>(1, pool_tokens(spec) * rd_)),
        context_(make_context(threads_, spec.integer("streaming", 1) != 0)) {
    rounds = spec.integer("rounds", std::max<std::int64_t>(16, (512 << 20) / (batch_ * k_ * (kd_ + rd_))));
    bytes = planning_ ? batch_ * k_ * 4 : batch_ * k_ * (kd_ + rd_);
    pages_ = kv_pool_.bytes() / kd_ / kPage;
    Random random(5);
    make_tables(random);
    make_topk(random);
    const std::int64_t rows = states_ * batch_;
    const std::int64_t row_pages = (k_ + kPage - 1) / kPage;
    selection_kv_ = std::make_unique<Pool>(2 * batch_ * row_pages * kPage * kd_);
    selection_rope_ = std::make_unique<Pool>(2 * std::max<std::int64_t>(1, batch_ * row_pages * kPage * rd_));
    table_.resize(to_size(batch_ * row_pages));
    for (std::size_t i = 0; i < table_.size(); ++i) table_[i] = static_cast<std::int32_t>(i);
    status_.assign(to_size(rows * (k_ + 1)), -1);
    own_status_.assign(to_size(states_ * batch_ * k_), -1);
    taken_.resize(to_size(k_));
    actual_.resize(to_size(batch_));
    length_of_batch_.assign(to_size(batch_), static_cast<std::int32_t>(length_));
    make_plan();

    if (planning_) {
      add("kvferry", [this](std::int64_t call) { require(schedule(plan_, buffers_for(call), context_)); });
      add("scalar_k2", [this](std::int64_t call) { compare_all<find_scalar>(call, false); });
      add("vector_k2", [this](std::int64_t call) { compare_all<find_avx2>(call, false); });
      arrays.push_back({"topk", topk_.data(), "int32", {rounds, batch_ * k_}});
    } else {
      add("kvferry", [this](std::int64_t call) {
        if (overlap_ == 0) reset(call);
        require(run(plan_, buffers_for(call), context_));
      });
      add("fetch_all", [this](std::int64_t call) { fetch_all(call); });
      if (overlap_ > 0) add("vector_k2", [this](std::int64_t call) { compare_all<find_avx2>(call, true); });
      contenders.push_back(
          limit_contender(kv_pool_, selection_kv_->data(), batch_ * k_ * (kd_ + rd_), rounds, threads_));
      make_rows();
    }
    verify = [this](const Contender& contender) { return check(contender); };
  }

 private:
  std::int64_t pool_tokens(const Spec& spec) const {
    return planning_ ? kPage : std::max(batch_ * length_, spec.integer("pool", 512 << 10)) / kPage * kPage;
  }

  void make_tables(Random& random) {
    // Every batch has its pages, in random order.
    const std::int64_t columns = length_ / kPage;
    std::vector<std::int64_t> order = random.permutation(pages_);
    for (std::int64_t i = 0; i < batch_ * columns; ++i)
      full_table_.push_back(static_cast<std::int32_t>(order[to_size(i % pages_)]));
  }

  // A chain of steps for each batch: `overlap_` percent of the ids stay. The newest token is never selected,
  // so that re-use is what was asked for.
  void make_topk(Random& random) {
    topk_.resize(to_size(rounds * batch_ * k_));
    for (std::int64_t b = 0; b < batch_; ++b) {
      std::vector<std::int64_t> order = random.permutation(length_ - 1);
      const std::int64_t kept = k_ * overlap_ / 100;
      std::int64_t next = k_;
      std::vector<std::int64_t> now(order.begin(), order.begin() + k_);
      for (std::int64_t step = 0; step < rounds; ++step) {
        if (step > 0) {
          for (std::int64_t i = k_; i > 1; --i) std::swap(now[to_size(i - 1)], now[to_size(random.below(i))]);
          // The others come from behind in a long cycle: none of them was selected lately.
          for (std::int64_t i = kept; i < k_; ++i) now[to_size(i)] = order[to_size(next++ % (length_ - 1))];
          std::sort(now.begin(), now.end());
          now.erase(std::unique(now.begin(), now.end()), now.end());
          while (std::ssize(now) < k_) now.push_back(order[to_size(next++ % (length_ - 1))]);
          for (std::int64_t i = k_; i > 1; --i) std::swap(now[to_size(i - 1)], now[to_size(random.below(i))]);
        }
        for (std::int64_t i = 0; i < k_; ++i)
          topk_[to_size((step * batch_ + b) * k_ + i)] = static_cast<std::int32_t>(now[to_size(i)]);
      }
    }
  }

  // The same rows as numbers of the pool's rows, for libraries that index.
  void make_rows() {
    rows_.resize(topk_.size());
    for (std::int64_t i = 0; i < std::ssize(topk_); ++i)
      rows_[to_size(i)] = pool_row(i / k_ % batch_, topk_[to_size(i)]);
    arrays.push_back({"kv", kv_pool_.data(), "uint8", {kv_pool_.bytes() / kd_, kd_}});
    arrays.push_back({"rope", rope_pool_.data(), "uint8", {rd_ > 0 ? rope_pool_.bytes() / rd_ : 0, rd_}});
    arrays.push_back({"rows", rows_.data(), "int64", {rounds, batch_ * k_}});
    arrays.push_back({"kv_out", selection_kv_->data(), "uint8", {batch_ * k_, kd_}});
    arrays.push_back({"rope_out", selection_rope_->data(), "uint8", {batch_ * k_, rd_}});
  }

  void make_plan() {
    GatherSelectionKvCacheArgs args;
    const std::int64_t row_pages = std::ssize(table_) / batch_;
    args.selection_kv_cache =
        contiguous(selection_kv_->data(), DType::kUInt8, {batch_ * row_pages, kPage, kd_});
    args.full_kv_cache = contiguous(kv_pool_.data(), DType::kUInt8, {pages_, kPage, kd_});
    if (rd_ > 0) {
      args.selection_k_rope =
          contiguous(selection_rope_->data(), DType::kUInt8, {batch_ * row_pages, kPage, rd_});
      args.full_k_rope = contiguous(rope_pool_.data(), DType::kUInt8, {pages_, kPage, rd_});
    }
    args.selection_kv_block_table = contiguous(table_.data(), DType::kInt32, {batch_, row_pages});
    args.selection_kv_block_status = contiguous(status_.data(), DType::kInt32, {batch_, 1, 1, k_ + 1});
    args.selection_topk_indices = contiguous(topk_.data(), DType::kInt32, {batch_, 1, 1, k_});
    args.full_kv_block_table = contiguous(full_table_.data(), DType::kInt32, {batch_, length_ / kPage});
    args.full_kv_actual_seq = contiguous(length_of_batch_.data(), DType::kInt32, {batch_});
    args.selection_kv_actual_seq = contiguous(actual_.data(), DType::kInt32, {batch_});
    args.q_len_mode = QLenMode::kAllRows;
    args.selection_topk_block_size = 1;
    Result<Plan> made = kvferry::plan(args, context_);
    require(made.status());
    plan_ = made.value();
    workspace_bytes = plan_.workspace_bytes();
    buffers_ = buffers(args);
    workspace_ = std::make_unique<Pool>(plan_.workspace_bytes());
    buffers_.workspace = {workspace_->data(), plan_.workspace_bytes()};
  }

  const std::int32_t* topk(std::int64_t call) const {
    return topk_.data() + call / states_ % rounds * batch_ * k_;
  }
  std::int32_t* status(std::int64_t call) { return status_.data() + call % states_ * batch_ * (k_ + 1); }
  GatherSelectionKvCacheBuffers buffers_for(std::int64_t call) {
    buffers_.selection_topk_indices = topk(call);
    buffers_.selection_kv_block_status = status(call);
    return buffers_;
  }
  void reset(std::int64_t call) {
    for (std::int64_t b = 0; b < batch_; ++b) status(call)[b * (k_ + 1) + k_] = 0;
  }

  std::int64_t pool_row(std::int64_t batch, std::int64_t id) const {
    return full_table_[to_size(batch * (length_ / kPage) + id / kPage)] * kPage + id % kPage;
  }
  void fetch(std::int64_t batch, std::int64_t slot, std::int64_t id) {
    const std::int64_t from = pool_row(batch, id), to = batch * k_ + slot;
    std::memcpy(selection_kv_->data() + to * kd_, kv_pool_.data() + from * kd_, to_size(kd_));
    if (rd_ > 0)
      std::memcpy(selection_rope_->data() + to * rd_, rope_pool_.data() + from * rd_, to_size(rd_));
  }
  void fetch_all(std::int64_t call) {
    const std::int32_t* ids = topk(call);
    omp_for(batch_ * k_, threads_, [&](std::int64_t i) { fetch(i / k_, i % k_, ids[i]); });
  }

  // Which ids stay and which slots are free, by comparing all with all; the rest is fetched.
  template <std::int32_t (*kFind)(const std::int32_t*, std::int64_t, std::int32_t)>
  void compare_all(std::int64_t call, bool fetches) {
    const std::int32_t* ids = topk(call);
    std::int32_t* old = own_status_.data() + call % states_ * batch_ * k_;
    for (std::int64_t b = 0; b < batch_; ++b, ids += k_, old += k_) {
      std::fill(taken_.begin(), taken_.end(), 0);
      missing_.clear();
      for (std::int64_t i = 0; i < k_; ++i) {
        const std::int32_t slot = kFind(old, k_, ids[i]);
        if (slot < 0) {
          missing_.push_back(ids[i]);
        } else {
          taken_[to_size(slot)] = 1;
        }
      }
      std::int64_t free = 0;
      for (const std::int32_t id : missing_) {
        while (taken_[to_size(free)] != 0) ++free;
        taken_[to_size(free)] = 1;
        old[free] = id;
        if (fetches) fetch(b, free, id);
      }
    }
  }

  // Slots against the full cache, whatever their order.
  std::string check(const Contender& contender) {
    if (contender.name != "kvferry" || planning_) return {};
    contender.run(0);
    const std::int32_t* row = status(0);
    for (std::int64_t b = 0; b < batch_; ++b, row += k_ + 1) {
      if (actual_[to_size(b)] != k_) return "a row has not K tokens";
      for (std::int64_t p = 0; p < k_; ++p) {
        const std::int64_t from = pool_row(b, row[p]), to = b * ((k_ + kPage - 1) / kPage) * kPage + p;
        if (std::memcmp(selection_kv_->data() + to * kd_, kv_pool_.data() + from * kd_, to_size(kd_)) != 0 ||
            (rd_ > 0 && std::memcmp(selection_rope_->data() + to * rd_, rope_pool_.data() + from * rd_,
                                    to_size(rd_)) != 0)) {
          return "wrong bytes in slot " + std::to_string(p);
        }
      }
    }
    return {};
  }

  const int threads_;
  const std::int64_t batch_, k_, kd_, rd_, overlap_, states_, length_;
  const bool planning_;
  Pool kv_pool_, rope_pool_;
  const Context context_;
  std::int64_t pages_ = 0;
  std::unique_ptr<Pool> selection_kv_, selection_rope_, workspace_;
  std::vector<std::int32_t> topk_, table_, full_table_, status_, actual_, length_of_batch_, own_status_,
      missing_;
  std::vector<std::uint8_t> taken_;
  std::vector<std::int64_t> rows_;
  Plan plan_;
  GatherSelectionKvCacheBuffers buffers_;
};

}  // namespace

std::unique_ptr<Problem> make_selection_problem(const Spec& spec) {
  return std::make_unique<SelectionProblem>(spec);
}

}  // namespace kvferry::bench
