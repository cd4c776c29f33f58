// SPDX-License-Identifier: Apache-2.0
//
// Instance: a case with its memory, its calls into the library and what the oracle expects of them.
//
// An operator's case file makes one:
//   add_storage / add_tensor for everything, index values into arrays(), seal(), the oracle over
//   expected_array() for outputs and array() for inputs, then plan / run / call, expect, record, bytes_moved.
#pragma once

#include <any>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/array.hpp"
#include "harness/case.hpp"
#include "harness/int128.hpp"
#include "harness/layout.hpp"
#include "harness/memory.hpp"
#include "kvferry/context.hpp"
#include "kvferry/plan.hpp"
#include "kvferry/status.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry::harness {

struct Storage {
  std::string name;
  bool output = false;
  Memory live;      // what the library sees
  Memory initial;   // what it holds before a run
  Memory expected;  // outputs: what it must hold after one. Inputs must not change.
  std::vector<std::uint8_t>
      unspecified;  // outputs: non-zero where the operator promises nothing; may be empty
};

struct Tensor {
  std::string name;
  std::size_t storage = 0;
  DType dtype = DType::kUInt8;
  std::vector<std::int64_t> shape;
  Layout layout;
  bool bounded = true;  // the view tells the size of its storage
};

// The oracle's own form of ErrorRecord.
struct ExpectedRecord {
  std::uint64_t bad = 0;
  std::int64_t batch = 0;
  std::int64_t column = 0;
  std::int64_t id = 0;
  std::uint32_t which = 0;
};

struct Expectation {
  enum class At { kPlan, kRun };
  StatusCode code = StatusCode::kOk;
  At at = At::kPlan;               // where a refusal comes from
  std::vector<std::string> words;  // all of them occur in its message
};

// The keys that every operator's cases have.
std::span<const KeyHelp> common_keys();

struct TensorSpec {
  const char* name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::string layout;  // words
};

struct TensorPair {
  std::size_t first = 0;
  std::size_t second = 0;
};

class Instance {
 public:
  // Reads seed, device, pinned, guard, align and bound.
  explicit Instance(const Case& from);
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  std::uint64_t seed() const { return seed_; }
  Device device() const { return device_; }  // of all tensors that are not pinned
  // Whether the tensors of a storage are views of pinned host memory. Those of one storage are alike.
  bool pinned(std::size_t storage) const;

  // Filled with random bytes. Above 1 GiB it is sparse and zero.
  std::size_t add_storage(std::string_view name, bool output, std::int64_t bytes);
  // `bytes` of addresses that all show the same fold_bytes of memory.
  std::size_t add_folded(std::string_view name, bool output, std::int64_t bytes, std::int64_t fold_bytes);
  // A tensor with storage of its own.
  std::size_t add_tensor(std::string_view name, bool output, DType dtype, std::span<const std::int64_t> shape,
                         std::string_view layout_words);
  // A view into the storage of another tensor.
  std::size_t add_tensor_in(std::size_t storage, std::string_view name, DType dtype,
                            std::span<const std::int64_t> shape, const Layout& layout);

  // Each in its own storage or, where the case has `joined_key`, both in one, joined along the axis that it
  // says and laid out as a.layout says. b may be null.
  TensorPair add_pair(const Case& from, const char* joined_key, bool output, const TensorSpec& a,
                      const TensorSpec* b);

  Array array(std::size_t i) const;
  Array expected_array(std::size_t i) const;
  TensorView view(std::size_t i) const;
  // A one-dimensional index tensor, or one of two dimensions row by row. Throws CaseError for a value that
  // the dtype cannot hold.
  void store(std::size_t tensor, std::span<const std::int64_t> values);

  // Of a tensor in sparse memory, which is zero: random bytes for the blocks (indices of axis 0) among `ids`.
  // Others stay as they are.
  void fill_named_blocks(std::size_t tensor, std::span<const std::int64_t> ids);

  // Freezes live as initial and starts expected from it. After it, only the oracle writes.
  void seal();
  // For sparse outputs: the pages that the oracle wrote get random bytes before and in the expectation. True
  // if there were any; the oracle must then run again.
  bool poison_touched();
  // live = initial
  void reset();
  // Marks an element of an output as unspecified.
  void leave_open(std::size_t tensor, const std::byte* element_in_expected, std::int64_t bytes);

  std::deque<Storage> storages;
  std::vector<Tensor> tensors;
  Expectation expect;
  std::optional<ExpectedRecord> record;  // IndexPolicy::kReport
  std::int64_t bytes_moved = 0;          // payload, counted once

  std::any args;  // std::shared_ptr<const Args> of the operator: for tests that call it another way
  std::function<Result<Plan>(const Context&)> plan;
  std::function<Status(const Plan&, const Workspace&, ErrorRecord*, const Context&)> run;
  std::function<Status(ErrorRecord*, const Context&)> call;  // the one-call form

 private:
  Memory make_memory(std::int64_t bytes, bool follow_align);

  std::uint64_t seed_ = 0;
  Device device_;
  enum class Pinned { kNone, kSome, kAll } pinned_ = Pinned::kNone;
  Placement placement_ = Placement::kGuarded;
  std::vector<std::int64_t> aligns_;
  std::size_t next_align_ = 0;
  bool bounded_ = true;
};

struct DTypeName {
  const char* name;
  DType dtype;
};
// "f16", "bf16", ..., the names that cases use.
std::span<const std::pair<const char*, DType>> data_types();
std::span<const std::pair<const char*, DType>> index_types();
std::int64_t item_bytes(DType dtype);  // the harness's own table
const char* short_name(DType dtype);

}  // namespace kvferry::harness
