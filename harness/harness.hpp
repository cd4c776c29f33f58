// SPDX-License-Identifier: Apache-2.0
//
// The harness: runs a case with every implementation of its operator, every thread count and every way to
// call, and holds the result against the oracle.
//
// Checked each time: the Status; every byte of every output's storage, padding and untouched rows included;
// that inputs and the bytes around all buffers did not change; the ErrorRecord under IndexPolicy::kReport. A
// refusal must have the expected code, name what the oracle names, and leave everything as it was.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/case.hpp"
#include "harness/instance.hpp"
#include "kvferry/context.hpp"
#include "kvferry/plan.hpp"

namespace kvferry::harness {

struct RegisteredCase {
  const char* name;   // "gather/len0_in_middle"
  const char* text;   // may stand for several cases: see case.hpp
  bool slow = false;  // takes seconds: not in `make test`
};

// One row of the registry.
struct OperatorInfo {
  Operator op;
  const char* name;
  const char* summary;  // one line
  std::span<const KeyHelp> keys;
  std::span<const RegisteredCase> cases;
  std::unique_ptr<Instance> (*make)(const Case&);  // throws CaseError
  Case (*random_case)(std::uint64_t seed);         // small; for property tests and fuzzing
  std::vector<std::string> (*implementations)();   // in the order in which they are tried
};

struct Failure {
  std::string what;
  std::string tensor;               // of the first wrong byte, if that is what is wrong
  std::vector<std::int64_t> index;  // its element; empty: a byte outside the view
  int seen = 0;
  int expected = 0;
  std::string implementation;
  int threads = 0;
  std::string via;
  std::string repeat;  // the command
};

struct Report {
  std::string case_text;
  std::int64_t runs = 0;
  std::vector<std::string> ran;      // implementations
  std::vector<std::string> skipped;  // "avx2: this CPU has no AVX2"
  std::optional<Failure> failure;    // the first; nothing runs after it
  bool bad_case = false;             // the failure is in the case's text: nothing ran

  bool ok() const { return !failure.has_value(); }
  std::string to_string() const;  // for people
};

// A device that cases run on in place of this CPU.
class CaseDevice {
 public:
  CaseDevice() = default;
  CaseDevice(const CaseDevice&) = delete;
  CaseDevice& operator=(const CaseDevice&) = delete;
  virtual ~CaseDevice() = default;

  virtual Context make_context(const ContextOptions& options) = 0;
  // Why a case cannot run there, empty if it can: it is skipped, and counted.
  virtual std::string why_not(const Instance& instance) const = 0;
  // Makes memory of the host the device's until the result dies.
  struct Use {
    bool contested =
        false;            // the case leaves open what some of the bytes are: several threads may write them
    bool pinned = false;  // memory of the host that the device has mapped: its address there must be asked
  };
  virtual std::shared_ptr<void> lend(std::byte* data, std::int64_t bytes, Use use) = 0;
  // Waits for all that was launched. What went wrong, empty for nothing.
  virtual std::string finish() = 0;
};

// Keeps contexts (and their threads) from case to case. For one thread.
class Runner {
 public:
  explicit Runner(std::vector<int> threads = {1, 2, 3}) : default_threads_(std::move(threads)) {}
  // Every case on the device, by its one implementation, "cuda": `impl`, `threads` and `via` of a case are
  // those of the CPU and count for nothing. The device must outlive the runner.
  explicit Runner(CaseDevice& device) : device_(&device), default_threads_{1} {}

  // A case that cannot be made is a failure too.
  Report run(const OperatorInfo& info, const Case& given);

  // Over the life of the runner.
  std::int64_t cases() const { return cases_; }
  std::int64_t runs() const { return runs_; }
  const std::map<std::string, std::int64_t>& runs_by_implementation() const { return by_implementation_; }
  const std::map<std::string, std::int64_t>& skips() const { return skips_; }
  std::string summary() const;

 private:
  const Context& context(const std::string& implementation, int threads, Stream* stream, bool streaming);

  CaseDevice* device_ = nullptr;  // null: this CPU
  std::vector<int> default_threads_;
  Stream stream_;  // before the contexts that use it
  std::map<std::string, Context> contexts_;
  std::int64_t cases_ = 0;
  std::int64_t runs_ = 0;
  std::map<std::string, std::int64_t> by_implementation_;
  std::map<std::string, std::int64_t> skips_;
};

// True if `word` occurs in `text` not as a part of a longer word or number.
bool contains_word(std::string_view text, std::string_view word);
// The element of the tensor that holds this byte of its storage.
std::optional<std::vector<std::int64_t>> find_element(const Tensor& tensor, std::int64_t byte);

struct TimingOptions {
  int samples = 11;
  double sample_seconds = 2e-3;  // a sample repeats the call until it lasts this long
  std::uint64_t seed = 1;        // of the order in which variants take turns
};

struct Timing {
  std::string case_text;
  std::string implementation;
  int threads = 0;
  std::int64_t bytes = 0;  // payload of one call, counted once
  std::int64_t calls_per_sample = 0;
  int samples = 0;
  int disturbed = 0;  // samples thrown away because a thread was kept waiting
  double plan_seconds = 0;
  double median_seconds = 0;  // of one call
  double least_seconds = 0;
  double most_seconds = 0;
  double gb_per_second = 0;  // bytes / median_seconds / 1e9
};

// Verifies the case, then times `impl` x `threads` of it (default: the implementation that is picked, all
// processors), in turns in random order. Throws CaseError if the case is wrong, refused, or fails.
std::vector<Timing> time_case(const OperatorInfo& info, const Case& what, const TimingOptions& options = {});

}  // namespace kvferry::harness
