// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "harness/harness.hpp"
#include "kvferry/backend.hpp"
#include "ops/registry.hpp"

namespace kvferry::tools {
namespace {

using harness::Case;
using harness::CaseError;
using harness::OperatorInfo;

constexpr const char* kCaseHelp =
    "A case: 'operator:key=value,...', or a registered name, or 'name:key=value,...' to change some keys of "
    "it. "
    "'kvferry list OPERATOR' shows the keys and names.";

// Bad case text is the caller's mistake; everything else that a case throws is too.
template <class Body>
int guarded(Body body) {
  try {
    return body();
  } catch (const CaseError& error) {
    fmt::print(stderr, "kvferry: {}\n", error.what());
    return kExitUsage;
  }
}

void print_keys(std::span<const harness::KeyHelp> keys) {
  for (const harness::KeyHelp& key : keys) fmt::print("    {:<14} {}\n", key.name, key.help);
}

int list(const std::string& name) {
  if (name.empty()) {
    for (const OperatorInfo& info : harness::operators()) {
      fmt::print("{:<22} {}\n{:<22} implementations: {}; {} registered cases\n", info.name, info.summary, "",
                 fmt::join(info.implementations(), ", "), info.cases.size());
    }
    fmt::print("\nbackends\n");
    for (const BackendInfo& backend : backends())
      fmt::print("  {:<6} {}: {}\n", backend.name, backend.available ? "available" : "absent",
                 backend.detail);
    fmt::print("\n'kvferry list OPERATOR' shows the keys of its cases and the registered ones.\n");
    return 0;
  }
  const OperatorInfo* info = harness::find_operator(name);
  if (info == nullptr) {
    std::vector<std::string> names;
    for (const OperatorInfo& each : harness::operators()) names.emplace_back(each.name);
    fmt::print(stderr, "kvferry: no operator '{}', expected one of: {}\n", name, fmt::join(names, ", "));
    return kExitUsage;
  }
  fmt::print("{}: {}\n  implementations, in the order in which they are tried: {}\n  keys of a case\n",
             info->name, info->summary, fmt::join(info->implementations(), ", "));
  print_keys(info->keys);
  fmt::print("  keys of every case\n");
  print_keys(harness::common_keys());
  fmt::print("  registered cases\n");
  for (const harness::RegisteredCase& each : info->cases) fmt::print("    {:<34} {}\n", each.name, each.text);
  return 0;
}

// The context that a case asks for: the first of its impl and threads lists.
Context context_of(const Case& what) {
  ContextOptions options;
  const std::vector<std::string> names = what.texts("impl", {});
  if (!names.empty()) options.implementation = names.front();
  const std::vector<std::int64_t> threads = what.integers("threads", {});
  if (!threads.empty()) options.threads = static_cast<int>(threads.front());
  options.streaming = what.flag("streaming", false);
  return Context(options);
}

int explain(const std::vector<std::string>& texts) {
  int code = 0;
  for (const std::string& text : texts) {
    for (const auto& [info, what] : harness::resolve(text)) {
      what.check_known(info->keys, harness::common_keys());
      const std::unique_ptr<harness::Instance> instance = info->make(what);
      instance->reset();
      const Result<Plan> plan = instance->plan(context_of(what));
      fmt::print("{}\n", what.print());
      if (plan.ok()) {
        fmt::print("{}\n", plan->describe());
      } else {
        fmt::print("  refused         {} (ACLNN {}): {}\n\n", to_string(plan.status().code()),
                   aclnn_code(plan.status().code()), plan.status().message());
        code = kExitFailed;
      }
    }
  }
  return code;
}

struct RunOptions {
  std::vector<std::string> cases;
  bool all = false;
  std::int64_t random = 0;
  std::uint64_t seed = 1;
  bool quiet = false;
};

int run(const RunOptions& options) {
  harness::Runner runner;
  std::int64_t failed = 0;
  const auto run_one = [&](const OperatorInfo& info, const Case& what) {
    const harness::Report report = runner.run(info, what);
    if (report.bad_case) throw CaseError(report.failure->what);
    if (!report.ok()) ++failed;
    if (!report.ok() || !options.quiet) fmt::print("{}\n", report.to_string());
    std::fflush(stdout);
  };
  for (const std::string& text : options.cases) {
    for (const auto& [info, what] : harness::resolve(text)) run_one(*info, what);
  }
  for (const OperatorInfo& info : harness::operators()) {
    if (options.all) {
      for (const harness::RegisteredCase& each : info.cases) {
        for (const auto& [op, what] : harness::resolve(each.name)) run_one(*op, what);
      }
    }
    for (std::int64_t i = 0; i < options.random; ++i) {
      run_one(info, info.random_case(options.seed + static_cast<std::uint64_t>(i)));
    }
  }
  fmt::print("{}\n", runner.summary());
  if (runner.cases() == 0) {
    fmt::print(stderr, "kvferry: nothing to run: name a case, or --all, or --random N\n");
    return kExitUsage;
  }
  return failed == 0 ? 0 : kExitFailed;
}

struct BenchOptions {
  std::vector<std::string> cases;
  harness::TimingOptions timing;
  double sample_ms = 2;
  bool json = false;
};

int bench(BenchOptions options) {
  if (!(options.sample_ms > 0))
    throw CaseError(fmt::format("--sample-ms is {}, expected > 0", options.sample_ms));
  options.timing.sample_seconds = options.sample_ms / 1e3;
  nlohmann::json rows = nlohmann::json::array();
  if (!options.json) {
    fmt::print("{:<10} {:>7} {:>14} {:>12} {:>12} {:>9} {:>9}  {}\n", "impl", "threads", "bytes", "median us",
               "min us", "GB/s", "plan us", "case");
  }
  for (const std::string& text : options.cases) {
    for (const auto& [info, what] : harness::resolve(text)) {
      for (const harness::Timing& t : harness::time_case(*info, what, options.timing)) {
        if (options.json) {
          rows.push_back({{"case", t.case_text},
                          {"implementation", t.implementation},
                          {"threads", t.threads},
                          {"bytes", t.bytes},
                          {"median_us", t.median_seconds * 1e6},
                          {"min_us", t.least_seconds * 1e6},
                          {"max_us", t.most_seconds * 1e6},
                          {"gb_per_s", t.gb_per_second},
                          {"plan_us", t.plan_seconds * 1e6},
                          {"samples", t.samples},
                          {"disturbed_samples", t.disturbed},
                          {"calls_per_sample", t.calls_per_sample}});
        } else {
          fmt::print("{:<10} {:>7} {:>14} {:>12.2f} {:>12.2f} {:>9.2f} {:>9.2f}  {}\n", t.implementation,
                     t.threads, t.bytes, t.median_seconds * 1e6, t.least_seconds * 1e6, t.gb_per_second,
                     t.plan_seconds * 1e6, t.case_text);
          std::fflush(stdout);
        }
      }
    }
  }
  if (options.json) fmt::print("{}\n", rows.dump(2));
  return 0;
}

}  // namespace

void add_list_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "list", "operators, their implementations, case keys and registered cases; backends");
  auto name = std::make_shared<std::string>();
  command->add_option("operator", *name, "Show this operator in full");
  command->callback([name, &exit_code] { exit_code = list(*name); });
}

void add_explain_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("explain", "what a call would do, without doing it");
  command->footer(
      "Prints the plan: the implementation and why those before it refused, how a token is laid out, the "
      "units of\n"
      "work, the workspace, and what a CANN build would select. Exit code 1 if the call is refused.\n\n"
      "  kvferry explain gather_pa_kv_cache:mode=nz,lens=100;1;7,h=8,dk=128,dtype=bf16,impl=avx2,threads=2");
  auto cases = std::make_shared<std::vector<std::string>>();
  command->add_option("case", *cases, kCaseHelp)->required();
  command->callback([cases, &exit_code] { exit_code = guarded([&] { return explain(*cases); }); });
}

void add_run_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("run", "run cases with every implementation and hold them against the oracle");
  command->footer(
      "Every implementation, thread count and way to call; outputs bit for bit, inputs, guard bytes and "
      "error\n"
      "records. A failure prints the command that repeats it. Exit code 1 if any case fails.\n\n"
      "  kvferry run gather_pa_kv_cache:lens=1;3;5,bs=4,idx=i64\n"
      "  kvferry run --all --quiet\n"
      "  kvferry run --random 1000 --seed 7 --quiet");
  auto options = std::make_shared<RunOptions>();
  command->add_option("case", options->cases, kCaseHelp);
  command->add_flag("--all", options->all, "All registered cases");
  command->add_option("--random", options->random, "This many random cases of each operator")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seed", options->seed, "Of the first random case")->capture_default_str();
  command->add_flag("--quiet", options->quiet, "Print failures and the summary only");
  command->callback([options, &exit_code] { exit_code = guarded([&] { return run(*options); }); });
}

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bench", "time cases, after verifying them");
  command->footer(
      "Implementations and thread counts of a case (impl=avx2;generic,threads=1;2) take turns in random "
      "order; a\n"
      "sample in which a thread had to wait for a processor is thrown away. Medians; GB/s counts the payload "
      "once.\n"
      "Buffers are reused: small problems are measured warm.\n\n"
      "  kvferry bench 'gather_pa_kv_cache:lens=4096*16,bs=16,h=8,dk=128,dv=128,impl=avx2;generic' --json");
  auto options = std::make_shared<BenchOptions>();
  command->add_option("case", options->cases, kCaseHelp)->required();
  command->add_option("--samples", options->timing.samples, "Samples of each variant")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  command->add_option("--sample-ms", options->sample_ms, "A sample repeats the call for this long")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, &exit_code] { exit_code = guarded([&] { return bench(*options); }); });
}

}  // namespace kvferry::tools
