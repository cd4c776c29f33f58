// SPDX-License-Identifier: Apache-2.0
#include "ops/paged_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <string>

#include "harness/int128.hpp"

namespace kvferry::harness {
namespace {

std::int64_t clamp_to_any(Int128 value) {
  return static_cast<std::int64_t>(std::clamp<Int128>(value, 0, kAnySize));
}

// Sets cumsum, seq_lens and tokens. Returns the rows that they need.
std::int64_t read_lengths(ReadsCase& lengths, const Case& from, std::int64_t block_size, Random& random) {
  lengths.cumsum = from.flag("cumsum", from.has("sums"));
  if (from.has("sums")) {
    if (!lengths.cumsum) from.fail("sums", "needs cumsum=1");
    lengths.seq_lens = from.integers("sums", {});
    if (lengths.seq_lens.empty()) from.fail("sums", "the list is empty");
    std::int64_t end = 0;
    for (std::size_t i = 0; i + 1 < lengths.seq_lens.size(); ++i) {
      lengths.tokens.push_back(
          clamp_to_any(static_cast<Int128>(lengths.seq_lens[i + 1]) - lengths.seq_lens[i]));
      end = std::max(end, std::min(lengths.seq_lens[i + 1], kAnySize));
    }
    return end;
  }
  Shape lens;
  const Shape listed = from.integers("lens", {});
  const std::int64_t batches =
      from.integer("b", from.has("lens") ? static_cast<std::int64_t>(listed.size()) : 3, 0, 1 << 20);
  for (std::int64_t i = 0; i < batches; ++i) {
    lens.push_back(listed.empty() ? random.between(0, 3 * block_size) : listed[to_size(i) % listed.size()]);
  }
  Int128 sum = lengths.cumsum ? from.integer("base", 0) : 0;
  if (lengths.cumsum) lengths.seq_lens.push_back(static_cast<std::int64_t>(sum));
  for (const std::int64_t length : lens) {
    const std::int64_t tokens = std::max<std::int64_t>(length, 0);
    lengths.tokens.push_back(std::min(tokens, kAnySize));
    sum += tokens;
    if (lengths.cumsum && sum > std::numeric_limits<std::int64_t>::max())
      from.fail("lens", "the sum overflows");
    lengths.seq_lens.push_back(lengths.cumsum ? static_cast<std::int64_t>(sum) : length);
  }
  return clamp_to_any(sum);
}

}  // namespace

ReadsCase read_reads(const Case& from, std::int64_t block_size, Random& random) {
  ReadsCase reads;
  const std::int64_t end = read_lengths(reads, from, block_size, random);
  reads.rows = from.has("n") ? from.integer("n", 0, 0, kAnySize)
                             : std::max<std::int64_t>(end + from.integer("extra", 0), 0);
  const std::int64_t batches = reads.batches();
  reads.shifts.resize(reads.tokens.size());
  reads.has_offset = from.has("offset");
  if (reads.has_offset) {
    const Shape list = from.integers("offset", {});
    for (std::int64_t i = 0; i < batches; ++i) {
      reads.offsets.push_back(list.empty() ? 0 : list[to_size(i) % list.size()]);
      reads.shifts[to_size(i)] = reads.offsets.back() / block_size;
    }
  }
  Int128 needed = 1;
  for (std::int64_t i = 0; i < batches; ++i) {
    const Int128 columns = static_cast<Int128>(reads.shifts[to_size(i)]) +
                           (reads.tokens[to_size(i)] + block_size - 1) / block_size;
    if (columns <= 4096 || columns <= (1 << 20) / batches) needed = std::max(needed, columns);
  }
  reads.width = from.integer("w", static_cast<std::int64_t>(needed), 0, 1 << 24);
  return reads;
}

Shape make_table(const Case& from, const ReadsCase& reads, std::int64_t block_size, std::int64_t blocks,
                 Random& random) {
  const std::int64_t batches = reads.batches(), width = reads.width;
  Shape table(to_size(batches * width));
  const std::string kind = from.text("table", "random");
  if (kind.find_first_of("0123456789") != std::string::npos) {
    const Shape list = parse_integers(kind);
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = list[i % list.size()];
  } else {
    if (kind != "random" && kind != "dup" && kind != "seq" && kind != "same") {
      from.fail("table", fmt::format("'{}' is none of: random, dup, seq, same, a list of ids", kind));
    }
    Shape fresh(to_size(kind == "random" ? std::min<std::int64_t>(blocks, 1 << 22) : 0));
    std::iota(fresh.begin(), fresh.end(), 0);
    random.shuffle(fresh);
    const Shape wild = {-1, blocks, std::numeric_limits<std::int32_t>::min(),
                        std::numeric_limits<std::int32_t>::max()};
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < batches; ++i) {
      const std::int64_t needed =
          block_size > 0 ? (reads.tokens[to_size(i)] + block_size - 1) / block_size : 0;
      for (std::int64_t column = 0; column < width; ++column) {
        std::int64_t& id = table[to_size(i * width + column)];
        const Int128 along = static_cast<Int128>(column) - reads.shifts[to_size(i)];
        if (along < 0 || along >= needed || blocks == 0) {
          id = random.pick(wild);
        } else if (kind == "same") {
          id = blocks - 1;
        } else if (kind == "seq") {
          id = next++ % blocks;
        } else if (kind == "random" && !fresh.empty()) {
          id = fresh.back();
          fresh.pop_back();
        } else {
          id = random.between(0, blocks - 1);
        }
      }
    }
  }
  for (const std::string& put : from.texts("put", {})) {
    const std::vector<std::string> parts = split(put, '/');
    if (parts.size() != 3) from.fail("put", fmt::format("'{}' is no batch/column/id", put));
    const std::int64_t batch = parse_integer(parts[0]);
    const std::int64_t column = parse_integer(parts[1]);
    if (batch < 0 || batch >= batches || column < 0 || column >= width) {
      from.fail("put", fmt::format("'{}' is outside the table of {} x {}", put, batches, width));
    }
    table[to_size(batch * width + column)] = parse_integer(parts[2]);
  }
  return table;
}

ReadsTensors add_reads(Instance& instance, const Case& from, DType index_type, const ReadsCase& reads,
                       const Shape& table) {
  ReadsTensors tensors;
  const std::int64_t batches = reads.batches();
  tensors.block_tables = instance.add_tensor("block_tables", false, index_type, Shape{batches, reads.width},
                                             from.text("bt", ""));
  instance.store(tensors.block_tables, table);
  tensors.seq_lens =
      instance.add_tensor("seq_lens", false, index_type,
                          Shape{static_cast<std::int64_t>(reads.seq_lens.size())}, from.text("sl", ""));
  instance.store(tensors.seq_lens, reads.seq_lens);
  if (reads.has_offset) {
    tensors.seq_offset =
        instance.add_tensor("seq_offset", false, index_type, Shape{batches}, from.text("so", ""));
    instance.store(*tensors.seq_offset, reads.offsets);
  }
  return tensors;
}

void set_random_reads(Case& made, Random& random, std::int64_t block_size, bool wide) {
  const auto some = [&](std::int64_t n) { return random.one_in(n); };
  Shape lens(to_size(random.between(1, 6)));
  for (std::int64_t& length : lens) length = some(4) ? 0 : random.between(1, 3 * block_size + 1);
  const std::int64_t sum = std::accumulate(lens.begin(), lens.end(), std::int64_t{0});
  const auto batches = static_cast<std::int64_t>(lens.size());
  const bool cumsum = some(2);
  if (cumsum && some(5)) {  // sums that decrease, start below zero, overshoot
    Shape sums;
    for (std::int64_t i = 0; i <= batches; ++i) sums.push_back(random.between(-block_size - 2, sum + 3));
    if (wide && some(4)) sums.front() = -(std::int64_t{1} << 62);
    if (wide && some(4)) sums.back() = std::numeric_limits<std::int64_t>::max();
    made.set("sums", print_integers(sums));
    made.set("n", random.between(0, sum + 4));
  } else {
    if (!cumsum && some(6)) random.pick(std::vector<std::int64_t*>{&lens.front(), &lens.back()})[0] = -3;
    if (!cumsum && wide && some(8)) lens.back() = std::numeric_limits<std::int64_t>::max();
    if (cumsum) made.set("cumsum", 1);
    if (cumsum && some(3)) made.set("base", random.between(1, 5));
    made.set("lens", print_integers(lens));
    if (lens.back() > (1 << 20)) {
      made.set("n", sum + random.between(-2, 9) + 2);
    } else if (some(2)) {
      made.set("extra", random.between(-block_size - 1, block_size + 1));
    }
  }
  const std::int64_t width = random.between(1, 4);
  if (some(2)) made.set("w", width);
  if (some(3)) {
    Shape offsets;
    for (std::int64_t i = 0; i < batches; ++i) offsets.push_back(random.between(0, 2 * block_size + 1));
    if (some(4)) offsets.front() = random.pick(Shape{-1, -block_size, -5 * block_size, 100 * block_size});
    if (wide && some(6))
      offsets.back() = random.pick(
          Shape{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()});
    made.set("offset", print_integers(offsets));
  }
  if (some(3)) made.set("table", random.pick(std::vector<std::string>{"dup", "seq", "same"}));
  if (some(4)) {
    std::string ids;
    const std::int64_t n = random.between(1, 8);
    for (std::int64_t i = 0; i < n; ++i) {
      const Shape bad = {-1, 7, std::numeric_limits<std::int32_t>::max(), wide ? std::int64_t{1} << 40 : -5};
      ids += fmt::format("{}{}", i == 0 ? "" : ";", some(4) ? random.pick(bad) : random.between(0, 5));
    }
    made.set("table", ids);
  }
  if (some(3)) {
    made.set("bt", random_layout(random, 2));
    made.set("sl", random_layout(random, 1));
  }
}

}  // namespace kvferry::harness
