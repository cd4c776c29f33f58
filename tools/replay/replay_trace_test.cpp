// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
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
  EXPECT_EQ(generate_trace(1, 300).prompt_tokens(), 3'856'418);
}

TEST(ReplayGenerator, IsAValidChatTrace) {
  const Trace trace = generate_trace(1, 3000);
  std::vector<std::int32_t> inputs;
  std::int64_t time = 0;
  for (const Request& r : trace.requests) {
    inputs.push_back(r.input_length);
    EXPECT_GE(r.input_length, 1);
    EXPECT_EQ(trace.ids(r).front(), 0);
    EXPECT_GE(r.timestamp_ms, time);
    time = r.timestamp_ms;
  }
  std::sort(inputs.begin(), inputs.end());
  EXPECT_NEAR(inputs[inputs.size() / 2], 6909, 1200);
  EXPECT_NEAR(static_cast<double>(trace.prompt_tokens()) / 3000, 12035, 2000);
  // An id has one predecessor, as in the published traces: no id means two blocks.
  const PrefixTree tree(trace);
  std::vector<std::int64_t> ids;
  ids.reserve(usize(tree.size()));
  for (std::int32_t b = 0; b < tree.size(); ++b) ids.push_back(tree.hash_id(b));
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());

  SchedulerOptions unlimited;
  unlimited.device_pages = 4 << 20;
  unlimited.max_running = 1;
  const Counts counts = simulate(trace, tree, unlimited);
  EXPECT_NEAR(static_cast<double>(counts.hit_tokens()) / static_cast<double>(counts.prompt_tokens), 0.373,
              0.05);
}

}  // namespace
}  // namespace kvferry::replay
