// SPDX-License-Identifier: Apache-2.0
//
// Plan: a checked call without pointers. Made once, run for every layer and step with the same shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kvferry/status.hpp"

namespace kvferry {

enum class Operator : std::uint32_t {
  kGatherPaKvCache = 1,
  kScatterPaKvCache = 2,
  kGroupMemcpy = 3,
  kGatherSelectionKvCache = 4,
  kCopyBlocks = 5,
  kSwapBlocks = 6,
  kTransferLayers = 7,
  kGatherDequant = 8,
};
KVFERRY_EXPORT const char* to_string(Operator op) noexcept;  // "gather_pa_kv_cache"

// Layout of a paged cache.
enum class CacheMode : std::uint8_t {
  kNorm,  // [NB, bs, H, D]
  kPaNz,  // FRACTAL_NZ: [NB, H*D/e, bs, e] with e = 32 / sizeof(element)
};

// What happens for bad entries of index tensors; each operator's header says what its entries are and what
// "default" does for them.
enum class IndexPolicy : std::uint8_t {
  kDefault,  // defined bytes, no record
  kReport,   // the same bytes, and an ErrorRecord is filled
  kReject,   // kIndex before the first byte is written; the message names the entry
};

// Filled under IndexPolicy::kReport. The caller zeroes it; calls accumulate into it: `bad` adds up, the other
// members describe the entry with the lowest (batch, column) seen so far. Each operator's header says what
// batch, column and id are. Not to be shared by calls that run at the same time.
struct alignas(8) ErrorRecord {
  std::uint64_t bad = 0;  // how many; of an operator with K and V: bad (entry, K | V) pairs
  std::int64_t batch = 0;
  std::int64_t column = 0;
  std::int64_t id = 0;
  std::uint32_t which = 0;  // kBad... bits
  std::uint32_t op = 0;     // static_cast<uint32_t>(Operator)
};
static_assert(sizeof(ErrorRecord) == 40);

inline constexpr std::uint32_t kBadKey = 1;
inline constexpr std::uint32_t kBadValue = 2;
inline constexpr std::uint32_t kBadColumn = 4;     // the column lies outside the table; id is 0
inline constexpr std::uint32_t kBadDuplicate = 8;  // the entry repeats an earlier one
// Of operators whose entries name a source and a destination.
inline constexpr std::uint32_t kBadSource = 16;
inline constexpr std::uint32_t kBadDestination = 32;

// Scratch memory for one running call. Any alignment. Null is fine for 0 bytes.
struct Workspace {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

namespace internal {
struct PlanBody;
}

// Immutable and cheap to copy. A plan holds no pointer into any tensor: run() takes them. It may be run any
// number of times, by several threads at once (each run with a workspace of its own), with any context of the
// device that it was planned for.
class KVFERRY_EXPORT Plan {
 public:
  Plan() noexcept = default;  // empty: run() refuses it
  explicit Plan(std::shared_ptr<const internal::PlanBody> body) noexcept : body_(std::move(body)) {}

  bool empty() const noexcept { return body_ == nullptr; }
  // The rest REQUIRE !empty().
  Operator op() const noexcept;
  std::string_view implementation() const noexcept;  // "avx2"
  std::int64_t workspace_bytes() const noexcept;     // what run() needs
  // Text for people: implementation and why those before it in the table refused, what one row is, the split
  // into units of work, workspace, and for operators that CANN has its tiling key and flags. Not for parsing.
  std::string describe() const;

  const std::shared_ptr<const internal::PlanBody>& body() const noexcept { return body_; }

 private:
  std::shared_ptr<const internal::PlanBody> body_;
};

}  // namespace kvferry
