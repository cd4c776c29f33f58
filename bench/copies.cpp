// SPDX-License-Identifier: Apache-2.0
//
// group_memcpy against a loop of memcpy.
#include <algorithm>
#include <cstring>

#include "bench/problem.hpp"
#include "kvferry/ops/group_memcpy.hpp"

namespace kvferry::bench {
namespace {

// `h` pieces of `w` bytes from random places of a pool to consecutive places, or with to=random from
// consecutive places to random ones. warm=1: always the same places. rotate=1: every call into other rows,
// which are cold then. streaming=both: with the hint and without.
class CopiesProblem : public Problem {
 public:
  explicit CopiesProblem(const Spec& spec)
      : threads_(static_cast<int>(spec.integer("threads", 1))),
        pairs_(spec.integer("h", 4096)),
        width_(spec.integer("w", 1024)),
        scatters_(spec.text("to", "rows") == "random"),
        context_(make_context(threads_, spec.text("streaming", "1") != "0")),
        regular_(make_context(threads_, false)),
        single_(make_context(1, spec.text("streaming", "1") != "0")),
        pool_(shared_pool(std::max(spec.integer("pool", 512 << 20), pairs_ * width_))),
        rows_(shared_pool(std::max<std::int64_t>(256 << 20, pairs_ * width_))) {
    bytes = pairs_ * width_;
    const Places places(pool_.bytes() / width_);
    if (places.count() < pairs_) throw SpecError("the pool has no room for h pieces at random");
    if (spec.integer("warm", 0) == 0) {
      // Until a place comes again, 128 MiB of lines have passed, of large pieces half a GiB.
      const std::int64_t pieces =
          std::min<std::int64_t>(places.count(), std::max<std::int64_t>(pairs_, 2 << 20));
      rounds = pieces / pairs_;
    }
    table_.reserve(to_size(2 * rounds * pairs_));
    const bool rows_rotate = rounds > 1 && (scatters_ || spec.integer("rotate", 0) != 0);
    const std::int64_t row_rounds = rows_rotate ? rows_.bytes() / bytes : 1;
    for (std::int64_t i = 0; i < rounds * pairs_; ++i) {
      std::byte* const random = pool_.data() + places[i] * width_;
      std::byte* const row = rows_.data() + (i / pairs_ % row_rounds * pairs_ + i % pairs_) * width_;
      for (const std::byte* side : {scatters_ ? row : random, scatters_ ? random : row})
        table_.push_back(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(side)));
    }
    GroupMemcpyArgs args;
    args.addr_table = contiguous(table_.data(), DType::kInt64, {pairs_, 2});
    args.copy_bytes = width_;
    args.checked = spec.integer("checked", 0) != 0;
    const auto add_ours = [&](const char* name, const Context& context) {
      Result<Plan> made = kvferry::plan(args, context);
      require(made.status());
      workspace_bytes = made->workspace_bytes();
      workspace_.resize(to_size(workspace_bytes));
      add(name, [this, plan = made.value(), &context](std::int64_t call) {
        GroupMemcpyBuffers b;
        b.addr_table = table(call);
        b.workspace = {workspace_.data(), workspace_bytes};
        require(run(plan, b, context));
      });
    };
    add_ours("kvferry", context_);
    if (spec.text("streaming", "1") == "both") add_ours("kvferry_regular", regular_);
    if (threads_ > 1) add_ours("kvferry_1t", single_);
    add("memcpy", [this](std::int64_t call) {
      const std::int64_t* t = table(call);
      omp_for(pairs_, threads_, [&](std::int64_t p) {
        std::memcpy(reinterpret_cast<void*>(t[2 * p + 1]), reinterpret_cast<const void*>(t[2 * p]),
                    to_size(width_));
      });
    });
    if (!scatters_) contenders.push_back(limit_contender(pool_, rows_.data(), bytes, rounds, threads_));
    verify = [this](const Contender& c) { return c.name == "limit" ? std::string() : check(c); };
  }

 private:
  const std::int64_t* table(std::int64_t call) const { return table_.data() + call % rounds * pairs_ * 2; }
  std::string check(const Contender& contender) {
    const auto place = [&](std::int64_t p, std::int64_t side) {
      return reinterpret_cast<std::byte*>(table(0)[2 * p + side]);
    };
    for (std::int64_t p = 0; p < pairs_; ++p) std::memset(place(p, 1), 0x5a, to_size(width_));
    contender.run(0);
    for (std::int64_t p = 0; p < pairs_; ++p) {
      if (std::memcmp(place(p, 1), place(p, 0), to_size(width_)) != 0)
        return "wrong bytes in pair " + std::to_string(p);
    }
    return {};
  }

  const int threads_;
  const std::int64_t pairs_, width_;
  const bool scatters_;
  const Context context_, regular_, single_;
  const Pool& pool_;
  const Pool& rows_;
  std::vector<std::int64_t> table_;
  std::vector<std::byte> workspace_;
};

}  // namespace

std::unique_ptr<Problem> make_copies_problem(const Spec& spec) {
  return std::make_unique<CopiesProblem>(spec);
}

}  // namespace kvferry::bench
