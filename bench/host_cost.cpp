// SPDX-License-Identifier: Apache-2.0
//
// What a call costs before any byte moves: plan(), and run() of a small gather beside the bare loop.
#include <cstring>

#include "bench/problem.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"
#include "kvferry/ops/gather_selection_kv_cache.hpp"
#include "kvferry/ops/group_memcpy.hpp"
#include "kvferry/ops/scatter_pa_kv_cache.hpp"

namespace kvferry::bench {
namespace {

// One sequence of `tokens` rows of 2 KiB in blocks of 16, K and V.
class HostCostProblem : public Problem {
 public:
  explicit HostCostProblem(const Spec& spec)
      : tokens_(spec.integer("tokens", 16)),
        context_(make_context(static_cast<int>(spec.integer("threads", 2)), false)),
        k_pool_(64 * kBlock * kRow),
        v_pool_(64 * kBlock * kRow),
        k_(tokens_ * kRow),
        v_(tokens_ * kRow) {
    bytes = 2 * tokens_ * kRow;
    for (std::int32_t i = 0; i < 64; ++i) table_.push_back((i * 29 + 3) % 64);
    length_ = {static_cast<std::int32_t>(tokens_)};
    make_args();
    const std::string what = spec.text("what", "run");
    if (what == "plan_gather") {
      add("kvferry", [this](std::int64_t) { require(kvferry::plan(gather_, context_).status()); });
    } else if (what == "plan_scatter") {
      add("kvferry", [this](std::int64_t) { require(kvferry::plan(scatter_, context_).status()); });
    } else if (what == "plan_copies") {
      add("kvferry", [this](std::int64_t) { require(kvferry::plan(copies_, context_).status()); });
    } else if (what == "run") {
      Result<Plan> made = kvferry::plan(gather_, context_);
      require(made.status());
      workspace_.resize(to_size(made->workspace_bytes()));
      auto b = buffers(gather_);
      b.workspace = {workspace_.data(), std::ssize(workspace_)};
      add("kvferry", [this, plan = made.value(), b](std::int64_t) { require(run(plan, b, context_)); });
      add("bare", [this](std::int64_t) {
        for (std::int64_t t = 0; t < tokens_; t += kBlock) {
          const std::int64_t n = std::min(kBlock, tokens_ - t);
          const std::int64_t from = table_[to_size(t / kBlock)] * kBlock * kRow;
          std::memcpy(k_.data() + t * kRow, k_pool_.data() + from, to_size(n * kRow));
          std::memcpy(v_.data() + t * kRow, v_pool_.data() + from, to_size(n * kRow));
        }
      });
    } else {
      throw SpecError("what=" + what + " is none of run, plan_gather, plan_scatter, plan_copies");
    }
  }

 private:
  static constexpr std::int64_t kBlock = 16, kRow = 2048;

  void make_args() {
    gather_.key_cache = contiguous(k_pool_.data(), DType::kFloat16, {64, kBlock, 8, 128});
    gather_.value_cache = contiguous(v_pool_.data(), DType::kFloat16, {64, kBlock, 8, 128});
    gather_.key = contiguous(k_.data(), DType::kFloat16, {tokens_, 8, 128});
    gather_.value = contiguous(v_.data(), DType::kFloat16, {tokens_, 8, 128});
    gather_.block_tables = contiguous(table_.data(), DType::kInt32, {1, 64});
    gather_.seq_lens = contiguous(length_.data(), DType::kInt32, {1});
    gather_.is_seq_lens_cumsum = false;
    scatter_.key = gather_.key;
    scatter_.value = gather_.value;
    scatter_.key_cache = gather_.key_cache;
    scatter_.value_cache = gather_.value_cache;
    for (std::int64_t t = 0; t < tokens_; ++t) slots_.push_back(t);
    scatter_.slot_mapping = contiguous(slots_.data(), DType::kInt64, {tokens_});
    pairs_.resize(64);
    copies_.addr_table = contiguous(pairs_.data(), DType::kInt64, {32, 2});
    copies_.copy_bytes = 1024;
  }

  const std::int64_t tokens_;
  const Context context_;
  Pool k_pool_, v_pool_, k_, v_;
  std::vector<std::int32_t> table_, length_;
  std::vector<std::int64_t> slots_, pairs_;
  std::vector<std::byte> workspace_;
  GatherPaKvCacheArgs gather_;
  ScatterPaKvCacheArgs scatter_;
  GroupMemcpyArgs copies_;
};

}  // namespace

std::unique_ptr<Problem> make_host_cost_problem(const Spec& spec) {
  return std::make_unique<HostCostProblem>(spec);
}

}  // namespace kvferry::bench
