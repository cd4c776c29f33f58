// SPDX-License-Identifier: Apache-2.0
//
// kvferry_gpu_cases: the harness on a real GPU. Every registered case of every operator and random ones, byte
// for byte against the oracles, with all tensors in memory that host and device share: first managed memory,
// which moves to the GPU, then pinned memory, which the GPU reads in place. Then blocks above 4 GiB of a
// cache in device memory.
//
// Prints a line of JSON for each failure and each part. Exit: 0 all was right; 1 something was wrong; 2 wrong
// arguments; 4 the time was over before all registered cases had run; 77 no GPU.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "harness/harness.hpp"
#include "harness/memory.hpp"
#include "ops/registry.hpp"
#include "tests/cuda/gpu.hpp"

namespace kvferry::gpu {
namespace {

using harness::Case;
using harness::OperatorInfo;
using Clock = std::chrono::steady_clock;

constexpr int kNoGpu = 77, kTimeIsOver = 4;

const char* const kUsage =
    R"(kvferry_gpu_cases [--out FILE] [--seconds N] [--random N] [--registered N] [--memory managed|pinned|both]
                  [--operator NAME]... [--case TEXT] [--patience SECONDS] [--no-large]
  --out         where the lines of JSON go (standard output)
  --seconds     stop after so long (150)
  --random      random cases of each operator and memory (300)
  --registered  at most so many registered cases of each operator, evenly spread (all)
  --case        one case, "operator:key=value,...", in place of all
  --patience    how long one case may take on the GPU (20)
)";

struct Options {
  std::FILE* out = stdout;
  double seconds = 150, patience = 20;
  std::int64_t random = 300, registered = -1;
  std::vector<std::string> memories = {"managed", "pinned"}, operators;
  std::string one_case;
  bool large = true;
};

// Memory of host and device, dealt out first fit. The list of what is free is beside it: canaries are inside.
class SharedArena final : public harness::Arena {
 public:
  SharedArena(bool pinned, std::int64_t bytes) : pinned_(pinned), bytes_(bytes) {
    void* data = nullptr;
    const auto size = static_cast<std::size_t>(bytes);
    require(pinned ? cudaHostAlloc(&data, size, cudaHostAllocMapped) : cudaMallocManaged(&data, size),
            pinned ? "cudaHostAlloc" : "cudaMallocManaged");
    data_ = static_cast<std::byte*>(data);
    free_.emplace(0, bytes);
    harness::set_arena(this);
  }
  ~SharedArena() override {
    harness::set_arena(nullptr);
    pinned_ ? cudaFreeHost(data_) : cudaFree(data_);
  }

  std::byte* allocate(std::int64_t bytes) override {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const auto [at, size] = *it;
      if (size < bytes) continue;
      free_.erase(it);
      if (size > bytes) free_.emplace(at + bytes, size - bytes);
      return data_ + at;
    }
    exhausted_ = true;
    return nullptr;
  }
  void release(std::byte* data, std::int64_t bytes) override {
    auto it = free_.emplace(data - data_, bytes).first;
    const auto after = std::next(it);
    if (after != free_.end() && it->first + it->second == after->first) {
      it->second += after->second;
      free_.erase(after);
    }
    if (it == free_.begin()) return;
    const auto before = std::prev(it);
    if (before->first + before->second != it->first) return;
    before->second += it->second;
    free_.erase(it);
  }
  bool contains(const std::byte* data, std::int64_t bytes) const {
    return data >= data_ && data + bytes <= data_ + bytes_;
  }
  bool was_exhausted() { return std::exchange(exhausted_, false); }

 private:
  bool pinned_;
  std::int64_t bytes_;
  std::byte* data_ = nullptr;
  std::map<std::int64_t, std::int64_t> free_;  // offset: bytes
  bool exhausted_ = false;
};

class RealDevice final : public harness::CaseDevice {
 public:
  RealDevice(const SharedArena& arena, cudaStream_t stream, double patience)
      : arena_(arena), stream_(stream), patience_(patience) {}

  Context make_context(const ContextOptions& given) override {
    ContextOptions options = given;
    options.device = {DeviceType::kCuda, 0};
    options.cuda_stream = stream_;
    return Context(options);
  }
  std::string why_not(const harness::Instance& /*instance*/) const override { return {}; }
  std::shared_ptr<void> lend(std::byte* data, std::int64_t bytes, Use /*use*/) override {
    if (!arena_.contains(data, bytes)) outside_ = true;
    return nullptr;
  }
  std::string finish() override {
    if (outside_) return "the case has memory that the GPU cannot reach";
    const auto start = Clock::now();
    cudaError_t error = cudaErrorNotReady;
    while ((error = cudaStreamQuery(stream_)) == cudaErrorNotReady) {
      if (Clock::now() - start > std::chrono::duration<double>(patience_)) {
        dead_ = true;
        return fmt::format("still running after {} s", patience_);
      }
      std::this_thread::yield();
    }
    if (error == cudaSuccess) error = cudaPeekAtLastError();
    if (error == cudaSuccess) return {};
    dead_ = true;
    return fmt::format("{}: {}", cudaGetErrorName(error), cudaGetErrorString(error));
  }
  // Nothing can run on it any more.
  bool dead() const { return dead_; }

 private:
  const SharedArena& arena_;
  cudaStream_t stream_;
  double patience_;
  bool outside_ = false, dead_ = false;
};

std::string quoted(std::string_view text) {
  std::string to = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      to += '\\';
      to += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      to += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      to += c;
    }
  }
  return to + '"';
}

struct Count {
  std::int64_t cases = 0, runs = 0, failures = 0, not_reached = 0;
  std::vector<std::string> skipped;
};

class Check {
 public:
  Check(const Options& options, cudaStream_t stream)
      : options_(options),
        stream_(stream),
        end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds))) {}

  // Everything in one kind of memory.
  void run(const std::string& memory) {
    const bool pinned = memory == "pinned";
    SharedArena arena(pinned, pinned ? std::int64_t{2} << 30 : std::int64_t{8} << 30);
    RealDevice device(arena, stream_, options_.patience);
    {
      harness::Runner runner(device);
      Part part{memory, arena, device, runner};
      if (!options_.one_case.empty()) return run_one(part);
      for (const bool random : {false, true}) {
        for (const OperatorInfo& info : harness::operators()) {
          if (wanted(info)) random ? run_random(part, info) : run_registered(part, info);
        }
      }
    }
  }

  void run_large() {
    const auto start = Clock::now();
    const std::string wrong = check_large_offsets(stream_);
    if (!wrong.empty()) ++total_.failures;
    line(R"({{"part": "blocks above 4 GiB", "ok": {}, "what": {}, "seconds": {:.2f}}})", wrong.empty(),
         quoted(wrong), seconds_since(start));
  }

  void note_failure(const std::string& what) {
    ++total_.failures;
    line(R"({{"failure": {}}})", quoted(what));
  }

  int finish() {
    const bool complete = total_.not_reached == 0;
    line(
        R"({{"total": {{"cases": {}, "runs": {}, "failures": {}, "skipped": {}, "not_reached": {}, "complete": {}}}}})",
        total_.cases, total_.runs, total_.failures, total_.skipped.size(), total_.not_reached, complete);
    if (total_.failures > 0) return EXIT_FAILURE;
    return complete ? EXIT_SUCCESS : kTimeIsOver;
  }

 private:
  struct Part {
    const std::string& memory;
    SharedArena& arena;
    RealDevice& device;
    harness::Runner& runner;
  };

  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  bool wanted(const OperatorInfo& info) const {
    const auto& names = options_.operators;
    return names.empty() || std::find(names.begin(), names.end(), info.name) != names.end();
  }
  template <class... T>
  void line(const char* form, const T&... values) {
    const std::string text = fmt::format(fmt::runtime(form), values...);
    std::fprintf(options_.out, "%s\n", text.c_str());
    std::fflush(options_.out);
  }

  // False when the time is over.
  bool check(Part& part, Count& count, const OperatorInfo& info, Case what, const std::string& name) {
    if (Clock::now() > end_) return false;
    // Managed memory is not pinned. In the other part a case may say that some of its tensors are the
    // device's own: it is the same memory, but nobody asks for its address.
    if (part.memory == "managed") what.erase("pinned");
    if (part.memory == "pinned" && !what.has("pinned")) what.set("pinned", "all");
    const harness::Report report = part.runner.run(info, what);
    const bool larger = part.arena.was_exhausted();
    if (report.failure && (larger || report.failure->what == harness::kNotInArena)) {
      count.skipped.push_back(name);
      return true;
    }
    ++count.cases;
    count.runs += report.runs;
    if (report.ok()) return true;
    ++count.failures;
    line(R"({{"failure": {}, "memory": {}, "case": {}, "via": {}, "repeat": {}}})",
         quoted(report.failure->what), quoted(part.memory), quoted(report.case_text),
         quoted(report.failure->via),
         quoted(fmt::format("kvferry_gpu_cases --memory {} --case '{}'", part.memory, report.case_text)));
    std::fprintf(stderr, "%s\n", report.to_string().c_str());
    if (!part.device.dead()) return true;
    // Neither the driver nor the memory can be used any more: leave as we are.
    add(count);
    finish();
    std::_Exit(EXIT_FAILURE);
  }

  void run_one(Part& part) {
    Count count;
    for (const auto& [info, what] : harness::resolve(options_.one_case)) {
      if (!check(part, count, *info, what, what.print())) ++count.not_reached;
    }
    report(part, "case", "", count, 0);
  }

  void run_registered(Part& part, const OperatorInfo& info) {
    const auto start = Clock::now();
    Count count;
    std::vector<std::pair<std::string, Case>> cases;
    for (const harness::RegisteredCase& one : info.cases) {
      if (one.slow) {
        count.skipped.emplace_back(one.name);
        continue;
      }
      for (const auto& [op, what] : harness::resolve(one.name)) cases.emplace_back(one.name, what);
    }
    const std::size_t n = cases.size();
    const std::size_t most =
        options_.registered < 0 ? n : std::min(n, static_cast<std::size_t>(options_.registered));
    for (std::size_t i = 0; i < most; ++i) {
      const auto& [name, what] = cases[i * n / most];
      if (!check(part, count, info, what, name)) ++count.not_reached;
    }
    report(part, "registered", info.name, count, seconds_since(start));
  }

  void run_random(Part& part, const OperatorInfo& info) {
    const auto start = Clock::now();
    Count count;
    for (std::int64_t i = 0; i < options_.random && count.failures < 3; ++i) {
      const Case what = info.random_case(static_cast<std::uint64_t>(i) + 9'000'000);
      if (!check(part, count, info, what, what.print())) break;
    }
    report(part, "random", info.name, count, seconds_since(start));
  }

  void report(const Part& part, const char* kind, const char* op, Count& count, double seconds) {
    std::sort(count.skipped.begin(), count.skipped.end());
    std::string names;
    for (const std::string& name : count.skipped) names += (names.empty() ? "" : ", ") + quoted(name);
    line(
        R"({{"part": "{}", "operator": "{}", "memory": "{}", "cases": {}, "runs": {}, "failures": {}, "not_reached": {}, "skipped": [{}], "seconds": {:.2f}}})",
        kind, op, part.memory, count.cases, count.runs, count.failures, count.not_reached, names, seconds);
    add(count);
  }
  void add(const Count& count) {
    total_.cases += count.cases;
    total_.runs += count.runs;
    total_.failures += count.failures;
    total_.not_reached += count.not_reached;
    total_.skipped.insert(total_.skipped.end(), count.skipped.begin(), count.skipped.end());
  }

  const Options& options_;
  cudaStream_t stream_;
  Clock::time_point end_;
  Count total_;
};

// Throws CaseError for text that is no number, and for names that are not known.
Options parse(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--no-large") {
      options.large = false;
      continue;
    }
    if (i + 1 == arguments.size()) throw harness::CaseError(name + ": unknown, or a value is missing");
    const std::string& value = arguments[++i];
    if (name == "--out") {
      options.out = std::fopen(value.c_str(), "w");
      if (options.out == nullptr) throw harness::CaseError("cannot write " + value);
    } else if (name == "--seconds") {
      options.seconds = static_cast<double>(harness::parse_integer(value));
    } else if (name == "--patience") {
      options.patience = static_cast<double>(harness::parse_integer(value));
    } else if (name == "--random") {
      options.random = harness::parse_integer(value);
    } else if (name == "--registered") {
      options.registered = harness::parse_integer(value);
    } else if (name == "--memory") {
      if (value != "managed" && value != "pinned" && value != "both")
        throw harness::CaseError("--memory: '" + value + "' is none of: managed, pinned, both");
      if (value != "both") options.memories = {value};
    } else if (name == "--operator") {
      if (harness::find_operator(value) == nullptr)
        throw harness::CaseError("--operator: no operator '" + value + "'");
      options.operators.push_back(value);
    } else if (name == "--case") {
      harness::resolve(value);
      options.one_case = value;
      options.large = false;
    } else {
      throw harness::CaseError(name + ": unknown");
    }
  }
  return options;
}

int main_of(const std::vector<std::string>& arguments) {
  const Options options = parse(arguments);
  int devices = 0;
  cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices == 0) error = cudaErrorNoDevice;
  if (error == cudaSuccess) error = cudaSetDevice(0);
  if (error != cudaSuccess) {
    std::fprintf(stderr, "skipped: cuda:0: %s\n", cudaGetErrorString(error));
    return kNoGpu;
  }
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  Check check(options, stream);
  try {
    for (const std::string& memory : options.memories) check.run(memory);
    if (options.large) check.run_large();
  } catch (const CudaError& problem) {
    check.note_failure(problem.what());
  }
  return check.finish();
}

}  // namespace
}  // namespace kvferry::gpu

int main(int argc, char** argv) {
  try {
    return kvferry::gpu::main_of({argv + 1, argv + argc});
  } catch (const kvferry::harness::CaseError& error) {
    std::fprintf(stderr, "kvferry_gpu_cases: %s\n%s", error.what(), kvferry::gpu::kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvferry_gpu_cases: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
