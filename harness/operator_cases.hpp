// SPDX-License-Identifier: Apache-2.0
//
// What the case files of the operators share.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/case.hpp"
#include "harness/instance.hpp"
#include "harness/random.hpp"

namespace kvferry::harness {

inline constexpr std::array<std::pair<const char*, IndexPolicy>, 3> kIndexPolicies = {{
    {"default", IndexPolicy::kDefault},
    {"report", IndexPolicy::kReport},
    {"reject", IndexPolicy::kReject},
}};

// The calls of an operator whose buffers are those of its arguments; `kCall` is its one-call form. The
// arguments live as long as the instance.
template <auto kCall, class Args>
void connect(Instance& instance, const std::shared_ptr<Args>& args) {
  instance.args = std::shared_ptr<const Args>(args);
  instance.plan = [args](const Context& context) { return plan(*args, context); };
  instance.run = [args](const Plan& planned, const Workspace& workspace, ErrorRecord* record,
                        const Context& context) {
    auto pointers = buffers(*args);
    pointers.workspace = workspace;
    pointers.error_record = record;
    return run(planned, pointers, context);
  };
  instance.call = [args](ErrorRecord* record, const Context& context) {
    return kCall(*args, context, record);
  };
}

// Key "break": applies the rule of that name to the arguments and expects its refusal. False if the case has
// none.
template <class Rules, class Args>
bool break_rule(const Case& from, const Rules& rules, Args& args, Instance& instance) {
  const std::string broken = from.text("break", "");
  if (broken.empty()) return false;
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const auto& r) { return broken == r.name; });
  if (rule == rules.end()) from.fail("break", fmt::format("no rule '{}'", broken));
  instance.expect.code = rule->code;
  rule->apply(args, instance.expect.words);
  return true;
}

// The names of an operator's table of implementations.
template <auto kTable>
std::vector<std::string> implementation_names() {
  std::vector<std::string> names;
  for (const auto& implementation : kTable()) names.emplace_back(implementation.name);
  return names;
}

// Guards and alignments of `count` buffers.
inline void set_random_memory(Case& made, Random& random, int count) {
  made.set("guard", random.pick(std::vector<std::string>{"canary", "canary", "before", "after"}));
  if (!random.one_in(2)) return;
  std::vector<std::int64_t> aligns(to_size(count));
  for (std::int64_t& align : aligns) align = random.between(0, 63);
  made.set("align", print_integers(aligns));
}

}  // namespace kvferry::harness
