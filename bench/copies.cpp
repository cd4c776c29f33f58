// SPDX-License-Identifier: Apache-2.0
//
// group_memcpy against a loop of memcpy.
#include <algorithm>
#include <cstring>

#include "bench/problem.hpp"
#include "kvferry/ops/group_memcpy.hpp"

namespace kvferry::bench {
namespace {

// `h` pieces of `w` bytes from random places of a pool to consecutive places. warm=1: always the same places.
class CopiesProblem : public Problem {
 public:
  explicit CopiesProblem(const Spec& spec)
      : threads_(static_cast<int>(spec.integer("threads", 1))),
        pairs_(spec.integer("h", 4096)),
        width_(spec.integer("w", 1024)),
        context_(make_context(threads_, spec.integer("streaming", 1) != 0)),
        single_(make_context(1, spec.integer("streaming", 1) != 0)),
        pool_(std::max(spec.integer("pool", 512 << 20), pairs_ * width_)),
        dst_(pairs_ * width_) {
    bytes = pairs_ * width_;
    const std::int64_t places = pool_.bytes() / width_;
    rounds = spec.integer("warm", 0) != 0
                 ? 1
                 : std::max<std::int64_t>(1, std::min<std::int64_t>(64, places / pairs_));
    Random random(9);
    const std::vector<std::int64_t> order = random.permutation(places);
    for (std::int64_t i = 0; i < rounds * pairs_; ++i) {
      table_.push_back(static_cast<std::int64_t>(
          reinterpret_cast<std::uintptr_t>(pool_.data() + order[to_size(i)] * width_)));
      table_.push_back(
          static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(dst_.data() + i % pairs_ * width_)));
    }
    GroupMemcpyArgs args;
    args.addr_table = contiguous(table_.data(), DType::kInt64, {pairs_, 2});
    args.copy_bytes = width_;
    for (const auto& [name, context] : {std::pair{"kvferry", &context_}, std::pair{"kvferry_1t", &single_}}) {
      if (context == &single_ && threads_ == 1) continue;
      Result<Plan> made = kvferry::plan(args, *context);
      require(made.status());
      add(name, [this, plan = made.value(), context = context](std::int64_t call) {
        GroupMemcpyBuffers b;
        b.addr_table = table(call);
        require(run(plan, b, *context));
      });
    }
    add("memcpy", [this](std::int64_t call) {
      const std::int64_t* t = table(call);
      omp_for(pairs_, threads_, [&](std::int64_t p) {
        std::memcpy(reinterpret_cast<void*>(t[2 * p + 1]), reinterpret_cast<const void*>(t[2 * p]),
                    to_size(width_));
      });
    });
    contenders.push_back(limit_contender(pool_, dst_.data(), bytes, rounds, threads_));
    verify = [this](const Contender& c) { return c.name == "limit" ? std::string() : check(c); };
  }

 private:
  const std::int64_t* table(std::int64_t call) const { return table_.data() + call % rounds * pairs_ * 2; }
  std::string check(const Contender& contender) {
    std::memset(dst_.data(), 0x5a, to_size(dst_.bytes()));
    contender.run(0);
    for (std::int64_t p = 0; p < pairs_; ++p) {
      const auto* from = reinterpret_cast<const void*>(table(0)[2 * p]);
      if (std::memcmp(dst_.data() + p * width_, from, to_size(width_)) != 0)
        return "wrong bytes in pair " + std::to_string(p);
    }
    return {};
  }

  const int threads_;
  const std::int64_t pairs_, width_;
  const Context context_, single_;
  Pool pool_, dst_;
  std::vector<std::int64_t> table_;
};

}  // namespace

std::unique_ptr<Problem> make_copies_problem(const Spec& spec) {
  return std::make_unique<CopiesProblem>(spec);
}

}  // namespace kvferry::bench
