// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <vector>

#include "tools/replay/generator.hpp"
#include "tools/replay/models.hpp"
#include "tools/replay/replay_testing.hpp"
#include "tools/replay/scheduler.hpp"
#include "tools/replay/trace.hpp"

namespace kvferry::replay {
namespace {

TEST(ReplayModels, BytesPerTokenAndLayer) {
  const std::vector<std::pair<const char*, std::int64_t>> expected{{"llama-3.1-8b", 4096},
                                                                   {"llama-3.1-70b", 4096},
                                                                   {"qwen3-30b-a3b", 2048},
                                                                   {"deepseek-v3.2", 1152},
                                                                   {"deepseek-v3.2-fp8", 656}};
  ASSERT_EQ(models().size(), expected.size());
  for (const auto& [name, bytes] : expected) {
    const Result<Model> model = find_model(name);
    ASSERT_TRUE(model.ok()) << name;
    EXPECT_EQ(shard(model.value(), 1)->token_layer_bytes(), bytes) << name;
  }
  const Result<Model> missing = find_model("gpt");
  EXPECT_NE(missing.status().message().find("qwen3-30b-a3b"), std::string::npos)
      << missing.status().message();
}

TEST(ReplayModels, TensorParallelism) {
  const Model llama = find_model("llama-3.1-8b").value();
  EXPECT_EQ(shard(llama, 8)->token_layer_bytes(), 512);
  EXPECT_EQ(shard(llama, 8)->distinct_ranks(), 8);
  EXPECT_EQ(shard(llama, 3).status().message(), "--tp: 3 does not divide the 8 KV heads of llama-3.1-8b");
  EXPECT_FALSE(shard(llama, 16).ok());
  EXPECT_FALSE(shard(llama, 0).ok());
  // The latent row is every rank's own.
  const Model mla = find_model("deepseek-v3.2").value();
  EXPECT_EQ(shard(mla, 3)->token_layer_bytes(), 1152);
  EXPECT_EQ(shard(mla, 3)->distinct_ranks(), 1);
}

TEST(ReplayTrace, Reads) {
  const TempFile file(
      "good.jsonl",
      R"({"timestamp": 0, "input_length": 1025, "output_length": 0, "hash_ids": [0, 1, 2], "x": {}})"
      "\n\n"
      R"({"timestamp": 9, "input_length": 512, "output_length": 3, "hash_ids": [0]})");
  const Result<Trace> trace = read_trace(file.path(), -1);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  ASSERT_EQ(trace->requests.size(), 2U);
  EXPECT_EQ(trace->requests[1].timestamp_ms, 9);
  EXPECT_EQ(trace->requests[1].line, 3);
  EXPECT_EQ(trace->requests[1].tokens(), 515);
  EXPECT_EQ(trace->ids(trace->requests[0]).back(), 2);
  EXPECT_EQ(trace->prompt_tokens(), 1537);
  EXPECT_EQ(read_trace(file.path(), 1)->requests.size(), 1U);
}

TEST(ReplayTrace, ErrorsNameFileLineAndReason) {
  const std::string good = R"({"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [5]})";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"{\"timestamp\": 0,", "not JSON at column 17"},
      {"[1]", "array, expected an object"},
      {R"({"input_length": 9, "output_length": 1, "hash_ids": [5]})", "'timestamp' is missing"},
      {R"({"timestamp": 0, "output_length": 1, "hash_ids": [5]})", "'input_length' is missing"},
      {R"({"timestamp": 0, "input_length": 9, "hash_ids": [5]})", "'output_length' is missing"},
      {R"({"timestamp": 0, "input_length": 9, "output_length": 1})", "'hash_ids' is missing"},
      {R"({"timestamp": -1, "input_length": 9, "output_length": 1, "hash_ids": [5]})", "'timestamp' is -1"},
      {R"({"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []})", "'input_length' is 0"},
      {R"({"timestamp": 0, "input_length": 9, "output_length": -4, "hash_ids": [5]})",
       "'output_length' is -4"},
      {R"({"timestamp": 0, "input_length": 99999999999999999999, "output_length": 1, "hash_ids": [5]})",
       "expected an integer"},
      {R"({"timestamp": 0, "input_length": 18446744073709551615, "output_length": 1, "hash_ids": [5]})",
       "'input_length' is 18446744073709551615, expected 1 to 536870912"},
      {R"({"timestamp": 0.5, "input_length": 9, "output_length": 1, "hash_ids": [5]})", "'timestamp' is 0.5"},
      {R"({"timestamp": 0, "input_length": "9", "output_length": 1, "hash_ids": [5]})",
       "'input_length' is \"9\""},
      {R"({"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [5]})",
       "'hash_ids' has 1 ids, expected 2 (input_length 513 / 512, rounded up)"},
      {R"({"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": 5})", "'hash_ids' is number"},
      {R"({"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [-5]})", "'hash_ids[0]' is -5"},
      {R"({"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [null]})",
       "'hash_ids[0]' is null"},
  };
  for (const auto& [line, reason] : cases) {
    const TempFile file("bad.jsonl", fmt::format("{0}\n{1}\n{0}\n", good, line));
    const Result<Trace> trace = read_trace(file.path(), -1);
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_EQ(trace.status().message().rfind(file.path() + ":2: ", 0), 0U) << trace.status().message();
    EXPECT_NE(trace.status().message().find(reason), std::string::npos) << trace.status().message();
    // Only what was asked for is read.
    EXPECT_TRUE(read_trace(file.path(), 1).ok());
  }
  const TempFile empty("empty.jsonl", "\n");
  EXPECT_EQ(read_trace(empty.path(), -1).status().message(), empty.path() + ":1: the file has no requests");
  EXPECT_NE(
      read_trace("/nowhere/x", -1).status().message().find("--trace: cannot open '/nowhere/x': No such file"),
      std::string::npos);
}

TEST(ReplayTrace, PrefixTreeSharesWholePrefixesOnly) {
  Trace trace;
  const auto add = [&](std::int32_t length, const std::vector<std::int64_t>& ids) {
    Request r;
    r.input_length = length;
    r.first_id = trace.hash_ids.size();
    trace.hash_ids.insert(trace.hash_ids.end(), ids.begin(), ids.end());
    trace.requests.push_back(r);
  };
  add(1536, {7, 8, 9});
  add(1535, {7, 8, 9});  // 9 is a partial block here
  add(1024, {6, 8});     // 8 behind another block is another block
  add(100, {7});
  const PrefixTree tree(trace);
  EXPECT_EQ(tree.size(), 5);
  ASSERT_EQ(tree.chain(1).size(), 2U);
  EXPECT_EQ(tree.chain(0)[1], tree.chain(1)[1]);
  EXPECT_NE(tree.chain(2)[1], tree.chain(1)[1]);
  EXPECT_TRUE(tree.chain(3).empty());
  const std::int32_t last = tree.chain(0)[2];
  EXPECT_EQ(tree.hash_id(last), 9);
  EXPECT_EQ(tree.depth(last), 2);
  EXPECT_EQ(tree.parent(last), tree.chain(0)[1]);
  EXPECT_EQ(tree.parent(tree.chain(0)[0]), -1);
}

TEST(ReplayGenerator, SameSeedSameTrace) {
  const Trace a = generate_trace(5, 200), b = generate_trace(5, 200), c = generate_trace(6, 200);
  EXPECT_EQ(a.hash_ids, b.hash_ids);
  EXPECT_NE(a.hash_ids, c.hash_ids);
  ASSERT_EQ(a.requests.size(), 200U);
  // A fixed point: the generator is integers only, so this holds on every platform.
  EXPECT_EQ(generate_trace(1, 300).prompt_tokens(), 4'258'351);
}

// What makes a trace easy or hard for a prefix cache.
struct Facts {
  double input_p50, input_p90, input_mean;
  double output_p50, output_p90, output_mean;
  double only_system_prompt;  // share of the requests that share no other block with an earlier one
  double unlimited_hits;      // share of the prompt tokens that a cache without end has
  double hits_4m, hits_1m;    // one of so many tokens
};

// Of the published conversation trace.
constexpr Facts kPublished{6909, 27367, 12035, 350, 597, 343, 0.613, 0.373, 0.191, 0.057};

Facts facts_of(const Trace& trace) {
  std::vector<double> inputs, outputs;
  std::unordered_set<std::int64_t> known;
  double only_system_prompt = 0;
  for (const Request& r : trace.requests) {
    inputs.push_back(r.input_length);
    outputs.push_back(r.output_length);
    const auto ids = trace.ids(r);
    only_system_prompt += ids.size() < 2 || !known.contains(ids[1]);
    known.insert(ids.begin(), ids.end());
  }
  const auto quantile = [](std::vector<double>& values, double q) {
    std::sort(values.begin(), values.end());
    return values[usize(static_cast<std::int64_t>(q * static_cast<double>(values.size())))];
  };
  const auto mean = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  const PrefixTree tree(trace);
  const auto hits = [&](std::int64_t tokens) {
    SchedulerOptions one_by_one;
    one_by_one.page_tokens = kHashBlock;
    one_by_one.device_pages = tokens / kHashBlock;
    one_by_one.max_running = 1;
    one_by_one.chunk = 1 << 20;
    const Counts counts = simulate(trace, tree, one_by_one);
    return static_cast<double>(counts.hit_tokens()) / static_cast<double>(counts.prompt_tokens);
  };
  return {quantile(inputs, 0.5),
          quantile(inputs, 0.9),
          mean(inputs),
          quantile(outputs, 0.5),
          quantile(outputs, 0.9),
          mean(outputs),
          only_system_prompt / static_cast<double>(trace.requests.size()),
          hits(std::int64_t{1} << 31),
          hits(4 << 20),
          hits(1 << 20)};
}

// The shares of the small caches within `small_caches`: a hit there takes a neighbour of the right age.
void expect_published(const Facts& seen, double tolerance, double small_caches) {
  const auto expect = [](double value, double published, double share, const char* what) {
    EXPECT_NEAR(value, published, share * published) << what;
  };
  expect(seen.input_p50, kPublished.input_p50, tolerance, "input p50");
  expect(seen.input_p90, kPublished.input_p90, tolerance, "input p90");
  expect(seen.input_mean, kPublished.input_mean, tolerance, "input mean");
  expect(seen.output_p50, kPublished.output_p50, tolerance, "output p50");
  expect(seen.output_p90, kPublished.output_p90, tolerance, "output p90");
  expect(seen.output_mean, kPublished.output_mean, tolerance, "output mean");
  expect(seen.only_system_prompt, kPublished.only_system_prompt, tolerance, "only the system prompt");
  expect(seen.unlimited_hits, kPublished.unlimited_hits, tolerance, "hits, unlimited");
  expect(seen.hits_4m, kPublished.hits_4m, small_caches, "hits, 4 M tokens");
  expect(seen.hits_1m, kPublished.hits_1m, small_caches, "hits, 1 M tokens");
}

TEST(ReplayGenerator, HasTheFactsOfThePublishedTrace) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    expect_published(facts_of(generate_trace(seed, 12'031)), 0.10, 0.20);
  }
}

TEST(ReplayRealTrace, HasTheFactsThatTheGeneratorFollows) {
  const std::string path = real_trace_path();
  if (path.empty()) GTEST_SKIP() << "no ../shared/data/mooncake_conversation_trace.jsonl beside the checkout";
  const Result<Trace> trace = read_trace(path, -1);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  expect_published(facts_of(trace.value()), 0.002, 0.02);
}

TEST(ReplayGenerator, IsAValidChatTrace) {
  const Trace trace = generate_trace(1, 3000);
  std::int64_t time = 0;
  for (const Request& r : trace.requests) {
    EXPECT_GE(r.input_length, 1);
    EXPECT_EQ(trace.ids(r).front(), 0);
    EXPECT_GE(r.timestamp_ms, time);
    time = r.timestamp_ms;
  }
  // An id has one predecessor, as in the published traces: no id means two blocks.
  const PrefixTree tree(trace);
  std::vector<std::int64_t> ids;
  ids.reserve(usize(tree.size()));
  for (std::int32_t b = 0; b < tree.size(); ++b) ids.push_back(tree.hash_id(b));
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
}

}  // namespace
}  // namespace kvferry::replay
