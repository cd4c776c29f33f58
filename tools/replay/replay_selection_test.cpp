// SPDX-License-Identifier: Apache-2.0
//
// Decode with sparse attention: where the ids come from, and whole replays with --select.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tools/replay/locality.hpp"
#include "tools/replay/replay_testing.hpp"
#include "tools/replay/report.hpp"
#include "tools/replay/run.hpp"
#include "tools/replay/selector.hpp"
#include "tools/replay/topk_file.hpp"

namespace kvferry::replay {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

std::int64_t common(const Ids& a, const Ids& b) {
  const std::set<std::int32_t> members(a.begin(), a.end());
  return std::ranges::count_if(b, [&](std::int32_t id) { return members.contains(id); });
}

TEST(ReplayLocality, OverlapIsTheWantedOne) {
  struct Shape {
    std::int64_t k;
    double percent;
    std::int64_t tokens;
  };
  for (const Shape& shape : {Shape{2048, 58.85, 6909},
                             {2048, 58.85, 2892},  // barely enough others
                             {2048, 0, 50'000},
                             {2048, 10, 5000},
                             {2048, 99, 5000},
                             {2048, 100, 5000},
                             {64, 58.85, 1000},
                             {100, 33.3, 400},
                             {300, 75, 120'000}}) {
    SCOPED_TRACE(fmt::format("K {}, {} %, {} tokens", shape.k, shape.percent, shape.tokens));
    constexpr int kSteps = 100;
    LocalityModel model({.k = shape.k,
                         .overlap_percent = shape.percent,
                         .seed = 3,
                         .streams = 1,
                         .longest = shape.tokens + kSteps});
    EXPECT_LE(model.least_measured_tokens(), shape.tokens);
    Ids last, ids(usize(shape.k));
    std::int64_t kept = 0;
    for (int step = 0; step < kSteps; ++step) {
      const std::int64_t n = shape.tokens + step;
      model.choose({0, 7, step, 1, n}, ids);
      const std::set<std::int32_t> members(ids.begin(), ids.end());
      ASSERT_EQ(std::ssize(members), shape.k) << "step " << step;
      ASSERT_GE(*members.begin(), 0);
      ASSERT_LT(*members.rbegin(), n);
      for (std::int64_t i = 0; i < model.sinks(); ++i)
        ASSERT_TRUE(members.contains(static_cast<std::int32_t>(i)));
      for (std::int64_t i = 1; i <= model.window(); ++i) {
        ASSERT_TRUE(members.contains(static_cast<std::int32_t>(n - i)));
      }
      if (step > 0) kept += common(last, ids);
      last = ids;
    }
    const double seen = 100.0 * static_cast<double>(kept) / static_cast<double>((kSteps - 1) * shape.k);
    EXPECT_NEAR(seen, shape.percent, 1);
  }
}

TEST(ReplayLocality, HasSinksAndAWindow) {
  const LocalityModel model({.k = 2048, .overlap_percent = 58.85, .seed = 1, .streams = 1, .longest = 10});
  EXPECT_EQ(model.sinks(), 16);
  EXPECT_EQ(model.window(), 129);
  // All but the newest would stay, which is more than nothing.
  const LocalityModel none({.k = 2048, .overlap_percent = 0, .seed = 1, .streams = 1, .longest = 10});
  EXPECT_EQ(none.sinks(), 0);
  EXPECT_EQ(none.window(), 1);
}

TEST(ReplayLocality, ShortSequencesAreSelectedWhole) {
  LocalityModel model({.k = 50, .overlap_percent = 20, .seed = 1, .streams = 1, .longest = 120});
  Ids ids(50);
  for (std::int32_t n = 40; n <= 120; ++n) {
    model.choose({0, 0, n - 40, 0, n}, ids);
    std::set<std::int32_t> members(ids.begin(), ids.end());
    members.erase(-1);
    ASSERT_EQ(std::ssize(members), std::min(n, 50)) << n;
    ASSERT_LT(*members.rbegin(), n);
    if (n < 50) {
      EXPECT_EQ(ids[usize(n)], -1);
    }
  }
}

TEST(ReplayLocality, DependsOnSeedRequestAndLayerOnly) {
  const auto last_of = [](std::uint64_t seed, std::int32_t request, std::int32_t layer, std::int64_t stream) {
    LocalityModel model({.k = 128, .overlap_percent = 50, .seed = seed, .streams = 3, .longest = 2100});
    Ids ids(128);
    // Another request had the stream before.
    for (int step = 0; step < 4; ++step) model.choose({stream, 99, step, layer, 2000 + step}, ids);
    for (int step = 0; step < 5; ++step) model.choose({stream, request, step, layer, 1000 + step}, ids);
    return ids;
  };
  const Ids ids = last_of(1, 4, 0, 0);
  EXPECT_EQ(ids, last_of(1, 4, 0, 2));
  EXPECT_NE(ids, last_of(2, 4, 0, 0));
  EXPECT_NE(ids, last_of(1, 5, 0, 0));
  EXPECT_NE(ids, last_of(1, 4, 1, 0));
  EXPECT_FALSE(std::ranges::is_sorted(ids));
}

TEST(ReplaySelectedSet, ReadsAListAsTheOperatorDoes) {
  SelectedSet set(100);
  set.assign(Ids{7, 3, 7, 50, 9, -1, 4}, 50);
  EXPECT_EQ(set.ids(), (Ids{7, 3, 9}));
  EXPECT_EQ(set.last_size(), -1);
  EXPECT_TRUE(set.contains(3));
  for (const std::int32_t other : {4, 50, -1, 64, INT32_MAX, INT32_MIN})
    EXPECT_FALSE(set.contains(other)) << other;
  set.assign(Ids{50, 9, 7, 1}, 51);
  EXPECT_EQ(set.common(), 2);
  EXPECT_EQ(set.last_size(), 3);
  EXPECT_FALSE(set.contains(3));
  set.reset();
  set.assign(Ids{9}, 51);
  EXPECT_EQ(set.last_size(), -1);
}

class ReplaySelection : public testing::Test {
 protected:
  ReplaySelection() : trace_("selection.jsonl", text()) {
    options_.trace = trace_.path();
    options_.model = "deepseek-v3.2";
    options_.tp = 1;
    options_.layers = 2;
    options_.host_tokens = 12'000;
    options_.max_running = 5;
    options_.chunk = 700;
    options_.select = 300;
    options_.verify.all = true;
    options_.threads = 2;
    options_.json.clear();
    options_.html.clear();
    options_.measure_limit = false;
  }
  static std::string text() {
    harness::Random random(9);
    return print_trace(random_trace(random, 30, 7));
  }
  static json numbers(const Outcome& outcome) { return to_json(outcome.report)["selection"]; }

  TempFile trace_;
  Options options_;
};

TEST_F(ReplaySelection, EveryByteOfEveryModelIsRight) {
  struct Shape {
    const char* model;
    int tp;
    std::int64_t block, k;
  };
  for (const Shape& shape : {Shape{"deepseek-v3.2", 1, 16, 300},
                             {"deepseek-v3.2-fp8", 1, 64, 128},
                             {"qwen3-30b-a3b", 2, 100, 1},
                             {"llama-3.1-8b", 8, 16, 1000}}) {
    SCOPED_TRACE(shape.model);
    Options o = options_;
    o.model = shape.model;
    o.tp = shape.tp;
    o.block = shape.block;
    o.select = shape.k;
    const Outcome outcome = replay(o, nullptr);
    ASSERT_EQ(outcome.exit_code, kExitOk) << outcome.error;
    const Report& r = outcome.report;
    for (const Call call : calls_of(true)) {
      EXPECT_GT(r.calls[call].calls, 0) << purpose_of(call);
      EXPECT_EQ(r.calls[call].verified_calls, r.calls[call].calls) << purpose_of(call);
    }
    EXPECT_EQ(r.calls[Call::kEvict].calls + r.calls[Call::kFetch].calls, 0);
    const SelectionTotals& s = r.selection;
    EXPECT_EQ(s.hits + s.misses, s.ids);
    EXPECT_EQ(s.fetched, s.misses);
    EXPECT_LE(s.moved, s.hits);
    EXPECT_EQ(r.calls[Call::kSelect].verified_bytes, s.ids * r.shard.token_layer_bytes());
    EXPECT_EQ(r.calls[Call::kSelect].bytes, (s.fetched + s.moved) * r.shard.token_layer_bytes());
    // A sequence of n tokens has min(n, K) of them selected in each step and layer.
    std::int64_t expected = 0;
    const Trace trace = read_trace(o.trace, -1).value();
    for (const Request& q : trace.requests) {
      for (std::int64_t n = q.input_length + 1; n <= q.tokens(); ++n)
        expected += std::min(n, o.select) * o.layers;
    }
    EXPECT_EQ(s.ids, expected);
  }
}

TEST_F(ReplaySelection, MeasuresTheOverlap) {
  options_.overlap = 40;
  options_.verify = {.all = false, .percent = 0, .at_least = 0};
  const json j = numbers(replay(options_, nullptr));
  EXPECT_NEAR(j["overlap_percent"].get<double>(), 40, 1);
  EXPECT_GT(j["overlap_pairs"], 100);
  EXPECT_EQ(j["wanted_overlap_percent"], 40);
  // The newest token is in no earlier set: hits are exactly what consecutive sets have in common.
  EXPECT_LT(j["hits"].get<double>() / j["ids"].get<double>(), 0.5);
}

TEST_F(ReplaySelection, SameNumbersWithAnyThreads) {
  const auto of = [this](int threads) {
    options_.threads = threads;
    return numbers(replay(options_, nullptr));
  };
  const json first = of(1);
  EXPECT_EQ(first, of(2));
  EXPECT_EQ(first, of(3));
}

TEST_F(ReplaySelection, FindsAFlippedBitInThePool) {
  // The last prompt token of a request: nobody gathers it; decode selects it while it is in the window.
  const Trace trace = read_trace(options_.trace, -1).value();
  std::int32_t request = 0;
  while (trace.requests[usize(request)].output_length == 0 ||
         trace.requests[usize(request)].input_length < options_.select) {
    ++request;
  }
  const Request& r = trace.requests[usize(request)];
  for (const char* model : {"deepseek-v3.2-fp8", "llama-3.1-8b"}) {
    options_.model = model;
    const Part part = options_.model == "llama-3.1-8b" ? Part::kValue : Part::kKey;
    options_.fault = Fault{request, r.input_length - 1, 1, part, 100, 0x10};
    const Outcome outcome = replay(options_, nullptr);
    EXPECT_EQ(outcome.exit_code, kExitFailed);
    ASSERT_TRUE(outcome.report.mismatch.has_value()) << outcome.error;
    const Mismatch& m = *outcome.report.mismatch;
    EXPECT_EQ(m.call, Call::kSelect);
    EXPECT_EQ(m.row.request, request);
    EXPECT_EQ(m.row.layer, 1);
    EXPECT_EQ(m.row.part, part);
    EXPECT_EQ(m.row.position, r.input_length - 1);
    EXPECT_EQ(m.row.byte, 100);
    EXPECT_EQ(m.row.expected ^ m.row.seen, 0x10);
    EXPECT_EQ(outcome.error.rfind("mismatch: gather_selection_kv_cache decode, call ", 0), 0U)
        << outcome.error;
  }
}

// A selector on a pool without contents: 2 requests, K = 8.
TEST(ReplaySelector, SeesAWrongState) {
  const Context context;
  const Shard part = shard(find_model("deepseek-v3.2-fp8").value(), 1).value();
  Trace trace;
  trace.requests.resize(2);
  for (Request& r : trace.requests) r.input_length = 20;
  LocalityModel model({.k = 8, .overlap_percent = 50, .seed = 1, .streams = 2, .longest = 40});
  const std::unique_ptr<Selector> selector = Selector::make(context, trace,
                                                            {.shard = part,
                                                             .layers = 1,
                                                             .k = 8,
                                                             .requests = 2,
                                                             .longest = 40,
                                                             .pool_pages = 4,
                                                             .page_tokens = 20},
                                                            model)
                                                 .value();
  const KeyValue pool = KeyValue::make(part, 80, 80, context).value();
  const Ids first{0, 1}, second{2, 3};
  selector->begin_step(std::vector<DecodeToken>{{0, 20, 20, first}, {1, 21, 61, second}});
  const GatherSelectionKvCacheArgs args = selector->prepare(0, pool);
  ASSERT_TRUE(gather_selection_kv_cache(args, context).ok());
  EXPECT_EQ(selector->check_state(0), "");
  auto* status =
      static_cast<std::int32_t*>(args.selection_kv_block_status.data) + 9;  // of the second request
  const auto expect = [&](std::int64_t slot, std::int32_t value, const std::string& message) {
    const std::int32_t kept = std::exchange(status[slot], value);
    EXPECT_NE(selector->check_state(0).find("request 1 (line 0), layer 0, 22 tokens: " + message),
              std::string::npos)
        << selector->check_state(0);
    status[slot] = kept;
  };
  expect(8, 7, "7 valid tokens in the state, 8 returned, expected 8");
  expect(3, -1, "slot 3 holds id -1, which was not selected");
  expect(3, 22, "slot 3 holds id 22, which was not selected");
  expect(3, status[4], "an id is in two slots");
  EXPECT_EQ(selector->check_state(0), "");
}

// The ids of every request, step and layer, some of them useless.
std::string topk_text(const Trace& trace, int layers, std::int64_t k, std::map<std::string, Ids>& lists) {
  harness::Random random(5);
  std::string text = "\n";
  for (const Request& r : trace.requests) {
    for (std::int64_t step = 0; step < r.output_length; ++step) {
      for (int layer = 0; layer < layers; ++layer) {
        Ids ids(usize(random.between(0, k)));
        for (std::int32_t& id : ids) {
          id = static_cast<std::int32_t>(random.one_in(50) ? random.between(-1, INT32_MAX)
                                                           : random.between(0, r.input_length + step));
        }
        lists[fmt::format("{} {} {}", r.line, step, layer)] = ids;
        text += fmt::format(R"({{"request":{},"step":{},"layer":{},"ids":[{}],"x":0}})"
                            "\n",
                            r.line, step, layer, fmt::join(ids, ","));
      }
    }
  }
  return text;
}

TEST_F(ReplaySelection, TakesRecordedIds) {
  const Trace trace = read_trace(options_.trace, -1).value();
  std::map<std::string, Ids> lists;
  // Of three layers, two of which run.
  const TempFile file("topk.jsonl", topk_text(trace, 3, 40, lists));
  const std::unique_ptr<TopkFile> source = TopkFile::read(file.path(), trace, {}, 2, 40).value();
  for (std::size_t q = 0; q < trace.requests.size(); ++q) {
    for (std::int32_t step = 0; step < trace.requests[q].output_length; ++step) {
      for (std::int32_t layer = 0; layer < 2; ++layer) {
        Ids ids(40, 77);
        source->choose({0, static_cast<std::int32_t>(q), step, layer, 1000}, ids);
        Ids expected = lists[fmt::format("{} {} {}", trace.requests[q].line, step, layer)];
        expected.resize(40, -1);
        ASSERT_EQ(ids, expected);
      }
    }
  }
  options_.select = 40;
  options_.topk = file.path();
  const Outcome outcome = replay(options_, nullptr);
  ASSERT_EQ(outcome.exit_code, kExitOk) << outcome.error;
  const SelectionTotals& s = outcome.report.selection;
  EXPECT_EQ(s.hits + s.misses, s.ids);
  EXPECT_GT(s.moved, 0);
  const json j = numbers(outcome);
  EXPECT_EQ(j["source"], file.path());
  EXPECT_TRUE(j["wanted_overlap_percent"].is_null());
}

TEST_F(ReplaySelection, TopkErrorsNameFileLineAndReason) {
  Trace trace;
  trace.requests.resize(2);
  for (std::size_t i = 0; i < 2; ++i) {
    trace.requests[i].line = static_cast<std::int64_t>(i) + 5;
    trace.requests[i].output_length = 1;
  }
  const std::string good = R"({"request":5,"step":0,"layer":0,"ids":[3]})";
  const auto error = [&](const std::string& text, const Ids& refused = {}) {
    const TempFile file("topk_bad.jsonl", text);
    const auto read = TopkFile::read(file.path(), trace, refused, 1, 4);
    return read.ok() ? "" : read.status().message().substr(file.path().size());
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"nonsense", ":2: not JSON at column 2"},
      {"[]", ":2: array, expected an object"},
      {R"({"step":0,"layer":0,"ids":[]})", ":2: 'request' is missing"},
      {R"({"request":6,"layer":0,"ids":[]})", ":2: 'step' is missing"},
      {R"({"request":6,"step":0,"ids":[]})", ":2: 'layer' is missing"},
      {R"({"request":6,"step":0,"layer":0})", ":2: 'ids' is missing"},
      {R"({"request":6,"step":-1,"layer":0,"ids":[]})", ":2: 'step' is -1, expected 0 to 2147483647"},
      {R"({"request":6,"step":0,"layer":0,"ids":7})", ":2: 'ids' is number, expected an array"},
      {R"({"request":6,"step":0,"layer":0,"ids":[1,"2"]})", ":2: 'ids[1]' is \"2\", expected an integer"},
      {R"({"request":6,"step":0,"layer":0,"ids":[2147483648]})",
       ":2: 'ids[0]' is 2147483648, expected -2147483648"},
      {R"({"request":6,"step":0,"layer":0,"ids":[1,2,3,4,5]})",
       ":2: 'ids' has 5 ids, expected at most 4 (--select)"},
      {good, ":2: request 5, step 0, layer 0 again, expected once (line 1)"},
      {R"({"request":6,"step":1,"layer":0,"ids":[]})", ": no line for request 6, step 0, layer 0"},
      {R"({"request":6,"step":0,"layer":1,"ids":[]})", ": no line for request 6, step 0, layer 0"},
      {"", ": no line for request 6, step 0, layer 0"},
  };
  for (const auto& [line, message] : cases) {
    const std::string seen = error(fmt::format("{}\n{}\n", good, line));
    EXPECT_EQ(seen.substr(0, message.size()), message) << seen;
  }
  EXPECT_EQ(error(good, {1}), "");  // a refused request needs none
  options_.topk = "/nowhere/ids";
  const Outcome outcome = replay(options_, nullptr);
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_EQ(outcome.error, "--topk: cannot open '/nowhere/ids': No such file or directory");
}

TEST_F(ReplaySelection, TableJsonAndPageAgree) {
  const TempFile json_file("selection.json"), html_file("selection.html");
  options_.json = json_file.path();
  options_.html = html_file.path();
  options_.link_gbps = 50;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  ASSERT_EQ(run_replay(options_), kExitOk);
  const std::string table = testing::internal::GetCapturedStdout();
  testing::internal::GetCapturedStderr();
  const json j = json::parse(read_file(json_file.path()));
  const std::string page = read_file(html_file.path());
  EXPECT_EQ(embedded_report(page), j);

  const json& s = j["selection"];
  EXPECT_EQ(s["hits"].get<std::int64_t>() + s["misses"].get<std::int64_t>(), s["ids"]);
  EXPECT_EQ(s["fetched_bytes"], s["misses"].get<std::int64_t>() * 1152);
  EXPECT_EQ(s["fetch_all_bytes"], s["ids"].get<std::int64_t>() * 1152);
  EXPECT_EQ(s["tokens_per_request"], 384);
  EXPECT_EQ(s["selection_memory_bytes"], s["requests"].get<std::int64_t>() * 384 * 2304);
  EXPECT_EQ(s["full_memory_bytes"], s["full_memory_tokens"].get<std::int64_t>() * 2304);
  EXPECT_EQ(s["whole_model"]["fetched_bytes"], s["fetched_bytes"].get<double>() * 30.5);
  const json& call = j["calls"].back();
  EXPECT_EQ(call["operator"], "gather_selection_kv_cache");
  EXPECT_NEAR(call["modelled_link_seconds"].get<double>(), s["fetched_bytes"].get<double>() / 50e9, 1e-12);
  // The pool is the host's.
  EXPECT_EQ(j["options"]["device_tokens"], 0);
  EXPECT_EQ(j["cache"]["device_hit_tokens"], 0);
  EXPECT_GT(j["cache"]["host_hit_tokens"], 0);
  const json& series = j["series"];
  EXPECT_EQ(series["fetched_bytes"].back(), s["fetched_bytes"]);
  EXPECT_EQ(series["fetch_all_bytes"].back(), s["fetch_all_bytes"]);
  EXPECT_EQ(std::ranges::max(series["full_memory_bytes"].get<std::vector<double>>()), s["full_memory_bytes"]);

  const auto in_table = [&](const std::string& text) {
    EXPECT_NE(table.find(text), std::string::npos) << text << "\n" << table;
  };
  in_table(fmt::format("hits {:.2f} %, moved {:.2f} %", s["hit_percent"].get<double>(),
                       s["moved_percent"].get<double>()));
  in_table(fmt::format("({:.1f} %)\n", s["fetched_percent"].get<double>()));
  in_table(fmt::format("measured {:.2f} %, wanted 58.85 %", s["overlap_percent"].get<double>()));
  in_table(fmt::format("{:.1f} x\n", s["memory_ratio"].get<double>()));
  in_table("modelled at 50 GB/s");
  EXPECT_EQ(table.find("evict"), std::string::npos) << table;

  for (const auto& [name, column] : {std::pair{"fetched", "fetched_bytes"},
                                     {"fetching all", "fetch_all_bytes"},
                                     {"selection caches", "selection_memory_bytes"},
                                     {"full cache of the running requests", "full_memory_bytes"},
                                     {"host hits", "host_hit_percent"}}) {
    const auto ys = data_attributes(page, name, "data-y");
    ASSERT_EQ(ys.size(), 1U) << name;
    EXPECT_EQ(parse_numbers(ys[0]), series[column].get<std::vector<double>>()) << name;
  }
  EXPECT_TRUE(data_attributes(page, "device hits", "data-y").empty());
}

TEST_F(ReplaySelection, RefusesWhatIsLargerThanTheHostPool) {
  options_.host_tokens = 2063;
  const Outcome outcome = replay(options_, nullptr);
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.error;
  EXPECT_FALSE(outcome.report.refused.empty());
  EXPECT_NE(to_table(outcome.report).find("refused, larger than the host pool: line"), std::string::npos);
}

}  // namespace
}  // namespace kvferry::replay
