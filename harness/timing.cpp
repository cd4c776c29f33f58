// SPDX-License-Identifier: Apache-2.0
//
// time_case(). Variants take turns in random order, so that a noisy neighbour or a clock change hits all of
// them; a sample in which one of our threads had to wait for a processor says nothing about the code and is
// repeated.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>

#include "harness/harness.hpp"
#include "harness/random.hpp"
#include "harness/waiting.hpp"

namespace kvferry::harness {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Contestant {
  explicit Contestant(const ContextOptions& options) : context(options) {}
  Context context;
  Plan plan;
  Memory workspace;
  std::int64_t calls = 1;
  std::vector<double> samples;
  int disturbed = 0;
  double plan_seconds = 0;
};

double run_sample(const Instance& instance, Contestant& who) {
  const Workspace workspace{who.workspace.data(), who.workspace.size()};
  ErrorRecord record;
  const auto start = Clock::now();
  for (std::int64_t i = 0; i < who.calls; ++i) {
    const Status status = instance.run(who.plan, workspace, &record, who.context);
    if (!status.ok()) throw CaseError(fmt::format("refused while timed: {}", status.message()));
  }
  return seconds_since(start);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

std::vector<Timing> time_case(const OperatorInfo& info, const Case& what, const TimingOptions& options) {
  const auto processors = static_cast<std::int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  {
    Case verified = what;
    if (!verified.has("threads")) verified.set("threads", processors);
    if (!verified.has("via")) verified.set("via", "run");
    Runner runner;
    const Report report = runner.run(info, verified);
    if (!report.ok()) throw CaseError(report.to_string());
  }
  const std::unique_ptr<Instance> instance = info.make(what);
  if (instance->expect.code != StatusCode::kOk) throw CaseError("a case that is refused cannot be timed");
  instance->reset();

  std::vector<std::unique_ptr<Contestant>> contestants;
  for (const std::string& name : what.texts("impl", {""})) {
    for (const std::int64_t threads : what.integers("threads", {processors})) {
      ContextOptions context;
      context.implementation = name;
      context.threads = static_cast<int>(threads);
      context.streaming = what.flag("streaming", false);
      auto who = std::make_unique<Contestant>(context);
      std::vector<double> plan_samples;
      for (int i = 0; i < 101; ++i) {
        const auto start = Clock::now();
        Result<Plan> plan = instance->plan(who->context);
        plan_samples.push_back(seconds_since(start));
        if (!plan.ok()) throw CaseError(plan.status().message());
        who->plan = plan.value();
      }
      who->plan_seconds = median(plan_samples);
      who->workspace = Memory(who->plan.workspace_bytes(), Placement::kGuarded);
      // Warm-up, and how many calls make a sample.
      double lasted = run_sample(*instance, *who);
      while (lasted < options.sample_seconds && who->calls < (std::int64_t{1} << 24)) {
        const double factor = std::clamp(1.2 * options.sample_seconds / std::max(lasted, 1e-9), 2.0, 100.0);
        who->calls = static_cast<std::int64_t>(std::ceil(static_cast<double>(who->calls) * factor));
        lasted = run_sample(*instance, *who);
      }
      contestants.push_back(std::move(who));
    }
  }

  Random random(options.seed);
  std::vector<std::size_t> order(contestants.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const int rounds = 5 * options.samples;  // a machine that is never quiet must not keep us forever
  for (int round = 0; round < rounds; ++round) {
    random.shuffle(order);
    bool done = true;
    for (const std::size_t i : order) {
      Contestant& who = *contestants[i];
      if (static_cast<int>(who.samples.size()) >= options.samples) continue;
      done = false;
      const std::int64_t before = nanoseconds_waited();
      const double lasted = run_sample(*instance, who);
      const double waited = static_cast<double>(nanoseconds_waited() - before) * 1e-9;
      const bool last_chance = rounds - round <= options.samples - static_cast<int>(who.samples.size());
      if (waited > 0.02 * lasted && !last_chance) {
        ++who.disturbed;
      } else {
        who.samples.push_back(lasted / static_cast<double>(who.calls));
      }
    }
    if (done) break;
  }

  std::vector<Timing> timings;
  for (const auto& who : contestants) {
    Timing timing;
    timing.case_text = what.print();
    timing.implementation = who->plan.implementation();
    timing.threads = who->context.threads();
    timing.bytes = instance->bytes_moved;
    timing.calls_per_sample = who->calls;
    timing.samples = static_cast<int>(who->samples.size());
    timing.disturbed = who->disturbed;
    timing.plan_seconds = who->plan_seconds;
    timing.median_seconds = median(who->samples);
    timing.least_seconds = *std::min_element(who->samples.begin(), who->samples.end());
    timing.most_seconds = *std::max_element(who->samples.begin(), who->samples.end());
    timing.gb_per_second = static_cast<double>(timing.bytes) / timing.median_seconds / 1e9;
    timings.push_back(std::move(timing));
  }
  return timings;
}

}  // namespace kvferry::harness
