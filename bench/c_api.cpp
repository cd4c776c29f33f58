// SPDX-License-Identifier: Apache-2.0
//
// The benchmark as the driver sees it, through ctypes. Nothing throws across it: a null handle or a text says
// what is wrong.
#include <chrono>
#include <cstdio>
#include <new>
#include <string>

#include "bench/problem.hpp"
#include "harness/waiting.hpp"

namespace {

using kvferry::bench::Problem;

thread_local std::string last_text;

const char* say(std::string text) {
  last_text = std::move(text);
  return last_text.c_str();
}

Problem* as_problem(void* handle) {
  return static_cast<Problem*>(handle);
}

}  // namespace

extern "C" {

void* kvferry_bench_make(const char* spec) {
  try {
    return kvferry::bench::make_problem(kvferry::bench::Spec(spec)).release();
  } catch (const std::exception& error) {
    say(error.what());
    return nullptr;
  }
}
const char* kvferry_bench_error() {
  return last_text.c_str();
}
void kvferry_bench_free(void* problem) {
  delete as_problem(problem);
}
std::int64_t kvferry_bench_bytes(void* problem) {
  return as_problem(problem)->bytes;
}
std::int64_t kvferry_bench_rounds(void* problem) {
  return as_problem(problem)->rounds;
}
std::int64_t kvferry_bench_workspace(void* problem) {
  return as_problem(problem)->workspace_bytes;
}
// Names of the contenders, one a line.
const char* kvferry_bench_contenders(void* problem) {
  std::string names;
  for (const auto& contender : as_problem(problem)->contenders) names += contender.name + "\n";
  return say(names);
}
// "name dtype address dim dim ...", one a line.
const char* kvferry_bench_arrays(void* problem) {
  std::string text;
  for (const auto& array : as_problem(problem)->arrays) {
    text +=
        array.name + " " + array.dtype + " " + std::to_string(reinterpret_cast<std::uintptr_t>(array.data));
    for (const std::int64_t n : array.shape) text += " " + std::to_string(n);
    text += "\n";
  }
  return say(text);
}
const char* kvferry_bench_verify(void* problem, std::int32_t contender) {
  const Problem& p = *as_problem(problem);
  return say(p.verify ? p.verify(p.contenders[static_cast<std::size_t>(contender)]) : std::string());
}
// Nanoseconds of `calls` calls, the first one being number `first`.
std::int64_t kvferry_bench_run(void* problem, std::int32_t contender, std::int64_t first,
                               std::int64_t calls) {
  const auto& run = as_problem(problem)->contenders[static_cast<std::size_t>(contender)].run;
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < calls; ++i) run(first + i);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start)
      .count();
}
std::int64_t kvferry_bench_waited() {
  return kvferry::harness::nanoseconds_waited();
}

}  // extern "C"
