// SPDX-License-Identifier: Apache-2.0
#include "harness/case.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "harness/layout.hpp"
#include "ops/registry.hpp"

namespace kvferry::harness {
namespace {

using List = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;

// The message of the CaseError that `call` throws; empty if it throws none.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const CaseError& error) {
    return error.what();
  }
  return "";
}

TEST(Integers, Parse) {
  EXPECT_EQ(parse_integer("12"), 12);
  EXPECT_EQ(parse_integer("-3"), -3);
  EXPECT_EQ(parse_integer("4k"), 4096);
  EXPECT_EQ(parse_integer("3M"), 3 << 20);
  EXPECT_EQ(parse_integer("2G"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_integer("2^40"), std::int64_t{1} << 40);
  EXPECT_EQ(parse_integer("2^31-1"), 2147483647);
  EXPECT_EQ(parse_integer("-2^63"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(parse_integer("-9223372036854775808"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(parse_integer("2^63-1"), std::numeric_limits<std::int64_t>::max());
  for (const char* bad : {"", "x", "1x", "--1", "1+", "k", "2^", "2^63", "2^64", "9223372036854775808", "1.5",
                          "0x10", " 1", "99999999999999999999", "1 2", "3^60", "+", "-"}) {
    EXPECT_NE(error_of([&] { parse_integer(bad); }), "") << bad;
  }
}

TEST(Integers, Lists) {
  EXPECT_EQ(parse_integers(""), List{});
  EXPECT_EQ(parse_integers("1;5..8;3*4;-2"), (List{1, 5, 6, 7, 8, 3, 3, 3, 3, -2}));
  EXPECT_EQ(parse_integers("-2..1"), (List{-2, -1, 0, 1}));
  EXPECT_EQ(parse_integers("2^63-2..2^63-1"),
            (List{std::numeric_limits<std::int64_t>::max() - 1, std::numeric_limits<std::int64_t>::max()}));
  for (const char* bad : {"1;", "1..", "3..1", "1*-1", "1*99999999999", "0..2^40", ";"}) {
    EXPECT_NE(error_of([&] { parse_integers(bad); }), "") << bad;
  }
  for (const List& list :
       {List{}, List{1}, List{1, 2, 3, 9, 9, 9, 9, 4, 5}, List{7, 7}, List{-1, 0, 1, 2, 2, 2},
        List{std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}}) {
    EXPECT_EQ(parse_integers(print_integers(list)), list) << print_integers(list);
  }
  EXPECT_EQ(print_integers(List{1, 2, 3, 9, 9, 9, 5}), "1..3;9*3;5");
}

TEST(Braces, Expand) {
  EXPECT_EQ(expand_braces("x:a=1"), (Texts{"x:a=1"}));
  EXPECT_EQ(expand_braces("x:a={1|2;3},b={5..6}"),
            (Texts{"x:a=1,b=5", "x:a=1,b=6", "x:a=2;3,b=5", "x:a=2;3,b=6"}));
  EXPECT_EQ(expand_braces("{a=1,b=2|a=3..4}"),
            (Texts{"a=1,b=2", "a=3..4"}));  // a range of numbers only on its own
  for (const char* bad : {"{", "}", "a{b{c}}", "a}b{"}) {
    EXPECT_NE(error_of([&] { expand_braces(bad); }), "") << bad;
  }
}

TEST(Case, RoundTrip) {
  const char* text = "gather_pa_kv_cache:mode=nz,b=4,lens=100;1;7,put=0/1/-1,kc=pad1:3+neg0";
  EXPECT_EQ(Case::parse(text).print(), text);
  EXPECT_EQ(Case::parse("op:").print(), "op:");
  EXPECT_EQ(Case::parse("op").print(), "op:");
  EXPECT_EQ(Case::parse("op:lens=").print(), "op:lens=");
  for (const char* bad :
       {"", ":a=1", "op:a", "op:=1", "op:a=1,", "op:a=1,a=2", "op:a=1=2", "a=1", "op:,a=1"}) {
    EXPECT_NE(error_of([&] { Case::parse(bad); }), "") << bad;
  }
  EXPECT_NE(error_of([] { Case::parse("op:h=1,h=2"); }).find("'h' appears twice"), std::string::npos);
}

TEST(Case, SetEraseMerge) {
  Case made("op");
  made.set("a", 1);
  made.set("b", "x");
  made.set("a", 2);
  EXPECT_EQ(made.print(), "op:a=2,b=x");
  made.merge(Case::parse("other:b=y,c=3"));
  EXPECT_EQ(made.print(), "op:a=2,b=y,c=3");
  made.erase("b");
  EXPECT_EQ(made.print(), "op:a=2,c=3");
  EXPECT_FALSE(made.has("b"));
}

TEST(Case, TypedGetters) {
  const Case made = Case::parse("op:i=7,l=1..3,f=true,g=0,t=a;b,c=two,e=");
  EXPECT_EQ(made.integer("i", 1), 7);
  EXPECT_EQ(made.integer("missing", 1), 1);
  EXPECT_EQ(made.integers("l", {}), (List{1, 2, 3}));
  EXPECT_EQ(made.integers("missing", {4}), List{4});
  EXPECT_TRUE(made.flag("f", false));
  EXPECT_FALSE(made.flag("g", true));
  EXPECT_EQ(made.texts("t", {}), (Texts{"a", "b"}));
  EXPECT_EQ(made.texts("e", {"x"}), Texts{});
  const std::pair<const char*, int> names[] = {{"one", 1}, {"two", 2}};
  EXPECT_EQ(made.choice<int>("c", names, 9), 2);
  EXPECT_EQ(made.choice<int>("missing", names, 9), 9);
  made.check_used();

  EXPECT_NE(error_of([&] { made.integer("c", 0); }).find("op: key 'c'"), std::string::npos);
  EXPECT_NE(error_of([&] { made.integer("i", 0, 8, 9); }).find("7 is outside [8, 9]"), std::string::npos);
  EXPECT_NE(error_of([&] { made.flag("i", false); }).find("key 'i'"), std::string::npos);
  EXPECT_NE(error_of([&] { made.integers("t", {}); }).find("key 't'"), std::string::npos);
  EXPECT_NE(error_of([&] { made.choice<int>("t", names, 9); }).find("'a;b' is none of: one, two"),
            std::string::npos);
}

TEST(Case, EveryKeyMustCount) {
  const KeyHelp keys[] = {{"a", ""}, {"b", ""}};
  const KeyHelp more[] = {{"seed", ""}};
  const Case good = Case::parse("op:a=1,seed=2");
  EXPECT_EQ(error_of([&] { good.check_known(keys, more); }), "");
  EXPECT_EQ(error_of([&] { Case::parse("op:a=1,x=2").check_known(keys, more); }),
            "op: unknown key 'x'; valid keys: a, b, seed");
  good.integer("a", 0);
  EXPECT_NE(error_of([&] { good.check_used(); }).find("'seed' has no effect"), std::string::npos);
  good.integer("seed", 0);
  EXPECT_EQ(error_of([&] { good.check_used(); }), "");
}

TEST(Layout, Words) {
  const List shape = {3, 4, 5};
  const auto strides = [&](const char* words) { return make_layout(shape, words).strides; };
  EXPECT_EQ(strides(""), (List{20, 5, 1}));
  EXPECT_EQ(make_layout(shape, "").storage_elements, 60);
  EXPECT_EQ(strides("order120"), (List{1, 15, 3}));
  EXPECT_EQ(strides("pad2:3"), (List{32, 8, 1}));
  EXPECT_EQ(strides("pad1:7"), (List{27, 5, 1}));
  EXPECT_EQ(strides("step2"), (List{40, 10, 2}));
  EXPECT_EQ(strides("set1:0+set0:-9"), (List{-9, 0, 1}));
  EXPECT_EQ(make_layout(shape, "set1:0+set0:-9").offset, 18);
  EXPECT_EQ(make_layout(shape, "set1:0+set0:-9").storage_elements, 18 + 4 + 1);
  const Layout backwards = make_layout(shape, "neg0+off6+tail2");
  EXPECT_EQ(backwards.strides, (List{-20, 5, 1}));
  EXPECT_EQ(backwards.offset, 6 + 40);
  EXPECT_EQ(backwards.storage_elements, 6 + 60 + 2);
  EXPECT_EQ(make_layout(List{0, 4}, "off3").storage_elements, 3);
  const Layout absurd = make_layout(List{1, 4}, "one");
  EXPECT_GT(absurd.strides[0], std::int64_t{1} << 61);
  EXPECT_EQ(absurd.storage_elements, 4);
  for (const char* bad : {"x", "order01", "order011", "order013", "pad3:1", "pad1", "neg", "neg3", "set0:x",
                          "off-7+", "set0:2^62"}) {
    EXPECT_NE(error_of([&] { make_layout(shape, bad); }), "") << bad;
  }
}

TEST(Layout, RandomOnesDoNotOverlap) {
  Random random(5);
  for (int round = 0; round < 300; ++round) {
    const List shape = {random.between(1, 3), random.between(1, 4), random.between(1, 3),
                        random.between(1, 5)};
    const Layout layout = make_layout(shape, random_layout(random, 4));
    std::vector<int> uses(static_cast<std::size_t>(layout.storage_elements));
    for (std::int64_t i = 0; i < shape[0]; ++i) {
      for (std::int64_t j = 0; j < shape[1]; ++j) {
        for (std::int64_t k = 0; k < shape[2]; ++k) {
          for (std::int64_t l = 0; l < shape[3]; ++l) {
            std::int64_t at = layout.offset;
            const List index = {i, j, k, l};
            for (std::size_t axis = 0; axis < 4; ++axis) {
              if (index[axis] != 0) at += index[axis] * layout.strides[axis];
            }
            ASSERT_EQ(uses.at(static_cast<std::size_t>(at))++, 0);
          }
        }
      }
    }
  }
}

TEST(Registry, Resolve) {
  for (const OperatorInfo& info : operators()) {
    EXPECT_EQ(find_operator(info.name), &info);
    EXPECT_STREQ(info.name, kvferry::to_string(info.op));
    EXPECT_FALSE(info.implementations().empty());
    for (const RegisteredCase& one : info.cases) {
      int others = 0;
      for (const OperatorInfo& other : operators()) {
        for (const RegisteredCase& two : other.cases)
          others += std::string_view(one.name) == two.name ? 1 : 0;
      }
      EXPECT_EQ(others, 1) << one.name;
      for (const auto& [owner, what] : resolve(one.name)) {
        EXPECT_EQ(owner, &info) << one.name;
        EXPECT_EQ(what.op(), info.name) << one.name;
        const Case& parsed = what;  // clang 14 captures no structured binding
        EXPECT_EQ(error_of([&] { parsed.check_known(info.keys, common_keys()); }), "") << one.name;
        EXPECT_EQ(Case::parse(what.print()).print(), what.print());
      }
    }
  }
  EXPECT_EQ(find_operator("gather"), nullptr);
  const auto changed = resolve("gather/len0_in_middle:threads=2,lens={1|4}");
  ASSERT_FALSE(changed.empty());
  EXPECT_NE(changed[0].second.print().find("lens=1"), std::string::npos);
  EXPECT_NE(changed[0].second.print().find("threads=2"), std::string::npos);
  EXPECT_NE(error_of([] { resolve("gather/nothing"); }).find("gather/len0_in_middle"), std::string::npos);
  EXPECT_NE(error_of([] { resolve("nothing:a=1"); }).find("group_memcpy"), std::string::npos);
}

}  // namespace
}  // namespace kvferry::harness
