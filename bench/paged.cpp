// SPDX-License-Identifier: Apache-2.0
//
// gather_pa_kv_cache and scatter_pa_kv_cache against what people write without them.
#include <algorithm>
#include <cstring>

#include "bench/problem.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"
#include "kvferry/ops/scatter_pa_kv_cache.hpp"

namespace kvferry::bench {
namespace {

constexpr std::int64_t kUnit = 32;

// `lens` tokens of sequences in blocks of `bs`, rows of `row` bytes of K and, with v=1, of V. Pools are 512
// MiB and more; each round has blocks of its own. plan=1: only plan().
class PagedProblem : public Problem {
 public:
  explicit PagedProblem(const Spec& spec)
      : threads_(static_cast<int>(spec.integer("threads", 1))),
        nz_(spec.integer("nz", 0) != 0),
        sides_(spec.integer("v", 1) != 0 ? 2 : 1),
        block_(spec.integer("bs", 16)),
        row_(spec.integer("row", 2048)),
        heads_(spec.integer("h", 1)),
        plans_(spec.integer("plan", 0) != 0),
        policy_(spec.integer("reject", 0) != 0 ? IndexPolicy::kReject : IndexPolicy::kDefault),
        context_(make_context(threads_, spec.integer("streaming", 1) != 0)) {
    const std::int64_t sequences = spec.integer("b", 8), length = spec.integer("len", 2048);
    if (spec.text("lens", "equal") == "skewed") {
      lens_.assign(16, 34);
      lens_[0] = spec.integer("longest", 7680);
    } else {
      lens_.assign(to_size(sequences), length);
    }
    for (const std::int64_t n : lens_) {
      tokens_ += n;
      columns_ = std::max(columns_, (n + block_ - 1) / block_);
    }
    bytes = tokens_ * row_ * sides_;
    std::int64_t call_blocks = 0;
    for (const std::int64_t n : lens_) call_blocks += (n + block_ - 1) / block_;
    blocks_ = std::max(call_blocks, spec.integer("pool", 512 << 20) / (block_ * row_ * sides_));
    rounds = std::max<std::int64_t>(1, blocks_ / call_blocks);
    for (int side = 0; side < sides_; ++side) {
      pool_.push_back(std::make_unique<Pool>(blocks_ * block_ * row_));
      rows_.push_back(std::make_unique<Pool>(tokens_ * row_));
    }
    Random random(3);
    std::vector<std::int64_t> order = random.permutation(blocks_);
    if (spec.text("table", "random") == "sequential") std::sort(order.begin(), order.end());
    for (std::int64_t round = 0, next = 0; round < rounds; ++round) {
      for (const std::int64_t n : lens_) {
        for (std::int64_t column = 0; column < columns_; ++column)
          table_.push_back(column * block_ < n ? static_cast<std::int32_t>(order[to_size(next++)]) : -1);
      }
    }
    for (std::int64_t round = 0; round < rounds; ++round) {
      for (std::int64_t b = 0; b < std::ssize(lens_); ++b) {
        for (std::int64_t t = 0; t < lens_[to_size(b)]; ++t)
          slots_.push_back(
              std::int64_t{table_[to_size((round * std::ssize(lens_) + b) * columns_ + t / block_)]} *
                  block_ +
              t % block_);
      }
    }
    if (spec.text("slots", "blocks") == "random") {
      const std::vector<std::int64_t> any = random.permutation(blocks_ * block_);
      std::copy_n(any.begin(), slots_.size(), slots_.begin());
    }
    lens32_.assign(lens_.begin(), lens_.end());
    // Whole blocks, for libraries that index.
    if (call_blocks * block_ == tokens_) {
      for (const std::int32_t id : table_) {
        if (id >= 0) ids_.push_back(id);
      }
      arrays.push_back({"blocks", ids_.data(), "int64", {rounds, call_blocks}});
    }
    arrays.push_back({"slots", slots_.data(), "int64", {rounds, tokens_}});
    for (int side = 0; side < sides_; ++side) {
      const std::string name = side == 0 ? "k" : "v";
      arrays.push_back({name + "_pool", pool(side), "uint8", {blocks_, block_ * row_}});
      arrays.push_back({name + "_rows", rows(side), "uint8", {tokens_, row_}});
    }
    spec.kind() == "gather" ? make_gather() : make_scatter();
  }

 private:
  std::byte* pool(int side) const { return pool_[to_size(side)]->data(); }
  std::byte* rows(int side) const { return rows_[to_size(side)]->data(); }
  const std::int32_t* table(std::int64_t call) const {
    return table_.data() + call % rounds * std::ssize(lens_) * columns_;
  }
  const std::int64_t* slots(std::int64_t call) const { return slots_.data() + call % rounds * tokens_; }

  TensorView pool_view(int side) const {
    return nz_ ? contiguous(pool(side), DType::kUInt8, {blocks_, row_ / kUnit, block_, kUnit})
               : contiguous(pool(side), DType::kUInt8, {blocks_, block_, heads_, row_ / heads_});
  }
  TensorView rows_view(int side, bool flat) const {
    return flat ? contiguous(rows(side), DType::kUInt8, {tokens_, row_})
                : contiguous(rows(side), DType::kUInt8, {tokens_, heads_, row_ / heads_});
  }
  // Unit u of the token in `slot`.
  std::byte* unit(int side, std::int64_t slot, std::int64_t u) const {
    return pool(side) + ((slot / block_ * (row_ / kUnit) + u) * block_ + slot % block_) * kUnit;
  }

  void make_gather() {
    GatherPaKvCacheArgs args;
    args.key_cache = pool_view(0);
    args.key = rows_view(0, nz_);
    args.value_cache = sides_ > 1 ? pool_view(1) : empty_like(args.key_cache);
    args.value = sides_ > 1 ? rows_view(1, nz_) : empty_like(args.key);
    args.block_tables = contiguous(table_.data(), DType::kInt32, {std::ssize(lens_), columns_});
    args.seq_lens = contiguous(lens32_.data(), DType::kInt32, {std::ssize(lens_)});
    args.is_seq_lens_cumsum = false;
    args.cache_mode = nz_ ? CacheMode::kPaNz : CacheMode::kNorm;
    args.index_policy = policy_;
    use(kvferry::plan(args, context_));
    if (plans_)
      return add("kvferry", [this, args](std::int64_t) { require(kvferry::plan(args, context_).status()); });
    add("kvferry", [this, b = buffers(args)](std::int64_t call) mutable {
      b.block_tables = table(call);
      b.workspace = {workspace_->data(), plan_.workspace_bytes()};
      require(run(plan_, b, context_));
    });
    if (nz_) {
      add("units", [this](std::int64_t call) {
        omp_for(tokens_, threads_, [&](std::int64_t t) {
          for (int side = 0; side < sides_; ++side) {
            for (std::int64_t u = 0; u < row_ / kUnit; ++u)
              std::memcpy(rows(side) + t * row_ + u * kUnit, unit(side, slots(call)[t], u), kUnit);
          }
        });
      });
    } else {
      add("tokens", [this](std::int64_t call) {
        for (int side = 0; side < sides_; ++side) {
          omp_for(tokens_, threads_, [&](std::int64_t t) {
            std::memcpy(rows(side) + t * row_, pool(side) + slots(call)[t] * row_, to_size(row_));
          });
        }
      });
      add("blocks", [this](std::int64_t call) { copy_blocks(call); });
      if (threads_ > 1) add("by_sequence", [this](std::int64_t call) { copy_sequences(call); });
    }
    contenders.push_back(limit_contender(*pool_[0], rows(0), tokens_ * row_, rounds, threads_));
    if (sides_ > 1) {
      auto value = limit_contender(*pool_[1], rows(1), tokens_ * row_, rounds, threads_);
      auto key = contenders.back();
      contenders.back().run = [key, value](std::int64_t call) {
        key.run(call);
        value.run(call);
      };
    }
    verify = [this](const Contender& c) { return c.name == "limit" ? std::string() : check_rows(c); };
  }

  void copy_blocks(std::int64_t call) {
    // Blocks of all sequences as one loop.
    for (int side = 0; side < sides_; ++side) {
      omp_for(std::ssize(lens_) * columns_, threads_, [&](std::int64_t i) {
        const std::int64_t b = i / columns_, column = i % columns_;
        const std::int64_t n = std::min(lens_[to_size(b)] - column * block_, block_);
        if (n <= 0) return;
        std::int64_t first = column * block_;
        for (std::int64_t k = 0; k < b; ++k) first += lens_[to_size(k)];
        std::memcpy(rows(side) + first * row_, pool(side) + table(call)[i] * block_ * row_,
                    to_size(n * row_));
      });
    }
  }
  void copy_sequences(std::int64_t call) {
    omp_for(std::ssize(lens_), threads_, [&](std::int64_t b) {
      std::int64_t first = 0;
      for (std::int64_t k = 0; k < b; ++k) first += lens_[to_size(k)];
      for (int side = 0; side < sides_; ++side) {
        for (std::int64_t t = first; t < first + lens_[to_size(b)]; ++t)
          std::memcpy(rows(side) + t * row_, pool(side) + slots(call)[t] * row_, to_size(row_));
      }
    });
  }

  std::string check_rows(const Contender& contender) {
    for (int side = 0; side < sides_; ++side) std::memset(rows(side), 0x5a, to_size(tokens_ * row_));
    contender.run(0);
    for (int side = 0; side < sides_; ++side) {
      for (std::int64_t t = 0; t < tokens_; ++t) {
        const std::int64_t slot = slots(0)[t];
        for (std::int64_t u = 0; u < row_; u += kUnit) {
          const std::byte* from = nz_ ? unit(side, slot, u / kUnit) : pool(side) + slot * row_ + u;
          if (std::memcmp(rows(side) + t * row_ + u, from, to_size(std::min(kUnit, row_ - u))) != 0)
            return "wrong bytes in token " + std::to_string(t);
        }
      }
    }
    return {};
  }

  void make_scatter() {
    // Sources rotate too: the rows of a round start elsewhere.
    source_rounds_ = std::max<std::int64_t>(1, (256 << 20) / (tokens_ * row_));
    for (int side = 0; side < sides_; ++side)
      sources_.push_back(std::make_unique<Pool>(source_rounds_ * tokens_ * row_));
    ScatterPaKvCacheArgs args;
    args.key = rows_view(0, false);
    args.key_cache = pool_view(0);
    if (sides_ > 1) {
      args.value = rows_view(1, false);
      args.value_cache = pool_view(1);
    }
    args.slot_mapping = contiguous(slots_.data(), DType::kInt64, {tokens_});
    args.cache_mode = nz_ ? CacheMode::kPaNz : CacheMode::kNorm;
    args.index_policy = policy_;
    use(kvferry::plan(args, context_));
    if (plans_)
      return add("kvferry", [this, args](std::int64_t) { require(kvferry::plan(args, context_).status()); });
    add("kvferry", [this, b = buffers(args)](std::int64_t call) mutable {
      b.key = source(0, call);
      if (sides_ > 1) b.value = source(1, call);
      b.slot_mapping = slots(call);
      b.workspace = {workspace_->data(), plan_.workspace_bytes()};
      require(run(plan_, b, context_));
    });
    if (nz_) {
      add("units", [this](std::int64_t call) {
        omp_for(tokens_, threads_, [&](std::int64_t t) {
          for (int side = 0; side < sides_; ++side) {
            for (std::int64_t u = 0; u < row_ / kUnit; ++u)
              std::memcpy(unit(side, slots(call)[t], u), source(side, call) + t * row_ + u * kUnit, kUnit);
          }
        });
      });
    } else {
      add("tokens", [this](std::int64_t call) {
        for (int side = 0; side < sides_; ++side) {
          omp_for(tokens_, threads_, [&](std::int64_t t) {
            std::memcpy(pool(side) + slots(call)[t] * row_, source(side, call) + t * row_, to_size(row_));
          });
        }
      });
      // As engines do it on a CPU: for each token, head by head, K and V together.
      add("heads", [this](std::int64_t call) {
        const std::int64_t head = row_ / heads_;
        omp_for(tokens_, threads_, [&](std::int64_t t) {
          const std::int64_t slot = slots(call)[t];
          for (std::int64_t h = 0; h < heads_; ++h) {
            for (int side = 0; side < sides_; ++side) {
              std::memcpy(pool(side) + slot * row_ + h * head, source(side, call) + t * row_ + h * head,
                          to_size(head));
            }
          }
        });
      });
    }
    add("limit", [this](std::int64_t call) {
      const std::int64_t size = tokens_ * row_, places = pool_[0]->bytes() / size;
      for (int side = 0; side < sides_; ++side)
        stream_copy(pool(side) + call % std::min(rounds, places) * size, source(side, call), size, threads_);
    });
    for (int side = 0; side < sides_; ++side) {
      arrays.push_back(
          {side == 0 ? "k_source" : "v_source", source(side, 0), "uint8", {source_rounds_, tokens_, row_}});
    }
    verify = [this](const Contender& c) { return c.name == "limit" ? std::string() : check_pool(c); };
  }
  const std::byte* source(int side, std::int64_t call) const {
    return sources_[to_size(side)]->data() + call % source_rounds_ * tokens_ * row_;
  }
  std::string check_pool(const Contender& contender) {
    for (int side = 0; side < sides_; ++side) {
      for (std::int64_t t = 0; t < tokens_; ++t)
        *(nz_ ? unit(side, slots(0)[t], 0) : pool(side) + slots(0)[t] * row_) ^= std::byte{1};
    }
    contender.run(0);
    for (int side = 0; side < sides_; ++side) {
      for (std::int64_t t = 0; t < tokens_; ++t) {
        for (std::int64_t u = 0; u < row_; u += kUnit) {
          const std::byte* to =
              nz_ ? unit(side, slots(0)[t], u / kUnit) : pool(side) + slots(0)[t] * row_ + u;
          if (std::memcmp(to, source(side, 0) + t * row_ + u, to_size(std::min(kUnit, row_ - u))) != 0)
            return "wrong bytes in token " + std::to_string(t);
        }
      }
    }
    return {};
  }

  // The absent V of models without one.
  TensorView empty_like(TensorView view) const {
    view.shape[nz_ ? 1 : to_size(view.rank - 1)] = 0;
    return view;
  }
  void use(Result<Plan> made) {
    require(made.status());
    plan_ = made.value();
    workspace_bytes = plan_.workspace_bytes();
    workspace_ = std::make_unique<Pool>(std::max<std::int64_t>(64, plan_.workspace_bytes()));
  }

  const int threads_;
  const bool nz_;
  const int sides_;
  const std::int64_t block_, row_, heads_;
  const bool plans_;
  const IndexPolicy policy_;
  const Context context_;
  std::vector<std::int64_t> lens_, slots_, ids_;
  std::vector<std::int32_t> lens32_, table_;
  std::int64_t tokens_ = 0, columns_ = 0, blocks_ = 0, source_rounds_ = 1;
  std::vector<std::unique_ptr<Pool>> pool_, rows_, sources_;
  std::unique_ptr<Pool> workspace_;
  Plan plan_;
};

}  // namespace

std::unique_ptr<Problem> make_paged_problem(const Spec& spec) {
  return std::make_unique<PagedProblem>(spec);
}

}  // namespace kvferry::bench
