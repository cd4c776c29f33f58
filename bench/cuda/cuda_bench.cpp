// SPDX-License-Identifier: Apache-2.0
//
// kvferry_cuda_bench: every row of rows.cpp on a GPU, ours beside the others in turns in random order, with
// what it should reach. A row is timed only after its result was right. Writes the whole table again after
// each row, so that what was measured stays if the time is over.
//
// Exit: 0 measured (whatever was reached); 1 a result was wrong or CUDA failed; 2 wrong arguments; 77 no GPU.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cuda/problem.hpp"
#include "bench/cuda/rows.hpp"

namespace kvferry::bench::gpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNoGpu = 77;
// Several times the L2 cache, and long enough for the host to enqueue a sample meanwhile.
constexpr std::int64_t kFlushBytes = std::int64_t{512} << 20;
constexpr std::int64_t kLinkBytes = std::int64_t{256} << 20;

const char* const kUsage =
    R"(kvferry_cuda_bench [--out FILE] [--seconds N] [--samples N] [--only TEXT] [--list]
  --out      the table in JSON (standard output)
  --seconds  begin no row after so long (120)
  --samples  of each variant of a row, at least 20 (25)
  --only     rows whose name has this text
  --list     names and problems of the rows, and nothing is measured
)";

struct Options {
  std::string out;
  double seconds = 120;
  int samples = 25;
  std::string only;
  bool list = false;
};

std::string format(const char* form, double value) {
  char text[64];
  std::snprintf(text, sizeof text, form, value);
  return text;
}
std::string number(double value) {
  return format("%.6g", value);
}
std::string quoted(std::string_view text) {
  std::string to = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') to += '\\';
    to += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return to + '"';
}

struct Samples {
  std::vector<double> values;
  double median() const { return quantile(0.5); }
  double least() const { return *std::min_element(values.begin(), values.end()); }
  double most() const { return *std::max_element(values.begin(), values.end()); }
  double quantile(double q) const {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(std::lround(q * static_cast<double>(sorted.size() - 1)))];
  }
};

struct Measured {
  Samples gpu, submit, end_to_end;  // microseconds of one call
};

class Event {
 public:
  Event() { require(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { require(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  double microseconds_until(const Event& end) const {
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, event_, end.event_), "cudaEventElapsedTime");
    return double{milliseconds} * 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// What one call launches, as a graph has it: it need not be asked of the library.
struct Launches {
  std::int64_t kernels = 0, most_blocks = 0, others = 0;
  std::string why_not;  // there is no graph
};

Launches launches_of(const Variant& variant, cudaStream_t stream) {
  Launches seen;
  using GetParams = CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*);
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion("cuGraphKernelNodeGetParams", &entry, 12000, cudaEnableDefault,
                                       &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    seen.why_not = "no cuGraphKernelNodeGetParams";
    return seen;
  }
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  try {
    variant.call();
  } catch (const std::exception& error) {
    seen.why_not = error.what();
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream, &graph);
  if (error != cudaSuccess) {
    cudaGetLastError();
    seen.why_not = cudaGetErrorString(error);
    return seen;
  }
  std::size_t count = 0;
  require(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) require(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes");
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    require(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
    if (type != cudaGraphNodeTypeKernel) {
      ++seen.others;
      continue;
    }
    ++seen.kernels;
    CUDA_KERNEL_NODE_PARAMS params{};
    if (reinterpret_cast<GetParams>(entry)(node, &params) == CUDA_SUCCESS)
      seen.most_blocks =
          std::max(seen.most_blocks, std::int64_t{params.gridDimX} * std::int64_t{params.gridDimY} *
                                         std::int64_t{params.gridDimZ});
  }
  require(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return seen;
}

class Bench {
 public:
  Bench(const Options& options, Gpu gpu)
      : options_(options), gpu_(gpu), flush_(on_device(kFlushBytes)), random_(1), start_(Clock::now()) {}

  void run() {
    cudaDeviceProp device{};
    require(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    device_ = device.name;
    measure_link();
    for (const Row& row : rows()) {
      if (std::string_view(row.name).find(options_.only) == std::string_view::npos) continue;
      if (seconds() > options_.seconds) {
        add(row, R"("not_reached": true)");
        ++not_reached_;
        continue;
      }
      try {
        measure(row);
      } catch (const Unavailable& error) {
        add(row, "\"skipped\": " + quoted(error.what()));
      } catch (const CudaError& error) {
        add(row, "\"failed\": " + quoted(error.what()));
        ++failures_;
        write();
        return;  // what CUDA says once it says for ever
      } catch (const std::exception& error) {
        add(row, "\"failed\": " + quoted(error.what()));
        ++failures_;
      }
      write();
    }
    done_ = true;
    write();
  }
  int failures() const { return failures_; }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  void flush() {
    require(cudaMemsetAsync(flush_.data(), static_cast<int>(random_.below(256)), to_size(kFlushBytes),
                            gpu_.stream),
            "cudaMemsetAsync");
  }

  // The host enqueues it all while the flush runs, so that the GPU never waits for the host.
  double sample(const Problem& problem, const Variant& variant) {
    flush();
    if (!problem.cold) variant.call();
    begin_.record(gpu_.stream);
    for (int i = 0; i < problem.calls; ++i) variant.call();
    end_.record(gpu_.stream);
    require(cudaStreamSynchronize(gpu_.stream), variant.name.c_str());
    return begin_.microseconds_until(end_) / problem.calls;
  }

  // From an idle GPU: what the call costs the host, and when its result is there.
  void sample_host(const Variant& variant, Measured& to) {
    require(cudaStreamSynchronize(gpu_.stream), "cudaStreamSynchronize");
    const auto microseconds = [](Clock::duration d) {
      return std::chrono::duration<double, std::micro>(d).count();
    };
    const auto start = Clock::now();
    variant.call();
    const auto submitted = Clock::now();
    require(cudaStreamSynchronize(gpu_.stream), variant.name.c_str());
    to.submit.values.push_back(microseconds(submitted - start));
    to.end_to_end.values.push_back(microseconds(Clock::now() - start));
  }

  void measure_link() {
    const Buffer to = on_device(kLinkBytes);
    Samples samples;
    for (int i = 0; i < 12; ++i) {
      begin_.record(gpu_.stream);
      require(
          cudaMemcpyAsync(to.data(), host_pool().data(), to_size(kLinkBytes), cudaMemcpyDefault, gpu_.stream),
          "cudaMemcpyAsync");
      end_.record(gpu_.stream);
      require(cudaStreamSynchronize(gpu_.stream), "a large copy from the host");
      if (i >= 2) samples.values.push_back(begin_.microseconds_until(end_));
    }
    link_ = static_cast<double>(kLinkBytes) / samples.median() * 1e6;
  }

  void measure(const Row& row) {
    const std::unique_ptr<Problem> problem = make_problem(Spec(row.problem), gpu_);
    // What was uploaded went by the default stream, which ours does not wait for.
    require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (const std::string wrong = problem->verify(); !wrong.empty()) {
      add(row, "\"failed\": " + quoted(wrong));
      ++failures_;
      return;
    }
    const Launches launches = launches_of(problem->variants[0], gpu_.stream);
    const std::size_t n = problem->variants.size();
    std::vector<Measured> measured(n);
    for (const Variant& variant : problem->variants) sample(*problem, variant);  // warms up
    for (int s = 0; s < options_.samples; ++s) {
      for (const std::int64_t v : random_.permutation(static_cast<std::int64_t>(n)))
        measured[to_size(v)].gpu.values.push_back(sample(*problem, problem->variants[to_size(v)]));
    }
    if (problem->calls > 1) {
      for (int s = 0; s < 2 * options_.samples; ++s) {
        for (const std::int64_t v : random_.permutation(static_cast<std::int64_t>(n)))
          sample_host(problem->variants[to_size(v)], measured[to_size(v)]);
      }
    }
    add(row, describe(*problem, measured, launches) + ", \"targets\": [" +
                 targets(row, *problem, measured, launches) + "]");
  }

  std::string describe(const Problem& problem, const std::vector<Measured>& measured,
                       const Launches& launches) {
    std::string text = "\"bytes\": " + std::to_string(problem.bytes) +
                       ", \"cold\": " + (problem.cold ? "true" : "false") +
                       ", \"calls_per_sample\": " + std::to_string(problem.calls) +
                       ", \"samples\": " + std::to_string(options_.samples);
    if (launches.why_not.empty()) {
      text += ", \"kernels\": " + std::to_string(launches.kernels) +
              ", \"most_blocks\": " + std::to_string(launches.most_blocks) +
              ", \"other_nodes\": " + std::to_string(launches.others);
    } else {
      text += ", \"no_graph\": " + quoted(launches.why_not);
    }
    text += ", \"variants\": {";
    for (std::size_t v = 0; v < measured.size(); ++v) {
      const Variant& variant = problem.variants[v];
      const Measured& m = measured[v];
      const double us = m.gpu.median();
      text += (v == 0 ? "" : ", ") + quoted(variant.name) + ": {\"us\": " + number(us) +
              ", \"least_us\": " + number(m.gpu.least()) + ", \"most_us\": " + number(m.gpu.most());
      if (variant.bytes > 0)
        text += ", \"gb_per_second\": " + number(static_cast<double>(variant.bytes) / us / 1e3);
      if (!m.submit.values.empty())
        text += ", \"submit_us\": " + number(m.submit.median()) +
                ", \"end_to_end_us\": " + number(m.end_to_end.median());
      if (v > 0) text += ", \"over_ours\": " + number(us / measured[0].gpu.median());
      text += '}';
    }
    return text + "}";
  }

  struct Outcome {
    std::string what;
    double value;
    bool met;
  };

  Outcome outcome(const Target& target, const Problem& problem, const std::vector<Measured>& measured,
                  const Launches& launches) const {
    const double ours = measured[0].gpu.median();
    std::size_t peer = 0;
    for (std::size_t v = 0; v < measured.size(); ++v) {
      if (problem.variants[v].name == target.peer) peer = v;
    }
    const double theirs = measured[peer].gpu.median();
    const auto bytes = static_cast<double>(problem.bytes);
    const std::string name = target.peer;
    using Kind = Target::Kind;
    const auto at_least = [&](std::string what, double value) {
      return Outcome{std::move(what), value, value >= target.value};
    };
    const auto at_most = [&](std::string what, double value) {
      return Outcome{std::move(what), value, value <= target.value};
    };
    switch (target.kind) {
      case Kind::kNone:
        break;
      case Kind::kShareOfPeer:
        return at_least(name + " / ours, at least", theirs / ours);
      case Kind::kShareOfPeak:
        return at_least("share of 4.8 TB/s read and written, at least",
                        2 * bytes / ours * 1e6 / kPeakBytesPerSecond);
      case Kind::kShareOfLink:
        return at_least("share of the link, at least", bytes / ours * 1e6 / link_);
      case Kind::kMostUs:
        return at_most("us, at most", ours);
      case Kind::kTimesPeer:
        return at_most("ours / " + name + ", at most", ours / theirs);
      case Kind::kTimesBest: {
        double best = std::numeric_limits<double>::infinity();
        for (std::size_t v = 1; v < measured.size(); ++v) best = std::min(best, measured[v].gpu.median());
        return at_most("ours / the best of the others, at most", ours / best);
      }
      case Kind::kPerByte:
        return at_most("ours / " + name + " per byte, at most",
                       ours / bytes / (theirs / static_cast<double>(problem.variants[peer].bytes)));
      case Kind::kMostBlocks:
        if (!launches.why_not.empty())
          return {"blocks of a launch, at most: " + launches.why_not,
                  std::numeric_limits<double>::quiet_NaN(), false};
        return at_most("blocks of a launch, at most", static_cast<double>(launches.most_blocks));
      case Kind::kScheduleLink:
        return at_most(
            "ours / (schedule + missed bytes / link), at most",
            ours / (measured[1].gpu.median() + static_cast<double>(problem.missed_bytes) / link_ * 1e6));
      case Kind::kScheduleUs:
        return at_most("us of the schedule, at most", measured[1].gpu.median());
    }
    return {"", 0, false};
  }

  std::string targets(const Row& row, const Problem& problem, const std::vector<Measured>& measured,
                      const Launches& launches) {
    std::string text;
    bool any = false;  // of those that stand for each other
    for (const Target& target : row.targets) {
      if (target.kind == Target::Kind::kNone) continue;
      const Outcome seen = outcome(target, problem, measured, launches);
      text += (text.empty() ? "{" : ", {") + std::string("\"what\": ") + quoted(seen.what) +
              ", \"value\": " + (seen.value == seen.value ? number(seen.value) : "null") +
              ", \"target\": " + number(target.value) + ", \"met\": " + (seen.met ? "true" : "false") +
              (target.or_next ? ", \"or_next\": true}" : "}");
      any = any || seen.met;
      if (target.or_next) continue;
      ++wanted_;
      met_ += any ? 1 : 0;
      any = false;
    }
    return text;
  }

  void add(const Row& row, const std::string& members) {
    const std::string text =
        "{\"name\": " + quoted(row.name) + ", \"problem\": " + quoted(row.problem) + ", " + members + "}";
    std::fprintf(stderr, "%s\n", text.c_str());
    table_ += (table_.empty() ? "    " : ",\n    ") + text;
  }

  // A new file in the place of the old: whoever ends this leaves a whole one.
  void write() {
    const std::string text =
        "{\n  \"device\": " + quoted(device_) +
        ",\n  \"peak_bytes_per_second\": " + number(kPeakBytesPerSecond) +
        ",\n  \"link_bytes_per_second\": " + number(link_) +
        ",\n  \"complete\": " + (done_ && not_reached_ == 0 ? "true" : "false") +
        ",\n  \"not_reached\": " + std::to_string(not_reached_) +
        ",\n  \"failures\": " + std::to_string(failures_) + ",\n  \"targets_met\": " + std::to_string(met_) +
        ",\n  \"targets\": " + std::to_string(wanted_) + ",\n  \"rows\": [\n" + table_ + "\n  ]\n}\n";
    if (options_.out.empty()) {
      if (done_) std::fputs(text.c_str(), stdout);
      return;
    }
    const std::string fresh = options_.out + ".new";
    std::FILE* file = std::fopen(fresh.c_str(), "w");
    const bool written = file != nullptr && std::fputs(text.c_str(), file) >= 0;
    if (file == nullptr || std::fclose(file) != 0 || !written ||
        std::rename(fresh.c_str(), options_.out.c_str()) != 0)
      throw std::runtime_error("cannot write " + options_.out);
  }

  const Options& options_;
  Gpu gpu_;
  Buffer flush_;
  Event begin_, end_;
  Random random_;
  Clock::time_point start_;
  std::string device_, table_;
  double link_ = 0;
  int failures_ = 0, not_reached_ = 0, wanted_ = 0, met_ = 0;
  bool done_ = false;
};

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--list") {
      options.list = true;
      continue;
    }
    if (i + 1 == arguments.size()) throw SpecError(name + ": unknown, or a value is missing");
    const std::string& value = arguments[++i];
    if (name == "--out") {
      options.out = value;
    } else if (name == "--only") {
      options.only = value;
    } else if (name == "--seconds") {
      options.seconds = static_cast<double>(Spec("a:n=" + value).integer("n", 0));
    } else if (name == "--samples") {
      options.samples = static_cast<int>(Spec("a:n=" + value).integer("n", 0));
      if (options.samples < 20) throw SpecError("--samples: fewer than 20 say nothing");
    } else {
      throw SpecError(name + ": unknown");
    }
  }
  return options;
}

int main_of(const std::vector<std::string>& arguments) {
  const Options options = parse(arguments);
  if (options.list) {
    for (const Row& row : rows()) std::printf("%s\t%s\n", row.name, row.problem);
    return EXIT_SUCCESS;
  }
  int devices = 0;
  cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices == 0) error = cudaErrorNoDevice;
  if (error == cudaSuccess) error = cudaSetDevice(0);
  if (error != cudaSuccess) {
    std::fprintf(stderr, "skipped: cuda:0: %s\n", cudaGetErrorString(error));
    return kNoGpu;
  }
  Gpu gpu;
  require(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking), "cudaStreamCreate");
  Bench bench(options, gpu);
  bench.run();
  return bench.failures() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace kvferry::bench::gpu

int main(int argc, char** argv) {
  try {
    return kvferry::bench::gpu::main_of({argv + 1, argv + argc});
  } catch (const kvferry::bench::SpecError& error) {
    std::fprintf(stderr, "kvferry_cuda_bench: %s\n%s", error.what(), kvferry::bench::gpu::kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvferry_cuda_bench: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
