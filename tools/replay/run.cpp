// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/run.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "kvferry/ops/group_memcpy.hpp"
#include "tools/replay/generator.hpp"
#include "tools/replay/html.hpp"
#include "tools/replay/memory.hpp"
#include "tools/replay/numbers.hpp"
#include "tools/replay/print.hpp"
#include "tools/replay/progress.hpp"
#include "tools/replay/topk_file.hpp"

namespace kvferry::replay {
namespace {

Result<Trace> load(const Options& o) {
  if (!o.trace.empty()) return read_trace(o.trace, o.requests > 0 ? o.requests : -1);
  return generate_trace(o.seed, o.requests > 0 ? o.requests : kGeneratedRequests);
}

// What is wrong with the threads, the implementation or the environment shows in any plan: say
// so before gigabytes are touched.
Status check_context(const Options& o, const Context& context) {
  std::int64_t pair[2] = {};
  GroupMemcpyArgs args;
  args.addr_table = contiguous(pair, DType::kInt64, {1, 2});
  const Result<Plan> made = plan(args, context);
  if (made.ok() || o.implementation.empty()) return made.status();
  return {StatusCode::kInvalidArgument, fmt::format("--impl: {}", made.status().message())};
}

// The file, or a new one in its folder; if not, errno says why. Leaves nothing
// behind: the run may still fail.
bool can_write(const std::filesystem::path& file) {
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) return access(file.c_str(), W_OK) == 0;
  const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  return access(folder.c_str(), W_OK) == 0;
}

class Run {
 public:
  Run(const Options& options, std::FILE* out)
      : options_(options), progress_(out), context_(context_options(options)) {}

  Outcome run() {
    const auto start = std::chrono::steady_clock::now();
    outcome_.report.options = options_;
    bool good = prepare();
    good = good && measure_limit(outcome_.report.copy_limit_before);
    good = good && move();
    // By now the pools are free again: it does not add to the peak.
    good = good && measure_limit(outcome_.report.copy_limit_after);
    static_cast<void>(good);  // the outcome says why not
    outcome_.report.peak_memory = peak_memory();
    outcome_.report.elapsed_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(outcome_);
  }

 private:
  static ContextOptions context_options(const Options& o) {
    ContextOptions c;
    c.threads = o.threads;
    c.implementation = o.implementation;
    return c;
  }

  bool fail(int exit_code, std::string error) {
    progress_.cancel();
    outcome_.exit_code = exit_code;
    outcome_.report.error = error;
    outcome_.error = std::move(error);
    return false;
  }

  // Everything that can be wrong with the options, and the counts of the run.
  bool prepare() {
    Report& report = outcome_.report;
    const Result<Model> model = find_model(options_.model);
    if (!model.ok()) return fail(kExitUsage, model.status().message());
    const Result<Shard> part = shard(model.value(), options_.tp);
    if (!part.ok()) return fail(kExitUsage, part.status().message());
    report.shard = part.value();
    report.threads = context_.threads();
    if (Status s = check_context(options_, context_); !s.ok()) return fail(kExitUsage, s.message());

    progress_.begin("trace");
    Result<Trace> trace = load(options_);
    if (!trace.ok()) return fail(kExitUsage, trace.status().message());
    trace_ = std::move(trace).value();
    tree_ = std::make_unique<PrefixTree>(trace_);
    report.trace_name = trace_.name;
    report.trace_requests = std::ssize(trace_.requests);
    report.trace_prompt_tokens = trace_.prompt_tokens();
    progress_.end(fmt::format("{}: {} requests, {} prompt tokens", trace_.name, report.trace_requests,
                              report.trace_prompt_tokens));

    mover_options_.shard = report.shard;
    mover_options_.layers = options_.layers;
    SchedulerOptions& s = mover_options_.scheduler;
    s.page_tokens = options_.block;
    s.device_pages = options_.pool_tokens() / options_.block;
    s.host_pages = options_.second_pool_tokens() / options_.block;
    s.max_running = options_.max_running;
    s.chunk = options_.chunk;
    s.speed = options_.speed;
    s.step_ms = options_.step_ms;
    mover_options_.verify = options_.verify;
    mover_options_.seed = options_.seed;
    mover_options_.fault = options_.fault;
    mover_options_.select = options_.select;

    // The schedule does not depend on the clock: a run without bytes gives the number of calls to choose the
    // verified ones from, the longest gather, the pages that are ever used and the total for the progress.
    progress_.begin("simulate");
    planned_ = simulate(trace_, *tree_, s);
    for (const std::int32_t q : planned_.refused) {
      const Request& r = trace_.requests[usize(q)];
      report.refused.push_back({r.line, r.tokens()});
    }
    progress_.end(fmt::format("{} steps, {:.1f} % prefix hits, {:.1f} GB to move", planned_.steps,
                              100 * static_cast<double>(planned_.hit_tokens()) /
                                  static_cast<double>(std::max<std::int64_t>(1, planned_.prompt_tokens)),
                              static_cast<double>(planned_.moved_tokens() * report.token_bytes()) / 1e9));
    return check_memory() && (options_.select == 0 || make_id_source());
  }

  bool make_id_source() {
    if (!options_.topk.empty()) {
      progress_.begin("ids");
      Result<std::unique_ptr<TopkFile>> file =
          TopkFile::read(options_.topk, trace_, planned_.refused, options_.layers, options_.select);
      if (!file.ok()) return fail(kExitUsage, file.status().message());
      id_source_ = std::move(file).value();
      progress_.end(options_.topk);
    } else {
      id_source_ = std::make_unique<LocalityModel>(
          LocalityModel::Options{.k = options_.select,
                                 .overlap_percent = options_.overlap,
                                 .seed = options_.seed,
                                 .streams = planned_.max_running * options_.layers,
                                 .longest = planned_.longest_request});
    }
    mover_options_.id_source = id_source_.get();
    return true;
  }

  bool check_memory() {
    const Footprint f = footprint(mover_options_, planned_);
    const std::int64_t available = available_memory();
    if (available < 0 || f.total() <= available) return true;
    return fail(
        kExitUsage,
        fmt::format(
            "--device-tokens, --host-tokens, --select, --layers, --tp: the run needs {} (device {}, host {}, "
            "buffers {}), expected at most the {} that are available",
            print_gibibytes(f.total()), print_gibibytes(f.device), print_gibibytes(f.host),
            print_gibibytes(f.buffers), print_gibibytes(available)));
  }

  bool measure_limit(double& gb_per_second) {
    if (!options_.measure_limit) return true;
    progress_.begin("copy limit");
    Result<double> measured = measure_copy_limit(context_);
    if (!measured.ok()) return fail(kExitFailed, measured.status().message());
    gb_per_second = measured.value();
    outcome_.report.copy_limit_method = copy_limit_method();
    progress_.end(fmt::format("{:.1f} GB/s, {}", gb_per_second, copy_limit_method()));
    return true;
  }

  bool move() {
    Report& report = outcome_.report;
    progress_.begin("memory");
    const Footprint f = footprint(mover_options_, planned_);
    const Mover* moving = nullptr;
    mover_options_.on_step = [&](const Counts& counts) { show(counts, moving->selection()); };
    Result<std::unique_ptr<Mover>> made = Mover::make(context_, trace_, *tree_, mover_options_, planned_);
    if (!made.ok()) return fail(kExitFailed, made.status().message());
    progress_.end(fmt::format("device {}, host {}, buffers {}", print_gibibytes(f.device),
                              print_gibibytes(f.host), print_gibibytes(f.buffers)));

    progress_.begin("replay", work(planned_));
    report.series = TimeSeries(planned_.steps);
    const std::unique_ptr<Mover> mover = std::move(made).value();
    moving = mover.get();
    Scheduler scheduler(trace_, *tree_, mover_options_.scheduler);
    const Status status = scheduler.run(*mover);
    report.counts = by_tier(scheduler.counts());
    report.selection = mover->selection();
    report.calls = mover->stats();
    report.replay_seconds =
        progress_.end(fmt::format("{} requests in {} steps", report.counts.finished, report.counts.steps));
    if (status.ok()) return true;
    report.mismatch = mover->mismatch();
    return fail(kExitFailed, report.mismatch ? "mismatch: " + status.message() : status.message());
  }

  // In tokens of one layer: what decode selects is most of the work where there is any.
  std::int64_t work(const Counts& counts) const {
    return counts.moved_tokens() + counts.generated_tokens * options_.select / 2;
  }

  // The scheduler's first pool is the host's with selection.
  Counts by_tier(Counts counts) const {
    if (options_.select > 0) {
      std::swap(counts.device_hit_tokens, counts.host_hit_tokens);
      std::swap(counts.device_pages, counts.host_pages);
      std::swap(counts.device_high_water, counts.host_high_water);
    }
    return counts;
  }

  void show(const Counts& counts, const SelectionTotals& selection) {
    outcome_.report.series.add(sample_of(by_tier(counts), selection));
    if (!progress_.due()) return;
    progress_.update(work(counts), fmt::format("{} of {} requests, step {} of {}", counts.finished,
                                               planned_.finished, counts.steps, planned_.steps));
  }

  const Options& options_;
  Progress progress_;
  Context context_;
  Trace trace_;
  std::unique_ptr<PrefixTree> tree_;
  std::unique_ptr<IdSource> id_source_;
  MoverOptions mover_options_;
  Counts planned_;
  Outcome outcome_;
};

}  // namespace

Outcome replay(const Options& options, std::FILE* progress) {
  return Run(options, progress).run();
}

int run_replay(const Options& options) {
  const auto complain = [](const std::string& error) {
    std::fputs(fmt::format("kvferry replay: {}\n", error).c_str(), stderr);
  };
  struct File {
    const char* option;
    const std::string& path;
    std::string text;
    std::string unwritable() const {
      return fmt::format("{}: cannot write '{}': {}", option, path, std::strerror(errno));
    }
  };
  std::array files{File{"--json", options.json, {}}, File{"--html", options.html, {}}};
  // Before minutes of work, not after.
  for (const File& f : files) {
    if (f.path.empty() || can_write(f.path)) continue;
    complain(f.unwritable());
    return kExitUsage;
  }
  Outcome outcome = replay(options, stderr);
  // A run that moved something has something to show, also when it failed.
  if (outcome.report.replay_seconds > 0) {
    const nlohmann::json json = to_json(outcome.report);
    files[0].text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
    files[1].text = to_html(json);
    for (const File& f : files) {
      if (f.path.empty()) continue;
      std::ofstream file(f.path);
      file << f.text;
      file.close();
      if (file || outcome.exit_code != kExitOk) continue;
      outcome.exit_code = kExitFailed;
      outcome.error = f.unwritable();
    }
    std::fputs(to_table(outcome.report).c_str(), stdout);
    std::fflush(stdout);
  }
  if (!outcome.error.empty()) complain(outcome.error);
  return outcome.exit_code;
}

}  // namespace kvferry::replay
