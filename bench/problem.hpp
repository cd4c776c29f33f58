// SPDX-License-Identifier: Apache-2.0
//
// What the benchmark measures: problems, and the contenders that solve them on the same memory. The driver
// (run.py) times the contenders of a problem in turns; those in NumPy and PyTorch are its own, over the same
// arrays.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/spec.hpp"
#include "kvferry/context.hpp"
#include "kvferry/memory.hpp"
#include "kvferry/plan.hpp"

namespace kvferry::bench {

// Filled with random bytes.
class Pool {
 public:
  explicit Pool(std::int64_t bytes);
  std::byte* data() const { return memory_.data(); }
  std::int64_t bytes() const { return memory_.bytes(); }

 private:
  HostBuffer memory_;
};

// One for each size, kept for the problems that follow: filling one takes longer than most measurements.
const Pool& shared_pool(std::int64_t bytes);

struct Contender {
  std::string name;
  // Call number `call` of this contender, from 0: problems rotate over `Problem::rounds` inputs, so that
  // sources are cold.
  std::function<void(std::int64_t call)> run;
};

// Memory that the driver may see as an array.
struct Array {
  std::string name;
  const void* data;
  std::string dtype;  // NumPy's name
  std::vector<std::int64_t> shape;
};

struct Problem {
  virtual ~Problem() = default;
  std::int64_t bytes = 0;  // payload of a call, counted once
  std::int64_t rounds = 1;
  std::int64_t workspace_bytes = 0;  // of the plan
  std::vector<Contender> contenders;
  std::vector<Array> arrays;
  // Empty, or what is wrong with the result of call 0 of this contender. Runs it.
  std::function<std::string(const Contender&)> verify;

 protected:
  void add(std::string name, std::function<void(std::int64_t)> run) {
    contenders.push_back({std::move(name), std::move(run)});
  }
};

std::unique_ptr<Problem> make_problem(const Spec& spec);  // throws SpecError
std::unique_ptr<Problem> make_paged_problem(const Spec& spec);
std::unique_ptr<Problem> make_selection_problem(const Spec& spec);
std::unique_ptr<Problem> make_copies_problem(const Spec& spec);
std::unique_ptr<Problem> make_host_cost_problem(const Spec& spec);
std::unique_ptr<Problem> make_call_problem(const Spec& spec);

// What every problem measures itself against: non-temporal stores, contiguous to contiguous.
void stream_copy(std::byte* dst, const std::byte* src, std::int64_t bytes, int threads);

// body(i) for i in [0, count), split evenly over OpenMP threads: what an engine would write.
template <class Body>
void omp_for(std::int64_t count, int threads, Body body) {
  if (threads == 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

// Adds "limit": the best contiguous copy of the same bytes out of `pool`, cold.
Contender limit_contender(const Pool& pool, std::byte* dst, std::int64_t bytes, std::int64_t rounds,
                          int threads);

// A random place for each i in [0, count()), no two alike, without a list of them.
class Places {
 public:
  explicit Places(std::int64_t most)
      : bits_(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(most))) - 1) {}
  std::int64_t count() const { return std::int64_t{1} << bits_; }  // the power of two in `most`
  std::int64_t operator[](std::int64_t i) const {
    const std::uint64_t mask = (std::uint64_t{1} << bits_) - 1;
    auto x = static_cast<std::uint64_t>(i);
    for (int round = 0; round < 3; ++round) {
      x = x * 0x9e3779b97f4a7c15U & mask;
      x ^= x >> (bits_ / 2 + 1);
    }
    return static_cast<std::int64_t>(x);
  }

 private:
  int bits_;
};

// The library's calls must not fail while they are timed.
void require(const Status& status);
Context make_context(int threads, bool streaming, const std::string& implementation = {});

}  // namespace kvferry::bench
