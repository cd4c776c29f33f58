// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/rows.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <tuple>

#include "backends/cpu/parallel_for.hpp"
#include "tools/replay/numbers.hpp"

namespace kvferry::replay {

// Calls body(span) on all threads; returns the bytes of all spans.
template <class Body>
std::int64_t RowChecker::for_each(std::span<const RowSpan> spans, Body body) const {
  std::int64_t bytes = 0;
  for (const RowSpan& s : spans) bytes += s.rows * row_bytes(s.part);
  if (bytes == 0) return 0;
  const auto split = internal::cpu::split(std::ssize(spans), bytes / std::ssize(spans), context_.threads());
  internal::cpu::parallel_for(context_.state(), split.claims, [&](std::int64_t claim) {
    const std::int64_t begin = claim * split.units_per_claim;
    const std::int64_t end = std::min(std::ssize(spans), begin + split.units_per_claim);
    for (std::int64_t i = begin; i < end; ++i) body(spans[usize(i)]);
  });
  return bytes;
}

void RowChecker::fill(std::span<const RowSpan> spans) const {
  for_each(spans,
           [this](const RowSpan& s) { fill_rows(s.at, row_bytes(s.part), s.stream(), s.first, s.rows); });
}

RowChecker::Outcome RowChecker::check(std::span<const RowSpan> spans) const {
  Outcome outcome;
  std::mutex mutex;
  outcome.bytes = for_each(spans, [&](const RowSpan& s) {
    const std::int64_t bytes = row_bytes(s.part);
    const std::uint64_t stream = s.stream();
    for (std::int64_t r = 0; r < s.rows; ++r) {
      const std::byte* from = s.at + r * bytes;
      const std::int64_t good = good_rows(from, bytes, stream, s.first + r, s.rows - r);
      r += good;
      if (r == s.rows) break;
      std::array<std::byte, usize(kMaxRowBytes)> expected;
      expected_row(expected.data(), bytes, stream, s.first + r);
      const std::byte* seen = s.at + r * bytes;
      const std::int64_t byte = std::mismatch(seen, seen + bytes, expected.begin()).first - seen;
      const BadRow bad{s.hash_id,
                       s.request,
                       s.layer,
                       s.part,
                       s.first + r,
                       byte,
                       static_cast<std::uint8_t>(expected[usize(byte)]),
                       static_cast<std::uint8_t>(seen[byte])};
      const auto key = [](const BadRow& b) { return std::tuple(b.layer, b.position, b.part); };
      const std::lock_guard lock(mutex);
      ++outcome.bad_rows;
      if (!outcome.first || key(bad) < key(*outcome.first)) outcome.first = bad;
    }
  });
  return outcome;
}

}  // namespace kvferry::replay
