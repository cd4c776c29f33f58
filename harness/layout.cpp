// SPDX-License-Identifier: Apache-2.0
#include "harness/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "harness/array.hpp"
#include "harness/case.hpp"
#include "harness/int128.hpp"

namespace kvferry::harness {
namespace {

struct Words {
  std::vector<std::size_t> order;
  std::vector<std::int64_t> pad;
  std::vector<bool> negative;
  std::vector<std::pair<std::size_t, std::int64_t>> set;
  std::int64_t step = 1;
  std::int64_t offset = 0;
  std::int64_t tail = 0;
  bool one = false;
};

Words parse_words(std::size_t rank, std::string_view text) {
  Words words;
  words.order.resize(rank);
  std::iota(words.order.begin(), words.order.end(), std::size_t{0});
  words.pad.resize(rank);
  words.negative.resize(rank);
  if (text.empty() || text == "dense") return words;
  for (const std::string& word : split(text, '+')) {
    const auto bad = [&](std::string_view why) {
      throw CaseError(
          fmt::format("layout word '{}' of '{}': {} (words: order0213 pad2:8 step3 neg0 off5 set1:16 "
                      "one tail7)",
                      word, text, why));
    };
    std::string_view rest = word;
    const auto starts = [&](std::string_view name) {
      if (!rest.starts_with(name)) return false;
      rest.remove_prefix(name.size());
      return true;
    };
    const auto axis = [&] {
      const std::int64_t value = rest.empty() ? -1 : rest.front() - '0';
      if (value < 0 || value >= static_cast<std::int64_t>(rank)) bad(fmt::format("no axis of rank {}", rank));
      rest.remove_prefix(1);
      return to_size(value);
    };
    const auto colon = [&] {
      if (!rest.starts_with(':')) bad("':' is missing");
      return parse_integer(rest.substr(1));
    };
    if (word == "one") {
      words.one = true;
    } else if (starts("order")) {
      if (rest.size() != rank) bad(fmt::format("expected {} digits", rank));
      for (std::size_t& axis_at : words.order) axis_at = axis();
      std::vector<std::size_t> sorted = words.order;
      std::sort(sorted.begin(), sorted.end());
      for (std::size_t i = 0; i < rank; ++i) {
        if (sorted[i] != i) bad("an axis is missing");
      }
    } else if (starts("pad")) {
      const std::size_t a = axis();
      words.pad[a] = colon();
    } else if (starts("neg")) {
      words.negative[axis()] = true;
    } else if (starts("set")) {
      const std::size_t a = axis();
      words.set.emplace_back(a, colon());
    } else if (starts("step")) {
      words.step = parse_integer(rest);
    } else if (starts("off")) {
      words.offset = parse_integer(rest);
    } else if (starts("tail")) {
      words.tail = parse_integer(rest);
    } else {
      bad("unknown");
    }
  }
  return words;
}

}  // namespace

Layout make_layout(std::span<const std::int64_t> shape, std::string_view text) {
  const std::size_t rank = shape.size();
  const Words words = parse_words(rank, text);
  std::vector<Int128> strides(rank);
  Int128 run = words.step;
  for (std::size_t i = rank; i-- > 0;) {
    const std::size_t axis = words.order[i];
    strides[axis] = run;
    run = run * std::max<std::int64_t>(shape[axis], 1) + words.pad[axis];
  }
  for (std::size_t axis = 0; axis < rank; ++axis) {
    if (words.negative[axis]) strides[axis] = -strides[axis];
  }
  for (const auto& [axis, stride] : words.set) strides[axis] = stride;

  Int128 low = 0;
  Int128 high = 0;
  bool empty = false;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    empty = empty || shape[axis] == 0;
    const Int128 reach = strides[axis] * std::max<std::int64_t>(shape[axis] - 1, 0);
    (reach < 0 ? low : high) += reach;
  }
  const Int128 offset = words.offset - (empty ? 0 : low);
  const Int128 storage = words.offset + (empty ? 0 : high - low + 1) + words.tail;
  constexpr Int128 kLimit = static_cast<Int128>(1) << 62;
  if (storage > kLimit || storage < 0 || offset < 0)
    throw CaseError(fmt::format("layout '{}' is too large", text));

  Layout layout;
  layout.offset = static_cast<std::int64_t>(offset);
  layout.storage_elements = static_cast<std::int64_t>(storage);
  for (std::size_t axis = 0; axis < rank; ++axis) {
    const bool absurd = words.one && shape[axis] == 1;
    const std::int64_t sign = axis % 2 == 0 ? 1 : -1;
    layout.strides.push_back(absurd ? sign * ((std::int64_t{1} << 62) + 12345)
                                    : static_cast<std::int64_t>(strides[axis]));
  }
  return layout;
}

std::string random_layout(Random& random, int rank) {
  std::vector<std::string> words;
  if (random.one_in(2)) {
    std::vector<int> order(to_size(rank));
    std::iota(order.begin(), order.end(), 0);
    random.shuffle(order);
    std::string word = "order";
    for (const int axis : order) word += static_cast<char>('0' + axis);
    words.push_back(std::move(word));
  }
  for (int axis = 0; axis < rank; ++axis) {
    if (random.one_in(4)) words.push_back(fmt::format("pad{}:{}", axis, random.between(1, 40)));
    if (random.one_in(8)) words.push_back(fmt::format("neg{}", axis));
  }
  if (random.one_in(6)) words.push_back(fmt::format("step{}", random.between(2, 3)));
  if (random.one_in(3)) words.push_back(fmt::format("off{}", random.between(1, 70)));
  if (random.one_in(3)) words.emplace_back("one");
  return fmt::format("{}", fmt::join(words, "+"));
}

}  // namespace kvferry::harness
