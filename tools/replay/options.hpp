// SPDX-License-Identifier: Apache-2.0
//
// What a replay is asked to do, and how that is written on a command line.
#pragma once

#include <cstdint>
#include <string>

#include "kvferry/status.hpp"
#include "tools/replay/mover.hpp"

namespace kvferry::replay {

// The options as typed; empty: not given. Their defaults are those of Options.
struct OptionTexts {
  std::string model, tp, layers, block;
  std::string device_tokens, host_tokens, device_bytes, host_bytes;
  std::string max_running, chunk, trace, requests, seed, speed, step_ms;
  std::string verify, threads, json, html, impl, link_gbps;
  std::string select, overlap, topk;
};

// The defaults are the demo: on two cores under a minute, with pools so small that
// evictions, fetches and drops happen.
struct Options {
  std::string model = "llama-3.1-8b";
  int tp = 8;
  int layers = 2;
  std::int64_t block = 16;  // tokens of a page
  std::int64_t device_tokens = 512 << 10;
  std::int64_t host_tokens = 1 << 20;
  std::int64_t max_running = 64;
  std::int64_t chunk = 2048;
  std::string trace;          // a file; empty: the built-in generator
  std::int64_t requests = 0;  // the first ones; 0: all of a file, 300 of the generator
  std::uint64_t seed = 1;     // of the generator and of the choice of verified calls
  double speed = 0;           // 0: no clock
  double step_ms = 50;
  VerifyShare verify;
  int threads = 0;                           // 0: what the context decides
  std::string json = "kvferry-report.json";  // empty: none
  std::string html = "kvferry-report.html";  // empty: none
  std::string implementation;
  // Decode with sparse attention on K tokens: the pool of host_tokens, selection caches on the device.
  std::int64_t select = 0;  // K; 0: off
  double overlap = 58.85;   // % of the ids of a step that the next one selects again
  std::string topk;         // a file of ids; empty: the locality model
  double link_gbps = 0;     // GB/s; 0: no modelled column

  // The pool that requests run in, and the one behind it.
  std::int64_t pool_tokens() const { return select > 0 ? host_tokens : device_tokens; }
  std::int64_t second_pool_tokens() const { return select > 0 ? 0 : host_tokens; }

  // Tests only.
  std::optional<Fault> fault;
  bool measure_limit = true;
};

inline constexpr std::int64_t kGeneratedRequests = 300;
inline constexpr std::int64_t kMostSelected = 1 << 20;
// Tokens of a pool: keeps addresses far inside int64 and, whatever the page size, page numbers inside int32.
inline constexpr std::int64_t kMaxPoolTokens = INT32_MAX;

// Every error names the option, what was typed and what is allowed.
Result<Options> parse_options(const OptionTexts& texts);

}  // namespace kvferry::replay
