// SPDX-License-Identifier: Apache-2.0
//
// Whole replays on real memory, small ones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tools/replay/cli.hpp"
#include "tools/replay/memory.hpp"
#include "tools/replay/print.hpp"
#include "tools/replay/replay_testing.hpp"
#include "tools/replay/report.hpp"
#include "tools/replay/run.hpp"

namespace kvferry::replay {
namespace {

using nlohmann::json;

// 40 short requests that share prefixes, and pools so small that blocks are evicted, fetched and dropped.
class ReplayRun : public testing::Test {
 protected:
  ReplayRun() : trace_("run.jsonl", text()) {
    options_.trace = trace_.path();
    options_.layers = 2;
    options_.device_tokens = 8000;
    options_.host_tokens = 6000;
    options_.max_running = 5;
    options_.chunk = 700;
    options_.verify.all = true;
    options_.threads = 2;
    options_.json.clear();
    options_.html.clear();
    options_.measure_limit = false;
  }

  static std::string text() {
    harness::Random random(4);
    return print_trace(random_trace(random, 40, 7));
  }

  TempFile trace_;
  Options options_;
};

// Blocks 1, 2, 3 are shared.
std::string four_prompts() {
  Trace trace;
  const auto add = [&](std::int32_t tokens, const std::vector<std::int64_t>& ids) {
    Request r;
    r.input_length = tokens;
    r.output_length = 4;
    r.first_id = trace.hash_ids.size();
    trace.hash_ids.insert(trace.hash_ids.end(), ids.begin(), ids.end());
    trace.requests.push_back(r);
  };
  add(1536, {1, 2, 3});
  add(2100, {1, 2, 3, 4, 5});
  add(2048, {10, 11, 12, 13});
  add(2100, {1, 2, 3, 4, 6});
  return print_trace(trace);
}

TEST_F(ReplayRun, EveryByteOfEveryModelIsRight) {
  struct Shape {
    const char* model;
    int tp;
    std::int64_t block;
  };
  for (const Shape& shape : {Shape{"llama-3.1-8b", 8, 16},
                             {"llama-3.1-70b", 4, 48},
                             {"qwen3-30b-a3b", 2, 100},
                             {"deepseek-v3.2", 1, 64},
                             {"deepseek-v3.2-fp8", 1, 1},
                             {"deepseek-v3.2-fp8", 4, 1000}}) {
    Options o = options_;
    o.model = shape.model;
    o.tp = shape.tp;
    o.block = shape.block;
    const Outcome outcome = replay(o, nullptr);
    ASSERT_EQ(outcome.exit_code, kExitOk) << shape.model << ": " << outcome.error;
    const Report& r = outcome.report;
    for (const Call call : calls_of(false)) {
      const CallStats& s = r.calls[call];
      EXPECT_GT(s.calls, 0) << shape.model << " " << purpose_of(call);
      EXPECT_EQ(s.verified_calls, s.calls) << shape.model << " " << purpose_of(call);
      EXPECT_EQ(s.verified_bytes, s.bytes) << shape.model << " " << purpose_of(call);
      EXPECT_EQ(s.latency.count(), s.calls);
      EXPECT_NE(s.implementation, "") << purpose_of(call);
    }
    EXPECT_EQ(r.calls[Call::kGather].tokens, r.counts.gathered_tokens);
    EXPECT_EQ(r.calls[Call::kScatterPrefill].tokens, r.counts.computed_tokens);
    EXPECT_EQ(r.calls[Call::kScatterDecode].bytes, r.counts.generated_tokens * r.token_bytes());
    EXPECT_EQ(r.calls[Call::kEvict].tokens, r.counts.evicted_tokens);
    EXPECT_EQ(r.calls[Call::kFetch].tokens, r.counts.fetched_tokens);
  }
}

TEST_F(ReplayRun, SameSeedSameNumbers) {
  const auto numbers = [this](std::uint64_t seed, int threads) {
    Options o = options_;
    o.seed = seed;
    o.threads = threads;
    o.verify = {.all = false, .percent = 10, .at_least = 5};
    json j = to_json(replay(o, nullptr).report);
    j.erase("seconds");
    j.erase("machine");
    j.erase("peak_memory_bytes");
    for (json& call : j["calls"]) {
      for (const char* timed :
           {"seconds", "gb_per_second", "median_us", "p90_us", "p99_us", "plan_seconds", "latency"}) {
        call.erase(timed);
      }
    }
    return j;
  };
  const json first = numbers(1, 1);
  EXPECT_EQ(json::diff(first, numbers(1, 2)), json::array());
  EXPECT_NE(json::diff(first, numbers(2, 1)), json::array());
}

TEST_F(ReplayRun, VerifiesTheShareThatWasAskedFor) {
  Options o = options_;
  o.verify = {.all = false, .percent = 20, .at_least = 3};
  const Outcome outcome = replay(o, nullptr);
  for (const Call call : calls_of(false)) {
    const CallStats& s = outcome.report.calls[call];
    EXPECT_EQ(s.verified_calls, o.verify.wanted(s.calls)) << purpose_of(call);
    EXPECT_GE(s.verified_calls, std::min<std::int64_t>(3, s.calls));
  }
  EXPECT_EQ((VerifyShare{.all = false, .percent = 0, .at_least = 1000}.wanted(50)), 0);
  EXPECT_EQ((VerifyShare{}.wanted(50)), 50);
  EXPECT_EQ((VerifyShare{}.wanted(10'000)), 1000);
  EXPECT_EQ((VerifyShare{}.wanted(100'000)), 5000);
  EXPECT_EQ((VerifyShare{.all = true, .percent = 5, .at_least = 1}.wanted(77)), 77);
}

TEST_F(ReplayRun, FindsAFlippedBitWithTheNextGather) {
  for (const Part part : {Part::kKey, Part::kValue}) {
    const TempFile trace("flip.jsonl", four_prompts());
    Options o = options_;
    o.trace = trace.path();
    o.chunk = 512;
    o.fault = Fault{1, 517, 1, part, 33, 0x40};
    const Outcome outcome = replay(o, nullptr);
    EXPECT_EQ(outcome.exit_code, kExitFailed);
    ASSERT_TRUE(outcome.report.mismatch.has_value());
    const Mismatch& m = *outcome.report.mismatch;
    EXPECT_EQ(m.call, Call::kGather);
    EXPECT_EQ(m.row.request, 1);
    EXPECT_EQ(m.row.layer, 1);
    EXPECT_EQ(m.row.part, part);
    EXPECT_EQ(m.row.position, 517);
    EXPECT_EQ(m.row.byte, 33);
    EXPECT_EQ(m.row.expected ^ m.row.seen, 0x40);
    EXPECT_EQ(m.row.hash_id, 2);
    EXPECT_EQ(outcome.report.calls[Call::kGather].mismatched_rows, 1);
    const std::string expected = fmt::format(
        "mismatch: gather_pa_kv_cache prefill, call {}: request 1 (line 2), prefix block 2, layer 1, {}, "
        "position 517, "
        "byte 33: expected 0x{:02x}, saw 0x{:02x}",
        m.number, part == Part::kKey ? "key" : "value", m.row.expected, m.row.seen);
    EXPECT_EQ(outcome.error, expected);
    EXPECT_NE(to_table(outcome.report).find("FAILED mismatch: gather_pa_kv_cache"), std::string::npos);
    EXPECT_EQ(to_json(outcome.report)["mismatch"]["position"], 517);
  }
}

TEST_F(ReplayRun, FindsAFlippedBitWhenTheBlockMoves) {
  // Two requests do not fit beside each other: the first one's blocks are evicted, then fetched for the last.
  const TempFile trace("flip2.jsonl", four_prompts());
  Options o = options_;
  o.trace = trace.path();
  o.device_tokens = 2304;
  o.max_running = 1;
  Outcome outcome = replay(o, nullptr);
  ASSERT_EQ(outcome.exit_code, kExitOk) << outcome.error;
  EXPECT_GT(outcome.report.calls[Call::kFetch].calls, 0);
  // The last block of the first prompt is gathered by the second request; its fourth
  // block by nobody before it moves.
  o.fault = Fault{1, 3 * 512 + 511, 0, Part::kValue, 255, 0x01};
  outcome = replay(o, nullptr);
  ASSERT_TRUE(outcome.report.mismatch.has_value());
  EXPECT_EQ(outcome.report.mismatch->call, Call::kEvict);
  EXPECT_EQ(outcome.report.mismatch->row.hash_id, 4);
  EXPECT_EQ(outcome.report.mismatch->row.position, 2047);
  EXPECT_NE(outcome.error.find("swap_blocks evict"), std::string::npos) << outcome.error;
}

TEST_F(ReplayRun, RefusesAndNamesWhatIsLargerThanTheDevice) {
  const TempFile trace("refused.jsonl", four_prompts());
  Options o = options_;
  o.trace = trace.path();
  o.device_tokens = 2063;  // whole pages of 16: 2048
  const Outcome outcome = replay(o, nullptr);
  EXPECT_EQ(outcome.exit_code, kExitOk);
  EXPECT_EQ(outcome.report.counts.finished, 1);
  ASSERT_EQ(outcome.report.refused.size(), 3U);
  const std::string table = to_table(outcome.report);
  EXPECT_NE(table.find("1 finished, 3 refused"), std::string::npos) << table;
  EXPECT_NE(table.find(
                "refused, larger than the device pool: line 2 (2,104 tokens), line 3 (2,052 tokens), line 4"),
            std::string::npos)
      << table;
}

TEST_F(ReplayRun, UsageErrors) {
  Options o = options_;
  o.trace = "/nowhere/x.jsonl";
  EXPECT_EQ(replay(o, nullptr).exit_code, kExitUsage);
  o = options_;
  o.implementation = "nonsense";
  Outcome outcome = replay(o, nullptr);
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_NE(outcome.error.find("--impl: "), std::string::npos) << outcome.error;
  EXPECT_NE(outcome.error.find("nonsense"), std::string::npos) << outcome.error;
  o = options_;
  o.implementation = "generic";
  o.requests = 5;
  outcome = replay(o, nullptr);
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.error;
  EXPECT_EQ(outcome.report.calls[Call::kGather].implementation, "generic");
}

TEST_F(ReplayRun, RefusesWhatDoesNotFitIntoMemory) {
  if (available_memory() < 0) GTEST_SKIP() << "the system does not tell how much memory is available";
  Options o = options_;
  o.trace.clear();
  o.model = "llama-3.1-70b";
  o.tp = 1;
  o.layers = 80;
  o.device_tokens = kMaxPoolTokens;
  o.requests = 1000;
  const Outcome outcome = replay(o, nullptr);  // 8 M tokens of 320 KiB
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_NE(outcome.error.find("the run needs "), std::string::npos) << outcome.error;
}

// The row of the table that starts with this name, in words.
std::vector<std::string> table_row(const std::string& table, const std::string& name) {
  std::istringstream lines(table);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.rfind(name, 0) != 0) continue;
    std::istringstream words(line.substr(name.size()));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

using ReplayReport = ReplayRun;
TEST_F(ReplayReport, TheTableSaysWhatTheJsonSays) {
  Options o = options_;
  o.link_gbps = 12.5;
  o.measure_limit = true;
  const TempFile file("report.json");
  o.json = file.path();
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_replay(o), kExitOk);
  const std::string table = testing::internal::GetCapturedStdout();
  const std::string progress = testing::internal::GetCapturedStderr();
  EXPECT_NE(progress.find("simulate"), std::string::npos) << progress;

  std::ifstream in(file.path());
  const json j = json::parse(in);
  ASSERT_EQ(j["calls"].size(), calls_of(false).size());
  for (const json& call : j["calls"]) {
    const auto name = call["operator"].get<std::string>() + " " + call["purpose"].get<std::string>();
    const std::vector<std::string> row = table_row(table, name);
    ASSERT_GE(row.size(), 11U) << table;
    std::size_t at = 0;
    EXPECT_EQ(row[at++], call["calls"].dump());
    std::string tokens = row[at++];
    if (std::isalpha(static_cast<unsigned char>(row[at][0])) != 0) tokens += " " + row[at++];
    EXPECT_EQ(tokens, print_metric(call["tokens"].get<std::int64_t>()));
    EXPECT_EQ(row[at++], fmt::format("{:.2f}", call["bytes"].get<double>() / 1e9));
    EXPECT_EQ(row[at++], fmt::format("{:.2f}", call["gb_per_second"].get<double>()));
    EXPECT_EQ(row[at++], fmt::format("{:.1f}", call["percent_of_limit"].get<double>()));
    EXPECT_EQ(row[at++], fmt::format("{:.1f}", call["median_us"].get<double>()));
    EXPECT_EQ(row[at++], fmt::format("{:.1f}", call["p99_us"].get<double>()));
    EXPECT_EQ(row[at++], fmt::format("{:.1f}", call["verified_percent"].get<double>()));
    ++at;  // %
    EXPECT_EQ(row[at++], call["mismatched_rows"].dump());
    EXPECT_EQ(row.size() > at, call.contains("modelled_link_seconds")) << name;
    EXPECT_NEAR(call["gb_per_second"].get<double>(),
                call["bytes"].get<double>() / call["seconds"].get<double>() / 1e9, 1e-9);
  }
  const auto contains = [&](const std::string& text) {
    EXPECT_NE(table.find(text), std::string::npos) << text << "\n" << table;
  };
  const json& cache = j["cache"];
  contains(fmt::format("prefix hits {:.2f} % (device {:.2f}, host {:.2f})",
                       cache["hit_percent"].get<double>(), cache["device_hit_percent"].get<double>(),
                       cache["host_hit_percent"].get<double>()));
  contains(fmt::format("bytes saved {}", print_metric(cache["bytes_saved"].get<std::int64_t>(), "B")));
  contains(fmt::format("evicted {} tokens", print_metric(cache["evicted_tokens"].get<std::int64_t>())));
  contains(fmt::format("dropped {}", print_metric(cache["dropped_tokens"].get<std::int64_t>())));
  contains(fmt::format("requests {} finished, {} refused", j["requests"]["finished"].get<std::int64_t>(),
                       j["requests"]["refused"].size()));
  contains(fmt::format("copy limit {:.1f} GB/s", j["machine"]["copy_limit_gb_per_second"].get<double>()));
  contains("modelled at 12.5 GB/s");
  contains("Both tiers are RAM on the CPU backend");
  contains(fmt::format("x {:g}: ", j["whole_model"]["factor"].get<double>()));
  EXPECT_EQ(j["whole_model"]["factor"], 128);
  EXPECT_EQ(j["cache"]["bytes_saved"], j["cache"]["hit_tokens"].get<std::int64_t>() * 1024);
}

// What `kvferry replay ARGUMENTS` does.
struct Cli {
  int exit_code = 0;
  std::string out;
  std::string err;

  explicit Cli(const std::string& arguments) {
    CLI::App app("kvferry");
    add_replay_command(app, exit_code);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    try {
      app.parse("replay " + arguments);
    } catch (const CLI::ParseError& e) {
      exit_code = app.exit(e);
    }
    out = testing::internal::GetCapturedStdout();
    err = testing::internal::GetCapturedStderr();
  }
};

TEST(ReplayCli, BadValuesNameOptionValueAndRange) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"--model gpt", "--model: 'gpt' is not known, expected one of llama-3.1-8b, "},
      {"--tp 3", "--tp: 3 does not divide the 8 KV heads of llama-3.1-8b"},
      {"--tp zero", "--tp: 'zero', expected an integer from 1 to 1024"},
      {"--layers 33", "--layers: '33', expected an integer from 1 to 32"},
      {"--layers 0", "--layers: '0', expected"},
      {"--block 0", "--block: '0', expected an integer from 1 to 65536"},
      {"--device-tokens 15", "--device-tokens: '15', expected an integer from 16 to "},
      {"--device-tokens=-1", "--device-tokens: '-1', expected"},
      {"--device-bytes 4GB", "--device-bytes: '4GB', expected bytes as in 4G or 512MiB"},
      {"--device-bytes 1k", "--device-bytes: '1k', expected room for 16 to "},
      {"--device-bytes much", "--device-bytes: 'much', expected"},
      {"--device-bytes 1M --device-tokens 1M",
       "--device-tokens and --device-bytes: '1M' and '1M', expected one"},
      {"--host-tokens x", "--host-tokens: 'x', expected an integer from 0"},
      {"--max-running 0", "--max-running: '0', expected"},
      {"--chunk 0", "--chunk: '0', expected"},
      {"--requests 0", "--requests: '0', expected"},
      {"--seed -3", "--seed: '-3', expected"},
      {"--speed 0", "--speed: '0', expected a number above 0"},
      {"--speed fast", "--speed: 'fast', expected a number above 0"},
      {"--step-ms nan", "--step-ms: 'nan', expected a number above 0"},
      {"--verify some", "--verify: 'some', expected 'all' or a percentage"},
      {"--verify 101%", "--verify: '101%', expected"},
      {"--threads 0", "--threads: '0', expected"},
      {"--link-gbps -1", "--link-gbps: '-1', expected a number above 0"},
      {"--trace /nowhere", "--trace: cannot open '/nowhere'"},
      {"--impl best", "--impl: "},
      {"--select 0", "--select: '0', expected an integer from 1 to 1048576"},
      {"--select all", "--select: 'all', expected"},
      {"--select 8 --overlap 101", "--overlap: '101', expected a percentage from 0 to 100, as in 5%"},
      {"--overlap 50%", "--overlap: '50%' without --select, expected both"},
      {"--topk x", "--topk: 'x' without --select, expected both"},
      {"--select 8 --topk x --overlap 5", "--overlap and --topk: '5' and 'x', expected one of the two"},
      {"--select 8 --device-tokens 1M",
       "--device-tokens: '1M' with --select, expected --host-tokens or --host-bytes: the whole cache is on "
       "the host"},
      {"--select 8 --device-bytes 1G", "--device-bytes: '1G' with --select, expected --host-tokens"},
      {"--select 8 --host-tokens 0", "--host-tokens: '0', expected an integer from 16 to "},
      {"--select 8 --topk /nowhere", "--topk: cannot open '/nowhere'"},
      {"--json /nowhere/x.json", "--json: cannot write '/nowhere/x.json': No such file"},
      {"--html /nowhere/x.html", "--html: cannot write '/nowhere/x.html': No such file"},
      {"--html same --json same", "--json and --html: 'same' twice, expected two files"},
  };
  for (const auto& [arguments, message] : cases) {
    const Cli cli(arguments);
    EXPECT_EQ(cli.exit_code, kExitUsage) << arguments;
    EXPECT_NE(cli.err.find("kvferry replay: " + message), std::string::npos) << arguments << "\n" << cli.err;
    EXPECT_EQ(cli.out, "") << arguments;
  }
}

TEST(ReplayCli, Runs) {
  const TempFile file("cli.json");
  const Cli cli(
      "--requests 10 --html none --device-bytes 64MiB --host-bytes 96M --verify 50% --threads 2 --json " +
      file.path());
  EXPECT_EQ(cli.exit_code, 0) << cli.err;
  EXPECT_NE(
      cli.out.find("model llama-3.1-8b tp 8, 2 of 32 layers, block 16   trace built-in seed 1: 10 requests"),
      std::string::npos)
      << cli.out;
  std::ifstream in(file.path());
  EXPECT_EQ(json::parse(in)["options"]["device_tokens"], 64 << 10);
}

TEST(ReplayCli, HelpTeaches) {
  const Cli cli("--help");
  EXPECT_EQ(cli.exit_code, 0);
  for (const char* text : {"--device-tokens", "--host-bytes", "--verify", "--select", "--topk", "\"ids\"",
                           "--html", "--link-gbps", "Modelled", "Examples:", "Exit status"}) {
    EXPECT_NE(cli.out.find(text), std::string::npos) << text << "\n" << cli.out;
  }
}

}  // namespace
}  // namespace kvferry::replay
