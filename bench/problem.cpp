// SPDX-License-Identifier: Apache-2.0
#include "bench/problem.hpp"

#include <immintrin.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace kvferry::bench {

Pool::Pool(std::int64_t bytes) {
  Result<HostBuffer> memory = HostBuffer::make(bytes);
  require(memory.status());
  memory_ = std::move(memory).value();
  Random random(static_cast<std::uint64_t>(bytes));
  for (std::int64_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word = random.next();
    std::memcpy(data() + i, &word, 8);
  }
}

const Pool& shared_pool(std::int64_t bytes) {
  static std::map<std::int64_t, Pool> pools;
  return pools.try_emplace(bytes, bytes).first->second;
}

namespace {

__attribute__((target("avx2"))) void stream_part(std::byte* dst, const std::byte* src, std::int64_t bytes) {
  std::int64_t i = 0;
  for (; i + 128 <= bytes; i += 128) {
    for (std::int64_t k = i; k < i + 128; k += 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + k),
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + k)));
    }
  }
  std::memcpy(dst + i, src + i, to_size(bytes - i));
  _mm_sfence();
}

}  // namespace

void stream_copy(std::byte* dst, const std::byte* src, std::int64_t bytes, int threads) {
  const std::int64_t part = (bytes / threads + 4095) / 4096 * 4096;
  omp_for(threads, threads, [&](std::int64_t i) {
    const std::int64_t begin = std::min(bytes, i * part), end = std::min(bytes, begin + part);
    stream_part(dst + begin, src + begin, end - begin);
  });
}

Contender limit_contender(const Pool& pool, std::byte* dst, std::int64_t bytes, std::int64_t rounds,
                          int threads) {
  const std::int64_t places = std::max<std::int64_t>(1, pool.bytes() / bytes);
  return {"limit", [&pool, dst, bytes, rounds, threads, places](std::int64_t call) {
            stream_copy(dst, pool.data() + call % rounds % places * bytes, bytes, threads);
          }};
}

void require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::abort();
}

Context make_context(int threads, bool streaming, const std::string& implementation) {
  ContextOptions options;
  options.threads = threads;
  options.streaming = streaming;
  options.implementation = implementation;
  return Context(options);
}

std::unique_ptr<Problem> make_problem(const Spec& spec) {
  const std::string& kind = spec.kind();
  if (kind == "gather" || kind == "scatter") return make_paged_problem(spec);
  if (kind.starts_with("selection")) return make_selection_problem(spec);
  if (kind == "copies") return make_copies_problem(spec);
  if (kind == "host") return make_host_cost_problem(spec);
  if (kind == "call") return make_call_problem(spec);
  throw SpecError("no problem '" + kind + "'");
}

}  // namespace kvferry::bench
