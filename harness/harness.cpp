// SPDX-License-Identifier: Apache-2.0
#include "harness/harness.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <new>
#include <utility>

#include "harness/fault.hpp"
#include "harness/int128.hpp"

namespace kvferry::harness {
namespace {

// One way to run a case.
struct Variant {
  std::string implementation;  // empty: not forced
  int threads = 1;
  std::string via;  // run, stream, call
};

Failure because(std::string what) {
  Failure failure;
  failure.what = std::move(what);
  return failure;
}

std::string repeat_command(Case what, const Variant& variant) {
  if (!variant.implementation.empty()) what.set("impl", variant.implementation);
  what.set("threads", variant.threads);
  what.set("via", variant.via);
  return fmt::format("kvferry run '{}'", what.print());
}

bool is_word_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Everything wrong with memory after a run, or nothing.
class MemoryCheck {
 public:
  explicit MemoryCheck(const Instance& instance) : instance_(instance) {}

  std::optional<Failure> check(bool must_be_untouched) const {
    for (std::size_t i = 0; i < instance_.storages.size(); ++i) {
      const Storage& storage = instance_.storages[i];
      // Before any read of ours makes pages present.
      if (storage.output && !must_be_untouched && storage.live.placement() == Placement::kFolded) {
        if (const auto unused = storage.live.first_unused()) {
          Failure failure = at(i, *unused);
          failure.what = fmt::format("{}: nothing was written to the page at byte {}", storage.name, *unused);
          return failure;
        }
      }
      const bool compare_expected = storage.output && !must_be_untouched;
      const Memory& expected = compare_expected ? storage.expected : storage.initial;
      const auto& open = compare_expected ? storage.unspecified : std::vector<std::uint8_t>{};
      if (const auto difference = first_difference(storage.live, expected, open)) {
        Failure failure = at(i, difference->offset);
        failure.seen = difference->seen;
        failure.expected = difference->expected;
        const char* kind = compare_expected ? "wrong byte"
                           : storage.output ? "refused, but written"
                                            : "input changed";
        failure.what = fmt::format("{}: byte {} of the storage, {}: seen 0x{:02x}, expected 0x{:02x}", kind,
                                   difference->offset, failure.what, difference->seen, difference->expected);
        return failure;
      }
      if (const auto damage = storage.live.damage()) {
        Failure failure;
        failure.tensor = storage.name;
        failure.seen = damage->seen;
        failure.expected = damage->expected;
        const std::int64_t beyond =
            damage->offset < 0 ? -damage->offset : damage->offset - storage.live.size() + 1;
        failure.what = fmt::format(
            "write outside: {}: byte {} {} its memory: seen 0x{:02x}, expected 0x{:02x}", storage.name,
            beyond, damage->offset < 0 ? "before" : "behind", damage->seen, damage->expected);
        return failure;
      }
    }
    return std::nullopt;
  }

 private:
  // Tensor and index of a storage byte; `what` describes them.
  Failure at(std::size_t storage, std::int64_t byte) const {
    Failure failure;
    failure.tensor = instance_.storages[storage].name;
    failure.what = fmt::format("in no tensor of {}", failure.tensor);
    for (const Tensor& tensor : instance_.tensors) {
      if (tensor.storage != storage) continue;
      if (auto index = find_element(tensor, byte)) {
        failure.tensor = tensor.name;
        failure.index = std::move(*index);
        failure.what = fmt::format("{}[{}]", tensor.name, fmt::join(failure.index, ", "));
        break;
      }
    }
    return failure;
  }

  const Instance& instance_;
};

std::optional<Failure> check_status(const Instance& instance, const Status& status, const char* op) {
  const Expectation& expect = instance.expect;
  Failure failure;
  if (status.code() != expect.code) {
    failure.what = fmt::format(
        "status {} \"{}\", expected {}{}", to_string(status.code()), status.message(), to_string(expect.code),
        expect.words.empty() ? "" : fmt::format(" naming {}", fmt::join(expect.words, " | ")));
    return failure;
  }
  if (status.ok()) return std::nullopt;
  std::vector<std::string> words = expect.words;
  words.emplace_back(op);
  for (const std::string& word : words) {
    if (contains_word(status.message(), word)) continue;
    failure.what = fmt::format("message \"{}\" does not name '{}' (expected to be named: {})",
                               status.message(), word, fmt::join(words, " | "));
    return failure;
  }
  return std::nullopt;
}

std::optional<Failure> check_record(const Instance& instance, const ErrorRecord& seen, Operator op) {
  // Nothing but kReport may touch the record.
  const bool used =
      instance.record.has_value() && instance.expect.code == StatusCode::kOk && instance.record->bad > 0;
  const ExpectedRecord expected = used ? *instance.record : ExpectedRecord{};
  // A record of nothing may or may not name the operator.
  const std::uint32_t expected_op = used ? static_cast<std::uint32_t>(op)
                                    : seen.op == static_cast<std::uint32_t>(op) ? seen.op
                                                                                : 0;
  if (seen.bad == expected.bad && seen.batch == expected.batch && seen.column == expected.column &&
      seen.id == expected.id && seen.which == expected.which && seen.op == expected_op) {
    return std::nullopt;
  }
  Failure failure;
  failure.what = fmt::format(
      "error record: seen bad {} batch {} column {} id {} which {} op {}, expected bad {} batch {} column {} "
      "id {} "
      "which {} op {}",
      seen.bad, seen.batch, seen.column, seen.id, seen.which, seen.op, expected.bad, expected.batch,
      expected.column, expected.id, expected.which, expected_op);
  return failure;
}

// A workspace of exactly the planned size, at an odd address, watched on both sides.
struct WatchedWorkspace {
  explicit WatchedWorkspace(std::int64_t bytes) : memory(bytes, Placement::kGuarded, 1) {}
  Workspace get() const { return {memory.size() > 0 ? memory.data() : nullptr, memory.size()}; }
  Memory memory;
};

// The memory of a case on its device.
class Lent {
 public:
  Lent(CaseDevice* device, const Instance& instance) : device_(device) {
    for (std::size_t i = 0; i < instance.storages.size(); ++i) {
      const auto& open = instance.storages[i].unspecified;
      add(instance.storages[i].live,
          {std::find(open.begin(), open.end(), std::uint8_t{1}) != open.end(), instance.pinned(i)});
    }
  }
  void add(const Memory& memory, CaseDevice::Use use = {}) {
    if (memory.size() > 0) lent_.push_back(device_->lend(memory.data(), memory.size(), use));
  }

 private:
  CaseDevice* device_;
  std::vector<std::shared_ptr<void>> lent_;
};

// What a case means where the host sees no indices: kReject and checked modes do not exist there, and what is
// refused when it runs writes nothing.
bool is_for_the_host(const Case& what) {
  return what.text("policy", "") == "reject" || what.flag("checked", false);
}

// One run on a device.
std::optional<Failure> run_on_device(const OperatorInfo& info, const Case& what, Instance& instance,
                                     const std::string& via, const Context& context, CaseDevice& device) {
  Memory record_memory(sizeof(ErrorRecord), Placement::kGuarded);
  auto* record = new (record_memory.data()) ErrorRecord;
  Lent lent(&device, instance);
  lent.add(record_memory);
  const Result<Plan> plan = instance.plan(context);
  const auto untouched = [&]() -> std::optional<Failure> {
    if (std::string wrong = device.finish(); !wrong.empty()) return because(std::move(wrong));
    if (auto failure = MemoryCheck(instance).check(true)) return failure;
    return record->bad == 0 ? std::nullopt : std::optional(because("refused, but recorded"));
  };
  if (!plan.ok()) {
    const bool foreign = is_for_the_host(what) && plan.status().code() == StatusCode::kUnimplemented;
    if (!foreign && instance.expect.at == Expectation::At::kRun)
      return because(
          fmt::format("plan() refused: {}: {}", to_string(plan.status().code()), plan.status().message()));
    if (auto failure = foreign ? std::nullopt : check_status(instance, plan.status(), info.name))
      return failure;
    return untouched();
  }
  if (is_for_the_host(what)) return because("plan() accepted what only the host can check");
  const bool refused = instance.expect.code != StatusCode::kOk;
  if (refused && instance.expect.at == Expectation::At::kPlan) {
    return because(fmt::format("plan() accepted it, expected {} naming {}", to_string(instance.expect.code),
                               fmt::join(instance.expect.words, " | ")));
  }
  Status status;
  std::optional<WatchedWorkspace> workspace;
  if (via == "call") {
    status = instance.call(record, context);
  } else {
    workspace.emplace(plan->workspace_bytes());
    lent.add(workspace->memory);
    status = instance.run(plan.value(), workspace->get(), record, context);
  }
  if (std::string wrong = device.finish(); !wrong.empty()) return because(std::move(wrong));
  if (!status.ok())
    return because(fmt::format("{}: {}, expected ok", to_string(status.code()), status.message()));
  if (workspace) {
    if (const auto damage = workspace->memory.damage()) {
      return because(
          fmt::format("workspace: write at byte {} of {}", damage->offset, workspace->memory.size()));
    }
  }
  if (record_memory.damage()) return because("error record: write outside");
  if (refused) return untouched();
  if (auto failure = MemoryCheck(instance).check(false)) return failure;
  return check_record(instance, *record, info.op);
}

std::optional<Failure> run_variant(const OperatorInfo& info, Instance& instance, const Variant& variant,
                                   const Context& context, Stream& stream, const std::string& expect_impl,
                                   std::string& implementation, std::string& skip) {
  ErrorRecord record;
  Status status;
  if (variant.via == "call") {
    status = instance.call(&record, context);
    if (status.ok()) implementation = variant.implementation;
    if (status.ok() && context.options().stream != nullptr) status = stream.wait();
  } else {
    const Result<Plan> plan = instance.plan(context);
    if (!plan.ok()) {
      if (plan.status().code() == StatusCode::kUnavailable && !variant.implementation.empty()) {
        skip = plan.status().message();
        return std::nullopt;
      }
      if (instance.expect.code == StatusCode::kOk || instance.expect.at == Expectation::At::kPlan) {
        if (auto failure = check_status(instance, plan.status(), info.name)) return failure;
      } else {
        return because(
            fmt::format("plan() refused: {}: {}", to_string(plan.status().code()), plan.status().message()));
      }
      return MemoryCheck(instance).check(true);
    }
    if (instance.expect.code != StatusCode::kOk && instance.expect.at == Expectation::At::kPlan) {
      return because(fmt::format("plan() accepted it, expected {} naming {}", to_string(instance.expect.code),
                                 fmt::join(instance.expect.words, " | ")));
    }
    implementation = plan->implementation();
    if (!variant.implementation.empty() && implementation != variant.implementation) {
      return because(
          fmt::format("plan() picked '{}', forced was '{}'", implementation, variant.implementation));
    }
    if (variant.implementation.empty() && !expect_impl.empty() && implementation != expect_impl) {
      return because(fmt::format("plan() picked '{}', expected '{}'\n{}", implementation, expect_impl,
                                 plan->describe()));
    }
    if (plan->op() != info.op) return because("plan().op() names another operator");
    const WatchedWorkspace workspace(plan->workspace_bytes());
    status = instance.run(plan.value(), workspace.get(), &record, context);
    if (context.options().stream != nullptr) {
      const Status waited = stream.wait();
      if (!status.ok() && instance.expect.at == Expectation::At::kRun &&
          instance.expect.code == StatusCode::kIndex) {
        return because(
            fmt::format("index values were checked when the work was enqueued: {}", status.message()));
      }
      if (status.ok()) status = waited;
      if (const Status again = stream.wait(); !again.ok()) {
        return because(fmt::format("a refusal came twice from wait(): {}", again.message()));
      }
    }
    if (const auto damage = workspace.memory.damage()) {
      return because(
          fmt::format("workspace: write at byte {} of {}", damage->offset, workspace.memory.size()));
    }
  }
  if (auto failure = check_status(instance, status, info.name)) return failure;
  if (auto failure = MemoryCheck(instance).check(!status.ok())) return failure;
  return check_record(instance, record, info.op);
}

}  // namespace

bool contains_word(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const char before = at == 0 ? ' ' : text[at - 1];
    const char after = at + word.size() == text.size() ? ' ' : text[at + word.size()];
    const bool number = !word.empty() && std::isdigit(static_cast<unsigned char>(word.front())) != 0;
    if (is_word_character(word.front()) && (is_word_character(before) || (number && before == '-'))) continue;
    if (is_word_character(word.back()) && is_word_character(after)) continue;
    return true;
  }
  return false;
}

std::optional<std::vector<std::int64_t>> find_element(const Tensor& tensor, std::int64_t byte) {
  const std::size_t rank = tensor.shape.size();
  for (const std::int64_t n : tensor.shape) {
    if (n == 0) return std::nullopt;
  }
  std::vector<std::size_t> axes;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    if (tensor.shape[axis] > 1) axes.push_back(axis);
  }
  const auto stride = [&](std::size_t axis) { return static_cast<Int128>(tensor.layout.strides[axis]); };
  const auto magnitude = [&](std::size_t axis) { return stride(axis) < 0 ? -stride(axis) : stride(axis); };
  std::sort(axes.begin(), axes.end(),
            [&](std::size_t a, std::size_t b) { return magnitude(a) > magnitude(b); });
  // What the axes behind position i can still add.
  std::vector<Int128> low(axes.size() + 1);
  std::vector<Int128> high(axes.size() + 1);
  for (std::size_t i = axes.size(); i-- > 0;) {
    const Int128 reach = stride(axes[i]) * (tensor.shape[axes[i]] - 1);
    low[i] = low[i + 1] + std::min<Int128>(reach, 0);
    high[i] = high[i + 1] + std::max<Int128>(reach, 0);
  }
  std::vector<std::int64_t> index(rank);
  const std::function<bool(std::size_t, Int128)> search = [&](std::size_t i, Int128 rest) -> bool {
    if (rest < low[i] || rest > high[i]) return false;
    if (i == axes.size()) return rest == 0;
    const std::size_t axis = axes[i];
    const Int128 step = magnitude(axis);
    if (step == 0) {
      index[axis] = 0;
      return search(i + 1, rest);
    }
    // Of all indices only those whose remainder the inner axes can reach.
    const Int128 along = stride(axis) < 0 ? -rest : rest;
    const Int128 slack_low = stride(axis) < 0 ? -high[i + 1] : low[i + 1];
    const Int128 slack_high = stride(axis) < 0 ? -low[i + 1] : high[i + 1];
    Int128 first = std::max<Int128>((along - slack_high) / step - 1, 0);
    const Int128 last = std::min<Int128>((along - slack_low) / step + 1, tensor.shape[axis] - 1);
    for (; first <= last; ++first) {
      index[axis] = static_cast<std::int64_t>(first);
      if (search(i + 1, rest - stride(axis) * first)) return true;
    }
    return false;
  };
  const std::int64_t element = byte / item_bytes(tensor.dtype);
  if (search(0, static_cast<Int128>(element) - tensor.layout.offset)) return index;
  return std::nullopt;
}

std::string Report::to_string() const {
  std::string text;
  if (failure) {
    text = fmt::format("FAILED {}\n  {}\n  implementation {}, threads {}, via {}\n  repeat: {}", case_text,
                       failure->what, failure->implementation.empty() ? "(none)" : failure->implementation,
                       failure->threads, failure->via.empty() ? "(none)" : failure->via, failure->repeat);
  } else {
    text = fmt::format("ok {} ({} runs: {})", case_text, runs, fmt::join(ran, ", "));
  }
  for (const std::string& skip : skipped) text += fmt::format("\n  skipped: {}", skip);
  return text;
}

const Context& Runner::context(const std::string& implementation, int threads, Stream* stream,
                               bool streaming) {
  const std::string key = fmt::format("{}/{}/{}/{}", implementation, threads, stream != nullptr, streaming);
  const auto found = contexts_.find(key);
  if (found != contexts_.end()) return found->second;
  ContextOptions options;
  options.threads = threads;
  options.stream = stream;
  options.implementation = implementation;
  options.streaming = streaming;
  return contexts_.emplace(key, device_ != nullptr ? device_->make_context(options) : Context(options))
      .first->second;
}

Report Runner::run(const OperatorInfo& info, const Case& given) {
  Report report;
  Case what = given;
  if (device_ != nullptr) {
    for (const char* key : {"impl", "expect_impl", "threads", "via"}) what.erase(key);
    what.set("device", "cuda");
  }
  report.case_text = what.print();
  ++cases_;
  const auto fail_early = [&](std::string why) {
    report.failure = because(std::move(why));
    report.failure->repeat = fmt::format("kvferry run '{}'", what.print());
    return report;
  };
  std::unique_ptr<Instance> instance;
  std::vector<std::string> implementations;
  std::vector<std::int64_t> threads;
  std::vector<std::string> via;
  std::string expect_impl;
  bool streaming = false;
  try {
    what.check_known(info.keys, common_keys());
    threads = what.integers("threads", {default_threads_.begin(), default_threads_.end()});
    if (threads.empty()) what.fail("threads", "the list is empty");
    for (const std::int64_t n : threads) {
      if (n < 1 || n > 1024) what.fail("threads", fmt::format("{} is outside [1, 1024]", n));
    }
    via = what.texts("via", {"run", "stream", "call"});
    for (const std::string& way : via) {
      if (way != "run" && way != "stream" && way != "call") {
        what.fail("via", fmt::format("'{}' is none of: run, stream, call", way));
      }
    }
    implementations = what.texts("impl", {});
    const std::vector<std::string> all =
        device_ != nullptr ? std::vector<std::string>{"cuda"} : info.implementations();
    for (const std::string& name : implementations) {
      if (std::find(all.begin(), all.end(), name) == all.end()) {
        what.fail("impl", fmt::format("'{}' is none of: {}", name, fmt::join(all, ", ")));
      }
    }
    const bool forced = !implementations.empty();
    if (!forced) implementations = all;
    expect_impl = what.text("expect_impl", "");
    streaming = what.flag("streaming", false);
    instance = info.make(what);
    what.check_used();

    if (device_ == nullptr && instance->device().type != DeviceType::kCpu)
      what.fail("device", "cases on a CUDA device run in the tests of the CUDA backend");

    if (device_ != nullptr) {
      if (std::string reason = device_->why_not(*instance); !reason.empty()) {
        ++skips_[reason];
        report.skipped.push_back(std::move(reason));
        return report;
      }
    }
    std::vector<Variant> variants;
    const auto has = [&](const char* way) { return std::find(via.begin(), via.end(), way) != via.end(); };
    const int most = static_cast<int>(*std::max_element(threads.begin(), threads.end()));
    if (device_ != nullptr) {
      variants = {{"cuda", 1, "run"}, {"", 1, "call"}};
    } else if (has("run")) {
      for (const std::string& name : implementations) {
        for (const std::int64_t n : threads) variants.push_back({name, static_cast<int>(n), "run"});
      }
      if (!forced) variants.push_back({"", most, "run"});
    }
    for (const char* way : {"stream", "call"}) {
      if (device_ == nullptr && has(way))
        variants.push_back({forced ? implementations.front() : "", most, way});
    }

    std::string skipped;  // the implementation that was skipped last
    for (const Variant& variant : variants) {
      if (!skipped.empty() && variant.implementation == skipped) continue;
      instance->reset();
      // Of the plan that ran. A refusal says nothing of the one that was forced: it may not run here at all.
      std::string implementation = device_ != nullptr ? variant.implementation : "";
      std::string skip;
      const std::string repeat = repeat_command(what, variant);
      std::optional<Failure> failure;
      {
        const FaultReport fault(*instance, repeat);
        Stream* stream = variant.via == "stream" ? &stream_ : nullptr;
        const Context& where = context(variant.implementation, variant.threads, stream, streaming);
        failure = device_ != nullptr ? run_on_device(info, what, *instance, variant.via, where, *device_)
                                     : run_variant(info, *instance, variant, where, stream_, expect_impl,
                                                   implementation, skip);
      }
      if (!skip.empty()) {
        skipped = variant.implementation;
        report.skipped.push_back(skip);
        ++skips_[skip];
        continue;
      }
      if (failure) {
        failure->implementation = implementation.empty() ? variant.implementation : implementation;
        failure->threads = variant.threads;
        failure->via = variant.via;
        failure->repeat = repeat;
        report.failure = std::move(failure);
        return report;
      }
      ++report.runs;
      ++runs_;
      if (!implementation.empty()) {
        ++by_implementation_[implementation];
        if (std::find(report.ran.begin(), report.ran.end(), implementation) == report.ran.end()) {
          report.ran.push_back(implementation);
        }
      }
    }
    if (report.runs == 0) return fail_early("nothing ran: every implementation was skipped");
  } catch (const CaseError& error) {
    report.bad_case = true;
    return fail_early(error.what());
  } catch (const std::bad_alloc&) {
    return fail_early("no memory for the buffers of this case");
  }
  return report;
}

std::string Runner::summary() const {
  std::string text = fmt::format("{} cases, {} runs", cases_, runs_);
  for (const auto& [name, n] : by_implementation_) text += fmt::format(", {} {}", name, n);
  for (const auto& [reason, n] : skips_) text += fmt::format("\n  skipped {} times: {}", n, reason);
  return text;
}

}  // namespace kvferry::harness
